"""The victim is the sequence that was admitted first."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import TYPE_CHECKING

from policies.preemption.bound import check_bound

if TYPE_CHECKING:
    from sim.views import SequenceView


@dataclass
class Oldest:
    """First of the running list, possibly the one that asked: the opposite of what engines do, for comparison.

    `max_preemptions`: a request that lost its memory so often comes back only with blocks for its whole declared length
    and is never a candidate again (null: no bound). Without it two long prompts can evict one another for ever. Source:
    the textbook counterpart of newest. Ignores: that the oldest is often nearly done.
    """

    max_preemptions: int | None = 8

    def __post_init__(self) -> None:
        check_bound(self.max_preemptions)

    def victim(self, candidates: Ordered[SequenceView]) -> SequenceView:
        return candidates[0]
