"""Every request is let in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sim.decisions import ADMIT, Admission

if TYPE_CHECKING:
    from sim.views import ClusterView, RequestView


@dataclass
class Always:
    """No admission control. Source: the default of every engine. Ignores: load, length, priority."""

    def admit(self, request: RequestView, cluster: ClusterView, now: float) -> Admission:
        return ADMIT
