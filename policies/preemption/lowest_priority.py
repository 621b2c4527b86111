"""The victim is the least important running sequence; among equals the one that arrived last."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import TYPE_CHECKING

from policies.preemption.bound import check_bound

if TYPE_CHECKING:
    from sim.views import SequenceView


@dataclass
class LowestPriority:
    """Largest (priority, arrival_time, row): vLLM V1 (0.33) with policy priority.

    `max_preemptions`: a request that lost its memory so often comes back only with blocks for its whole declared length
    and is never a candidate again (null: no bound, as the engine). Ignores: how much work is lost.
    """

    max_preemptions: int | None = None

    def __post_init__(self) -> None:
        check_bound(self.max_preemptions)

    def victim(self, candidates: Ordered[SequenceView]) -> SequenceView:
        return max(candidates, key=lambda seq: (seq.priority, seq.arrival_time, seq.row))
