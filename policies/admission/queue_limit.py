"""Requests are turned away while too many wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sim.decisions import ADMIT, Admission, Reject

if TYPE_CHECKING:
    from sim.views import ClusterView, RequestView


@dataclass
class QueueLimit:
    """Reject when the replicas together have `max_outstanding` requests or more, waiting or running.

    `max_outstanding`: requests. Source: textbook load shedding, the 503 of an API server. Ignores: lengths, memory,
    that clients try again.
    """

    max_outstanding: int = 1024

    def admit(self, request: RequestView, cluster: ClusterView, now: float) -> Admission:
        outstanding = int(cluster.outstanding_requests.sum())
        return ADMIT if outstanding < self.max_outstanding else Reject(f"queue_limit: {outstanding} outstanding")
