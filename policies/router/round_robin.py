"""Replicas in turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.views import ClusterView, RequestView


@dataclass
class RoundRobin:
    """The next replica in stable order, whatever its load."""

    _next: int = field(default=0, init=False, repr=False)

    def route(self, request: RequestView, cluster: ClusterView, now: float) -> int:
        chosen = self._next % len(cluster.replicas)
        self._next = chosen + 1
        return chosen
