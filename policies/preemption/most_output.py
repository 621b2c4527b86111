"""The victim is the sequence that has generated the most tokens; among equals the one admitted last."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import TYPE_CHECKING

from policies.preemption.bound import check_bound
from policies.preemption.progress import num_generated

if TYPE_CHECKING:
    from sim.views import SequenceView


@dataclass
class MostOutput:
    """Who was served longest steps back, as in least-attained-service scheduling (Nuyens and Wierman, 2008).

    `max_preemptions`: a request that lost its memory so often comes back only with blocks for its whole declared length
    and is never a candidate again (null: no bound). The most work is lost.
    Ignores: how many blocks the victim holds.
    """

    max_preemptions: int | None = 8

    def __post_init__(self) -> None:
        check_bound(self.max_preemptions)

    def victim(self, candidates: Ordered[SequenceView]) -> SequenceView:
        return max(candidates, key=lambda seq: (num_generated(seq), seq.order))
