"""The victim is the least important running sequence; among equals the one that arrived last."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.views import SequenceView


@dataclass
class LowestPriority:
    """Largest (priority, arrival_time, row): vLLM V1 (0.33) with policy priority."""

    def victim(self, candidates: Ordered[SequenceView]) -> SequenceView:
        return max(candidates, key=lambda seq: (seq.priority, seq.arrival_time, seq.row))
