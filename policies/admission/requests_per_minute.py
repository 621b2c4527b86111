"""A tenant's request is turned away when so many of its requests were let in within the last minute."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sim.decisions import ADMIT, Admission, Reject

if TYPE_CHECKING:
    from sim.views import ClusterView, RequestView

WINDOW = 60.0  # seconds


@dataclass
class RequestsPerMinute:
    """The quota that hosted APIs use and the VTC paper (OSDI 2024) compares with: `limit` accepted requests a tenant.

    The window slides: a request counts for 60 s after it was let in. Requests without a tenant share one quota.
    Ignores: tokens (most hosted quotas limit these, too), the load of the cluster, retries of the client.
    """

    limit: int = 60
    _accepted: dict[str, deque[float]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ValueError(f"limit must be at least 1 request a minute (got {self.limit})")

    def admit(self, request: RequestView, cluster: ClusterView, now: float) -> Admission:
        times = self._accepted.setdefault(request.tenant or "", deque())
        while times and times[0] <= now - WINDOW:
            times.popleft()
        if len(times) >= self.limit:
            return Reject(f"requests_per_minute: {len(times)} requests of this tenant in the last minute")
        times.append(now)
        return ADMIT
