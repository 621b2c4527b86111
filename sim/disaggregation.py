"""From the configuration to pools that share requests: what fits together, the rules of transfers, lost attempts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sim.errors import InputError, unknown_name
from sim.hardware import DTYPE_BYTES
from sim.inbox import Inbox
from sim.interfaces import Traits
from sim.pools import Pool, Pools
from sim.transfer import TransferRules, Transfers

if TYPE_CHECKING:
    from sim.build import PoolBuilder
    from sim.cluster import Cluster
    from sim.config import ExperimentConfig
    from sim.engine import EndFunction
    from sim.interfaces import DisaggregationPolicy, Router
    from sim.model import ModelSpec
    from sim.transfer import Network

ALLOCATORS = ("paged", "radix")  # whose blocks can be taken before a sequence runs and kept after it


@dataclass(frozen=True)
class SplitSide:
    """What a pool must tell before it can take part in a split."""

    role: str
    num_replicas: int
    model: str
    allocator: str
    speculates: bool
    padded: bool

    @classmethod
    def of(cls, builder: PoolBuilder) -> SplitSide:
        """As a pool is configured."""
        pool = builder.pool
        traits = getattr(builder.scheduler(0), "traits", Traits())
        padded, speculates = traits.padded, pool.speculation is not None
        return cls(pool.role, pool.replicas, builder.model.name, pool.kv_cache.allocator, speculates, padded)


def check_disaggregation(config: ExperimentConfig, policy: object, sides: list[SplitSide]) -> None:
    """`InputError` where roles, policy and settings do not fit together."""
    name = config.cluster.disaggregation.policy
    where = config.where("cluster.disaggregation")
    roles = sorted({side.role for side in sides if side.num_replicas} - {"mixed"})
    if not getattr(policy, "splits", True):
        if roles:
            raise InputError(f"{where}: policy '{name}' never splits requests; allowed with it: pools of role mixed")
        return
    for role in ("prefill", "decode"):
        if role not in roles:
            raise InputError(f"{where}: policy '{name}' splits requests, but no pool of role {role} has any replicas")
    for i, side in enumerate(sides):
        _check_side(config, f"cluster.pools.{i}", side, sides[0])


def _check_side(config: ExperimentConfig, path: str, side: SplitSide, first: SplitSide) -> None:
    if side.model != first.model:
        where = config.where(f"{path}.model")
        raise InputError(f"{where}: {side.model} differs from {first.model}: split requests need one model")
    if side.allocator not in ALLOCATORS:
        where = config.where(f"{path}.kv_cache.allocator")
        raise InputError(f"{where}: {side.allocator} with split requests is not modelled; allowed: paged, radix")
    if side.speculates:
        raise InputError(f"{config.where(f'{path}.speculation')}: with split requests is not modelled")
    if side.padded:
        where = config.where(f"{path}.scheduler.policy")
        raise InputError(f"{where}: padded batches with split requests are not modelled")


def transfer_rules(config: ExperimentConfig, model: ModelSpec) -> TransferRules:
    """What is configured, with the model's bytes. Both sides hold the whole KV of a token, however it is sharded."""
    slot = config.cluster.disaggregation
    moves = slot.kv_transfer
    if moves.dtype is not None and moves.dtype not in DTYPE_BYTES:
        where = config.where("cluster.disaggregation.kv_transfer.dtype")
        raise InputError(f"{where}: {unknown_name('data type', moves.dtype, DTYPE_BYTES)}")
    cached = next((pool.kv_cache.dtype for pool in config.cluster.pools if pool.role != "decode"), None)
    return TransferRules(
        bytes_per_token=model.kv_bytes_per_token(kv_dtype=moves.dtype or cached),
        num_layers=model.num_layers,
        mode=moves.mode,
        granularity=moves.granularity,
        first_token=slot.first_token,
        blocking=moves.blocking,
        max_inflight_tokens=moves.max_inflight_tokens,
        reserved_tokens_per_sequence=moves.reserved_tokens_per_sequence,
        failure_rate=moves.failure_rate,
        retries=moves.retries,
        on_failure=moves.on_failure,
    )


def losses(seed: int, rate: float) -> Callable[[int, int], bool]:
    """Whether attempt number `attempt` of a row's transfer is lost: the same whatever happens around it."""
    import numpy as np

    def is_lost(row: int, attempt: int) -> bool:
        if not rate:
            return False
        words = np.random.SeedSequence([seed, row, attempt]).generate_state(1, np.uint64)
        return float(words[0]) < rate * 2.0**64

    return is_lost


def build_pools(
    config: ExperimentConfig,
    cluster: Cluster,
    on_end: EndFunction,
    policy: DisaggregationPolicy,
    routers: list[Router],
    rules: TransferRules,
    network: Network,
) -> Pools:
    """Pools with a router each (`routers[0]`: of all mixed replicas), and an inbox for whoever may decode."""
    by_name = {pool.name: [r for r in cluster.replicas if r.pool == pool.name] for pool in config.cluster.pools}
    pools = [
        Pool(pool.name, pool.role, by_name[pool.name], router, cluster)
        for pool, router in zip(config.cluster.pools, routers[1:], strict=True)
    ]
    mixed = [replica for pool in pools if pool.role == "mixed" for replica in pool.replicas]
    for pool in pools:
        for replica in pool.replicas if pool.role != "prefill" else []:
            replica.inbox = Inbox(replica, rules)
    transfers = Transfers(cluster.clock, network, rules, losses(config.seed, rules.failure_rate), on_end)
    return Pools(cluster, pools, Pool("mixed", "mixed", mixed, routers[0], cluster), policy, transfers)
