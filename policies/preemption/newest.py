"""The victim is the sequence that was admitted last."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.views import SequenceView


@dataclass
class Newest:
    """Last of the running list, possibly the one that asked (vLLM V1 fcfs)."""

    def victim(self, candidates: Ordered[SequenceView]) -> SequenceView:
        return candidates[-1]
