"""The victim is the sequence with the most output tokens still to come; among equals the one admitted last."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from policies.preemption.bound import check_bound
from policies.preemption.progress import num_remaining

if TYPE_CHECKING:
    from sim.views import SequenceView


@dataclass
class LongestRemaining:
    """Who has the most output to come: SRPT (Schrage, 1968) seen from the other end.

    By predicted output length, or by the declared maximum where there is no predictor.

    `max_preemptions`: a request that lost its memory so often comes back only with blocks for its whole declared length
    and is never a candidate again (null: no bound). Ignores: that a prediction was
    wrong; it is not corrected.
    """

    max_preemptions: int | None = 8
    uses_prediction: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_bound(self.max_preemptions)

    def victim(self, candidates: Ordered[SequenceView]) -> SequenceView:
        return max(candidates, key=lambda seq: (num_remaining(seq), seq.order))
