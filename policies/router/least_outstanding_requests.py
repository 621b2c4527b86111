"""The replica with the fewest waiting plus running requests; ties go to the first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.views import ClusterView, RequestView


@dataclass
class LeastOutstandingRequests:
    """Join the shortest queue, by count."""

    def route(self, request: RequestView, cluster: ClusterView, now: float) -> int:
        return int(cluster.outstanding_requests.argmin())
