"""Pools: replicas of one role, as policies see them, and the placement of a request in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.cost.base import BatchShape
from sim.decisions import Split
from sim.errors import PolicyError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from sim.cluster import Cluster
    from sim.decisions import Placement
    from sim.interfaces import DisaggregationPolicy, Router
    from sim.replica import Replica
    from sim.request import Sequence
    from sim.transfer import Handoff, Transfers
    from sim.views import RequestView

MAY_PREFILL, MAY_DECODE, ANY_ROLE = ("prefill", "mixed"), ("decode", "mixed"), ("mixed", "prefill", "decode")


class Pool:
    """Some replicas of the cluster in stable order: a `PoolView`, and the `ClusterView` of the router among them."""

    def __init__(self, name: str, role: str, replicas: list[Replica], router: Router, cluster: Cluster) -> None:
        self.name, self.role = name, role
        self.replicas = replicas
        self.router = router
        self.transfers: Transfers | None = None
        self._cluster = cluster
        self._indices = [replica.index for replica in replicas]

    @property
    def outstanding_requests(self) -> npt.NDArray[np.int64]:
        return self._cluster.outstanding_requests[self._indices]

    @property
    def outstanding_tokens(self) -> npt.NDArray[np.int64]:
        return self._cluster.outstanding_tokens[self._indices]

    def num_cached_tokens(self, request: RequestView) -> int:
        return max((_cached(replica, request) for replica in self.replicas), default=0)

    def prefill_duration(self, num_tokens: int) -> float:
        pairs = num_tokens * (num_tokens + 1) // 2
        return self.replicas[0].cost.step_time(BatchShape(num_tokens, 1, pairs, num_tokens, 0, 0, num_tokens))

    def transfer_duration(self, num_tokens: int) -> float:
        assert self.transfers is not None
        source = self.replicas[0].index
        others = [replica.index for replica in self._cluster.replicas if replica.index not in self._indices]
        num_bytes = num_tokens * self.transfers.rules.bytes_per_token
        return self.transfers.network.expected_duration(source, others[0], num_bytes) if others else 0.0

    def choose(self, seq: Sequence, now: float) -> Replica:
        """Ask the router."""
        if not self.replicas:
            raise PolicyError(f"request {seq.row} at {now} s was placed in {self.name}, which has no replicas")
        position = self._cluster.routing.choose(self.router, seq, self, now)
        if not 0 <= position < len(self.replicas):
            name, count = type(self.router).__name__, len(self.replicas)
            where = f"replica {position} of {count} in {self.name}"
            raise PolicyError(f"{name} sent request {seq.row} at {now} s to {where}")
        return self.replicas[position]


def _cached(replica: Replica, request: RequestView) -> int:
    if not replica.kv.prefix_caching:
        return 0
    content = replica.kv.content(replica.content_spans(request.row), request.num_prompt_tokens)
    return replica.kv.match(content, request.num_prompt_tokens - 1).num_tokens


def _too_long(replica: Replica, seq: Sequence) -> str | None:
    """Why no load of the prompt would ever be accepted, or None; schedulers that drop such prompts never see it."""
    longest = min(replica.limits.max_model_len + replica.traits.extra_tokens, replica.kv.longest_sequence)
    if seq.num_prompt_tokens < longest:
        return None
    return f"prompt of {seq.num_prompt_tokens} tokens does not fit a sequence of at most {longest} tokens"


class Pools:
    """The pools of a cluster, what decides between them, and the handoffs between their replicas.

    `mixed`: all replicas of role mixed, for requests that stay together in no pool in particular.
    """

    def __init__(
        self,
        cluster: Cluster,
        pools: list[Pool],
        mixed: Pool,
        policy: DisaggregationPolicy,
        transfers: Transfers,
    ) -> None:
        self.cluster = cluster
        self.pools = pools
        self.mixed = mixed
        self.policy = policy
        self.transfers = transfers
        routing = cluster.routing
        transfers.count, transfers.route = cluster.count, self.route
        transfers.prompt_sent, transfers.left = routing.prompt_sent, routing.left
        for pool in pools:
            pool.transfers = transfers
            routing.enlist(pool.router)
        routing.enlist(mixed.router)
        cluster.pools = self

    def place(self, seq: Sequence, now: float) -> Placement:
        """Ask the policy and check its answer."""
        placement = self.policy.place(seq, self.pools, now)
        if isinstance(placement, Split):
            self._check(seq, placement.prefill_pool, MAY_PREFILL, now)
            self._check(seq, placement.decode_pool, MAY_DECODE, now)
            if placement.prefill_pool == placement.decode_pool:
                self._fail(seq, now, f"split between pool {placement.prefill_pool} and itself")
        elif placement.pool is not None:
            self._check(seq, placement.pool, ANY_ROLE, now)
        return placement

    def _check(self, seq: Sequence, pool: int, roles: tuple[str, ...], now: float) -> None:
        if not 0 <= pool < len(self.pools):
            self._fail(seq, now, f"named pool {pool} of {len(self.pools)}")
        if self.pools[pool].role not in roles:
            role, name = self.pools[pool].role, self.pools[pool].name
            self._fail(seq, now, f"gave the {roles[0]} part to pool {name} of role {role}")

    def _fail(self, seq: Sequence, now: float, what: str) -> None:
        raise PolicyError(f"{type(self.policy).__name__}, asked for request {seq.row} at {now} s, {what}")

    def route(self, seq: Sequence, pool: int | None) -> Replica:
        """A replica of a pool, or of all mixed ones."""
        chosen = self.mixed if pool is None else self.pools[pool]
        return chosen.choose(seq, self.cluster.clock.now)

    def split(self, seq: Sequence, placement: Split) -> Handoff | str:
        """Begin a handoff; or why the request could never be served."""
        decoding = self.pools[placement.decode_pool].replicas
        if not decoding:
            self._fail(seq, self.cluster.clock.now, f"named pool {placement.decode_pool}, which has no replicas")
        reason = decoding[0].unservable(seq) or _too_long(decoding[0], seq)  # any of them: they are alike
        if reason is not None:
            return reason
        source, leg = self.route(seq, placement.prefill_pool), self.transfers.leg_of(seq)
        reason = source.unservable(leg)
        if reason is not None:
            self.cluster.routing.left(seq, source.index)
            return reason
        return self.transfers.begin(seq, leg, source, placement.decode_pool)
