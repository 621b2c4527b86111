"""The victim is the sequence that was admitted last."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import TYPE_CHECKING

from policies.preemption.bound import check_bound

if TYPE_CHECKING:
    from sim.views import SequenceView


@dataclass
class Newest:
    """Last of the running list, possibly the one that asked (vLLM V1 fcfs).

    `max_preemptions`: a request that lost its memory so often comes back only with blocks for its whole declared length
    and is never a candidate again (null: no bound, as the engine). Source: vLLM V1 (0.33). Ignores: how
    much work is lost.
    """

    max_preemptions: int | None = None

    def __post_init__(self) -> None:
        check_bound(self.max_preemptions)

    def victim(self, candidates: Ordered[SequenceView]) -> SequenceView:
        return candidates[-1]
