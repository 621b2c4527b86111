"""The composition root: from a validated configuration to a Simulation; the only such file that knows `policies`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import policies
from sim.cost import ExplainingCostModel, build_cost_model, default_kind
from sim.cost.drafting import DraftingCost, one_layer_of
from sim.disaggregation import SplitSide, build_pools, check_disaggregation, transfer_rules
from sim.engine import Simulation
from sim.errors import InputError
from sim.fabric import Fabric
from sim.hardware import load_gpu
from sim.interfaces import Traits
from sim.isolation import Spans, isolated_spans
from sim.kv.eviction import EvictingKV, NextUse, next_uses
from sim.kv.host import HostMemory, PrivatePort
from sim.kv.warm import load_states, state_of, warm_up
from sim.layer_groups import count_kv
from sim.memory import plan_memory
from sim.model import load_model
from sim.replica import Limits, Replica
from sim.routing import RoutingSettings
from sim.seeds import Seeds
from sim.speculation import DrawnAcceptance, SpeculationRules, acceptance_chances
from sim.speculative_replica import SpeculativeReplica
from sim.swapping import CheaperWay, FabricPort
from sim.topology import plan_topology
from sim.units import GIB
from sim.workload.config import build_workload

if TYPE_CHECKING:
    from sim.clock import Clock
    from sim.cluster import Cluster
    from sim.config import ExperimentConfig, PoolConfig
    from sim.engine import EndFunction
    from sim.interconnect import Interconnect
    from sim.interfaces import PreemptionPolicy, Scheduler
    from sim.kv.paged import PagedKV
    from sim.model import ModelSpec
    from sim.pools import Pools
    from sim.topology import Topology
    from sim.workload.base import Workload
    from sim.workload.columns import Columns

T = TypeVar("T")
MAKE_NOTHING_ELSE = ("autoscaler",)  # checked here, asked by nobody while only do-nothing ones exist


def build(
    config: ExperimentConfig,
    step_by_step: bool = False,
    step_log: bool = False,
    timeline_interval: float | None = None,
    workload: Workload | None = None,
) -> Simulation:
    """Everything of one run, ready for `run()`. `InputError` for what only shows when facts and policies load.

    `workload` stands in for the one that the configuration names.
    """
    seeds = Seeds(config.seed)
    topology = place(config)
    fabric_on = cache(partial(Fabric, topology=topology))  # one for swaps and KV transfers
    builders = [PoolBuilder(config, i, step_by_step, step_log, topology) for i in range(len(config.cluster.pools))]
    for slot in MAKE_NOTHING_ELSE:
        make_slot(config, slot, seeds)

    def make_replicas(clock: Clock, on_end: EndFunction, columns: Columns) -> list[Replica]:
        replicas: list[Replica] = []
        fabric = fabric_on(clock)
        for builder in builders:
            for _ in range(builder.pool.replicas):
                replicas.append(builder.replica(len(replicas), clock, on_end, columns, fabric))
        if not replicas:
            raise InputError(f"{config.where('cluster.pools')}: no pool has any replicas")
        return replicas

    simulation = Simulation(
        workload or build_workload(config.workload, seeds, config.base_dir),
        make_replicas,
        make_slot(config, "router", seeds),
        make_slot(config, "admission", seeds),
        timeline_interval=timeline_interval,
        client_timeout=config.client.timeout,
        length_predictor=make_slot(config, "length_predictor", seeds),
        make_pools=pools_factory(config, builders, seeds, fabric_on),
        routing=routing_settings(config),
    )
    simulation.fabric = fabric_on(simulation.clock)
    simulation.saves_cache = config.output.cache_state
    simulation.warnings += dict.fromkeys(note for builder in builders for note in builder.cost_notes)
    if simulation.pools is not None and len(topology.nodes) > 1:  # KV may cross links between nodes
        simulation.warnings += topology.assumptions()
    simulation.warnings += dict.fromkeys(note for builder in builders for note in window_notes(builder.model))
    simulation.warnings += dict.fromkeys(note for builder in builders for note in prediction_notes(config, builder))
    simulation.warnings += dict.fromkeys(note for builder in builders for note in builder.length_notes())
    return simulation


def place(config: ExperimentConfig) -> Topology:
    """Where the replicas of an experiment stand. `InputError` where they do not fit."""
    return plan_topology(config, make_slot(config, "placement", Seeds(config.seed)))


def pools_factory(
    config: ExperimentConfig, builders: list[PoolBuilder], seeds: Seeds, fabric_on: Callable[[Clock], Fabric]
) -> Callable[[Cluster, EndFunction], Pools] | None:
    """How requests are split between pools; None where they never can be."""
    policy = make_slot(config, "disaggregation", seeds)
    check_disaggregation(config, policy, [SplitSide.of(builder) for builder in builders])
    if not getattr(policy, "splits", True):
        return None
    slot, where = config.cluster.router, config.where("cluster.router")
    routers = [
        policies.make("router", slot.policy, slot.params, where, rng=seeds.generator("router", *number))
        for number in ((), *((i,) for i in range(len(builders))))
    ]
    rules = transfer_rules(config, builders[0].model)

    def make_pools(cluster: Cluster, on_end: EndFunction) -> Pools:
        return build_pools(config, cluster, on_end, policy, routers, rules, fabric_on(cluster.clock))

    return make_pools


def routing_settings(config: ExperimentConfig) -> RoutingSettings:
    """How old the router's picture is, and whether its decisions are logged."""
    slot = config.cluster.router
    return RoutingSettings(slot.snapshot_interval, slot.count_sent, slot.event_delay, slot.log)


def make_slot(config: ExperimentConfig, kind: str, seeds: Seeds) -> Any:
    """The policy of a cluster slot."""
    slot = getattr(config.cluster, kind)
    where = config.where(f"cluster.{kind}")
    return policies.make(kind, slot.policy, slot.params, where, rng=seeds.generator(kind))


def window_notes(model: ModelSpec, num_tokens: int = 8192) -> list[str]:
    """How much KV is overstated for a model with sliding-window layers, if anything."""
    if not model.num_sliding_layers:
        return []
    count = count_kv(model, num_tokens)
    ratio = count.every_layer / count.unified_pages
    return [
        f"KV memory of {model.name}: its {model.num_sliding_layers} sliding-window layers are counted as if they kept "
        f"the whole context; at {num_tokens:,} tokens a sequence holds {ratio:.1f} times what window groups would"
    ]


def prediction_notes(config: ExperimentConfig, builder: PoolBuilder) -> list[str]:
    """Which length prediction the policies of a pool used, if they use any."""
    predictor, pool = config.cluster.length_predictor.policy, builder.pool
    policies_of_pool = (
        ("scheduler", pool.scheduler.policy, builder.scheduler(0)),
        ("preemption victim", pool.preemption.victim, builder.preemption(0)),
    )
    if predictor == "none":
        source = "the declared maximum, for want of a length predictor"
    else:
        source = f"the lengths of predictor '{predictor}'"
    return [
        f"{kind} '{name}' decides by {source}"
        for kind, name, policy in policies_of_pool
        if getattr(policy, "uses_prediction", False)
    ]


class PoolBuilder:
    """What the replicas of one pool share: the model, the GPU, the cost model, the limits."""

    def __init__(
        self,
        config: ExperimentConfig,
        index: int,
        step_by_step: bool,
        step_log: bool,
        topology: Topology | None = None,
    ) -> None:
        self.config = config
        self.topology = topology or place(config)
        self.pool: PoolConfig = config.cluster.pools[index]
        self.index = index
        self.path = f"cluster.pools.{index}"
        self.step_by_step = step_by_step
        self.step_log = step_log
        self.seeds = Seeds(config.seed)
        self.gpu = self._at("gpu", lambda: load_gpu(self.pool.gpu))
        self.model = self._at("model", lambda: load_model(self.pool.model))
        self.interconnects = self._interconnects()
        self.cost = self._at("cost_model", lambda: self._cost_model(self.interconnects[0]))
        # Replicas of a pool may cross different links: a cost model of its own for each further way of being joined.
        others = self.interconnects[1:]
        self.other_costs = {each: self._at("cost_model", partial(self._cost_model, each)) for each in others}
        # Asked now: what a run asks beyond its result (plans that are cut) must not show in its summary.
        self.cost_notes = self._cost_notes()
        self.max_model_len = self.pool.max_model_len or self._model_maximum()
        self.num_blocks = self.pool.kv_cache.num_blocks or self._at("kv_cache", self._planned_blocks)
        self.limits = self._limits()
        self.warm_states = self._at("kv_cache.warm_start", self._warm_states)
        self.next_use: NextUse | None = None  # for oracles
        self.host_block = self._at("preemption", self._host_block)
        self._check_slots()

    def length_notes(self) -> list[str]:
        """A maximum length beyond the model's own: engines refuse it, or answer nonsense beyond it."""
        own, asked = self.model.max_position, self.pool.max_model_len
        if own is None or asked is None or asked <= own:
            return []
        return [f"max_model_len {asked} is above the {own} tokens that {self.model.name} was made for"]

    def _model_maximum(self) -> int:
        if self.model.max_position is None:
            where = self.config.where(f"{self.path}.model")
            raise InputError(f"{where}: '{self.model.name}' states no maximum length; set max_model_len")
        return self.model.max_position

    def _at(self, key: str, make: Callable[[], T]) -> T:
        """Call `make`; an `InputError` of it is told where in the file it belongs."""
        try:
            return make()
        except InputError as error:
            raise InputError(f"{self.config.where(f'{self.path}.{key}')}: {error}") from None

    @property
    def cost_kind(self) -> str:
        """The kind of cost model: the one that is asked for, or the default of the GPU."""
        kind = self.pool.cost_model.kind
        return default_kind(self.gpu) if kind == "auto" else kind

    def _cost_notes(self) -> list[str]:
        """What the reader of the results must know about the step times."""
        subject = f"step times of {self.model.name} on {self.gpu.name}"
        if self.cost_kind == "fitted":
            costs = (self.cost, *self.other_costs.values())
            notes = dict.fromkeys(note for cost in costs for note in cost.extrapolation())
            return [f"{subject}: {note}" for note in notes] + self._link_notes()
        if self.pool.cost_model.kind == "auto":
            unmeasured = "are computed by the roofline cost model, not measured: that GPU has no fitted profile"
            return [f"{subject} {unmeasured}", *self._link_notes()]
        return self._link_notes()

    def _interconnects(self) -> list[Interconnect | None]:
        """The ways in which the nodes of a replica are joined, in order of replicas; None: within one node."""
        places = enumerate(self.topology.places)
        joined = dict.fromkeys(self.topology.interconnect(i) for i, place in places if place.pool == self.index)
        return list(joined) or [None]

    def _link_notes(self) -> list[str]:
        """What is assumed of the links between nodes, where a replica crosses them."""
        return self.topology.assumptions() if any(self.interconnects) else []

    def _cost_model(self, interconnect: Interconnect | None) -> ExplainingCostModel:
        target, speculation = self._cost_of(self.model, interconnect), self.pool.speculation
        if speculation is None:
            return target
        drafts, ratio = speculation.num_speculative_tokens, speculation.draft_cost_ratio
        if ratio is not None or speculation.method == "ngram":
            return DraftingCost(target, drafts, cost_ratio=ratio or 0.0)
        if self.cost_kind not in ("roofline", "fitted"):
            raise InputError(
                f"kind {self.cost_kind} knows no drafter: give speculation.draft_cost_ratio (0: drafting takes no time)"
            )
        drafter = load_model(speculation.draft_model) if speculation.draft_model else one_layer_of(self.model)
        return DraftingCost(target, drafts, self._cost_of(drafter, interconnect))

    def _cost_of(self, model: ModelSpec, interconnect: Interconnect | None) -> ExplainingCostModel:
        slot, scheduler = self.pool.cost_model, self.pool.scheduler
        return build_cost_model(
            self.cost_kind,
            slot.params,
            model=model,
            gpu=self.gpu,
            tensor_parallel=self.pool.tensor_parallel,
            pipeline_parallel=self.pool.pipeline_parallel,
            max_num_seqs=scheduler.max_num_seqs,
            max_num_batched_tokens=scheduler.max_num_batched_tokens,
            interconnect=interconnect,
            kv_dtype=self.pool.kv_cache.dtype,
            data_parallel=self.pool.data_parallel,
            expert_parallel=self.pool.expert_parallel,
        )

    def _planned_blocks(self) -> int:
        kv, scheduler = self.pool.kv_cache, self.pool.scheduler
        plan = plan_memory(
            self.model,
            self.gpu,
            tensor_parallel=self.pool.tensor_parallel,
            pipeline_parallel=self.pool.pipeline_parallel,
            block_size=kv.block_size,
            gpu_memory_utilization=kv.gpu_memory_utilization,
            max_num_seqs=scheduler.max_num_seqs,
            max_num_batched_tokens=scheduler.max_num_batched_tokens,
            kv_dtype=kv.dtype,
            engine=kv.memory_of,
            data_parallel=self.pool.data_parallel,
            expert_parallel=self.pool.expert_parallel,
        )
        return plan.num_blocks

    def _limits(self) -> Limits:
        scheduler = self.pool.scheduler
        return Limits(
            max_num_seqs=scheduler.max_num_seqs,
            max_num_batched_tokens=scheduler.max_num_batched_tokens,
            max_model_len=self.max_model_len,
            depth=2 if scheduler.async_scheduling else 1,
            chunked_prefill=scheduler.enable_chunked_prefill,
            reserve_full_isl=scheduler.scheduler_reserve_full_isl,
            watermark_blocks=int(scheduler.watermark * self.num_blocks),
        )

    def _policy(self, kind: str, key: str, name: str, params: dict[str, Any], index: int) -> Any:
        where = self.config.where(f"{self.path}.{key}")
        return policies.make(kind, name, params, where, rng=self.seeds.generator(kind, index))

    def scheduler(self, index: int) -> Scheduler:
        """A scheduler of its own for replica `index`."""
        slot = self.pool.scheduler
        params = dict(slot.params)
        if slot.long_prefill_token_threshold:
            params["long_prefill_token_threshold"] = slot.long_prefill_token_threshold
        return self._policy("scheduler", "scheduler", slot.policy, params, index)  # type: ignore[no-any-return]

    def preemption(self, index: int) -> PreemptionPolicy:
        """A preemption policy of its own for replica `index`."""
        slot = self.pool.preemption
        return self._policy("preemption", "preemption", slot.victim, slot.params, index)  # type: ignore[no-any-return]

    def _check_slots(self) -> None:
        """Fail before the run for what only building a replica would show."""
        self.preemption(0)
        self._check_budget(getattr(self.scheduler(0), "traits", Traits()))
        kv = self.pool.kv_cache
        where = self.config.where(f"{self.path}.kv_cache")
        self.allocator = policies.make("block_allocator", kv.allocator, kv.params, where)
        if getattr(self.allocator, "context_shift", False) and self.pool.scheduler.policy != "llama_server":
            raise InputError(f"{where}.context_shift: goes with scheduler.policy llama_server only")
        if self.pool.speculation is not None and (kv.allocator, self.pool.preemption.mode) != ("paged", "recompute"):
            where = self.config.where(f"{self.path}.speculation")
            raise InputError(f"{where}: is modelled with kv_cache.allocator paged and preemption.mode recompute only")

    def _check_budget(self, traits: Traits) -> None:
        limits = self.limits
        if limits.chunked_prefill or traits.drops_unservable or limits.max_num_batched_tokens >= limits.max_model_len:
            return
        where = self.config.where(f"{self.path}.scheduler.max_num_batched_tokens")
        raise InputError(
            f"{where}: without chunked prefill a step must hold the longest sequence: max_num_batched_tokens "
            f"({limits.max_num_batched_tokens}) must not be below max_model_len ({limits.max_model_len})"
        )

    def _replica_class(self) -> Callable[..., Replica]:
        speculation = self.pool.speculation
        if speculation is None:
            return Replica
        drafts = speculation.num_speculative_tokens
        # One seed for all replicas: a request has the same luck wherever it is sent.
        seed = int(self.seeds.generator("acceptance").integers(2**63))
        acceptance = DrawnAcceptance(seed, acceptance_chances(speculation.acceptance, drafts))
        rules = SpeculationRules.of(speculation.method, drafts)
        return partial(SpeculativeReplica, rules=rules, acceptance=acceptance)

    def replica(
        self, index: int, clock: Clock, on_end: EndFunction, columns: Columns, fabric: Fabric | None = None
    ) -> Replica:
        """Replica number `index` of the cluster. Without a fabric it cannot swap."""
        replica = self._replica_class()(
            index,
            clock,
            self.scheduler(index),
            self.preemption(index),
            self._memory(columns),
            self.other_costs.get(self.topology.interconnect(index), self.cost),
            self.limits,
            on_end,
            self._content_spans(columns),
            name=f"{self.pool.name}-{index}",
            pool=self.pool.name,
            gpu=self.gpu.name,
            num_gpus=self.pool.gpus_per_replica,
            step_by_step=self.step_by_step,
            step_log=self.step_log,
        )
        self._give_host_memory(replica, fabric)
        if self.warm_states is not None:
            self._at("kv_cache.warm_start", lambda: self._warm_up(replica))
        return replica

    def _warm_up(self, replica: Replica) -> None:
        assert self.warm_states is not None
        source = str(self.pool.kv_cache.warm_start)
        warm_up(replica.kv, state_of(self.warm_states, replica.name, source), source)

    def _warm_states(self) -> dict[str, dict[str, Any]] | None:
        path = self.pool.kv_cache.warm_start
        return None if path is None else load_states(Path(path))

    def _content_spans(self, columns: Columns) -> Callable[[int], Spans]:
        isolated = self.pool.kv_cache.isolation == "tenant"
        return isolated_spans(columns) if isolated else columns.content_spans

    def _memory(self, columns: Columns) -> PagedKV:
        """KV memory of one replica; an eviction policy that is an oracle learns what is to come."""
        config = self.pool.kv_cache
        kv: PagedKV = self.allocator.build(self.num_blocks, config.block_size, config.prefix_caching)
        foresee = getattr(kv.policy, "foresee", None) if isinstance(kv, EvictingKV) else None
        if foresee is not None:
            if self.next_use is None:
                self.next_use = next_uses(self._content_spans(columns), columns.workload.num_prompt_tokens.tolist())
            foresee(self.next_use)
        return kv

    def _give_host_memory(self, replica: Replica, fabric: Fabric | None) -> None:
        """Swap space and the way to decide who goes there, where preemption swaps."""
        num_bytes = self.host_block
        if num_bytes is None or fabric is None:
            return
        blocks, bandwidth = int(self.pool.preemption.swap_space * GIB) // num_bytes, self.pool.preemption.host_bandwidth
        private = None if bandwidth is None else PrivatePort(num_bytes / bandwidth)
        replica.host = HostMemory(blocks, private or FabricPort(fabric, replica.index, num_bytes * replica.num_gpus))
        replica.swaps = CheaperWay(replica) if self.pool.preemption.mode == "auto" else lambda seq: True

    def _host_block(self) -> int | None:
        """Bytes of a block on one GPU; None without swapping."""
        preemption, pool = self.pool.preemption, self.pool
        if preemption.mode == "recompute":
            return None
        if pool.speculation is not None:
            raise InputError(f"mode {preemption.mode} with speculation is not modelled; allowed: recompute")
        dtype = pool.kv_cache.dtype
        per_token = self.model.kv_bytes_per_token(pool.tensor_parallel, pool.pipeline_parallel, dtype)
        return per_token * pool.kv_cache.block_size
