"""The victim is the sequence that holds the fewest blocks; among equals the one admitted last."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import TYPE_CHECKING

from policies.preemption.bound import check_bound

if TYPE_CHECKING:
    from sim.views import SequenceView


@dataclass
class FewestBlocks:
    """Who holds the fewest blocks: least work is lost at a time, and least memory won, so several may have to go.

    Counts the blocks held, shared prefixes included, although giving those up frees nothing.

    `max_preemptions`: a request that lost its memory so often comes back only with blocks for its whole declared length
    and is never a candidate again (null: no bound). Source: the textbook counterpart of
    largest-first. Ignores: how much output the victim has made.
    """

    max_preemptions: int | None = 8

    def __post_init__(self) -> None:
        check_bound(self.max_preemptions)

    def victim(self, candidates: Ordered[SequenceView]) -> SequenceView:
        return min(candidates, key=lambda seq: (seq.num_blocks, -seq.order))
