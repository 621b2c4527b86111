"""The replica that the request's key is hashed to on a ring, unless that one has more than its share of the load.

Sources: consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam, 2016), where the next replica
clockwise takes over; SGLang's gateway (0.5.23) takes the least loaded one instead (`overflow: least_loaded`). When a
replica comes or goes, only the keys of about one replica move.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from hashlib import blake2b
from math import ceil, inf
from typing import TYPE_CHECKING, Literal

from policies.router.candidates import Candidates

if TYPE_CHECKING:
    from sim.views import ClusterView, RequestView, RouterSignals


def ring_position(key: object) -> int:
    """A number of 64 bits that depends on the key alone."""
    return int.from_bytes(blake2b(repr(key).encode(), digest_size=8).digest(), "little")


@dataclass
class ConsistentHash:
    """A ring of hashed keys with bounded load.

    `key`: what is hashed; a request without one goes to the fewest outstanding requests. `bound`: most outstanding
    requests of a replica, as a multiple of the mean with the new request counted, rounded up; null: no bound.
    `prefix_tokens`: that key `prefix` looks at, rounded up to whole prefix ids. `overflow`: who
    takes what is beyond the bound. `virtual_nodes`: points of a replica on the ring.
    """

    key: Literal["session", "tenant", "prefix"] = "session"
    prefix_tokens: int = 256
    bound: float | None = 1.25
    overflow: Literal["clockwise", "least_loaded"] = "clockwise"
    virtual_nodes: int = 160
    _signals: RouterSignals | None = field(default=None, init=False, repr=False)
    _candidates: Candidates = field(default_factory=Candidates, init=False, repr=False)
    _ring: list[tuple[int, int]] = field(default_factory=list, init=False, repr=False)  # (point, position)

    def __post_init__(self) -> None:
        if self.bound is not None and self.bound < 1:
            raise ValueError(f"bound must be at least 1, or null (got {self.bound})")
        if self.virtual_nodes < 1 or self.prefix_tokens < 1:
            raise ValueError("virtual_nodes and prefix_tokens must be at least 1")

    def begin(self, signals: RouterSignals) -> None:
        self._signals = signals

    def route(self, request: RequestView, cluster: ClusterView, now: float) -> int:
        key = self._key(request)
        if key is None:
            return int(cluster.outstanding_requests.argmin())
        self._build(cluster)
        loads = cluster.outstanding_requests
        most = inf if self.bound is None else ceil(self.bound * (int(loads.sum()) + 1) / len(loads))
        first = bisect_left(self._ring, (ring_position(key), 0)) % len(self._ring)
        home = self._ring[first][1]
        if loads[home] + 1 <= most:
            return home
        if self.overflow == "least_loaded":
            return int(loads.argmin())
        around = (self._ring[(first + i) % len(self._ring)][1] for i in range(len(self._ring)))
        return next(position for position in around if loads[position] + 1 <= most)

    def _key(self, request: RequestView) -> object:
        if self.key == "session":
            return request.session
        if self.key == "tenant":
            return request.tenant
        assert self._signals is not None
        ids = self._signals.prefix(request)
        return ids[min(len(ids), -(-self.prefix_tokens // self._signals.block_size)) - 1] if ids else None

    def _build(self, cluster: ClusterView) -> None:
        before = self._candidates.indices
        if self._candidates.of(cluster.replicas) is not before:
            self._ring = sorted(
                (ring_position((int(index), node)), position)
                for position, index in enumerate(self._candidates.indices)
                for node in range(self.virtual_nodes)
            )
