"""The replica that served the session before; a new session goes to the fewest outstanding requests.

Source: the sticky ("manual") policy of SGLang's gateway (0.5.23) with assignment by least load. A request without a
session is routed by load.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.views import ClusterView, RequestView


@dataclass
class SessionAffinity:
    """A session stays on its replica; it is forgotten after `idle_timeout` seconds without a request."""

    idle_timeout: float = 14_400.0
    _homes: dict[object, tuple[int, float]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.idle_timeout <= 0:
            raise ValueError(f"idle_timeout must be above 0 (got {self.idle_timeout})")

    def route(self, request: RequestView, cluster: ClusterView, now: float) -> int:
        position = self._home(request, cluster, now)
        if position is None:
            position = int(cluster.outstanding_requests.argmin())
        if request.session is not None:
            self._homes[request.session] = cluster.replicas[position].index, now
        return position

    def _home(self, request: RequestView, cluster: ClusterView, now: float) -> int | None:
        index, latest = self._homes.get(request.session, (-1, now))
        if index < 0 or now - latest > self.idle_timeout:
            return None
        if 0 <= index < len(cluster.replicas) and cluster.replicas[index].index == index:
            return index
        return next((i for i, replica in enumerate(cluster.replicas) if replica.index == index), None)
