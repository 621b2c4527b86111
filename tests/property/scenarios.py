"""Random scenarios of a few replicas and requests: plain values that print as they can be pasted, and how to
run them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

import policies
from sim.clock import Clock
from sim.cluster import Cluster
from sim.cost import build_cost_model
from sim.cost.base import CostModel
from sim.cost.constant import ConstantCost
from sim.engine import EndFunction, Simulation
from sim.fabric import Fabric
from sim.hardware import load_gpu
from sim.kv.host import HostMemory, HostPort, PrivatePort
from sim.model import load_model
from sim.network import Crossing, Link, Network, Route
from sim.pools import Pools
from sim.replica import Limits, Replica
from sim.result import RunResult
from sim.routing import RoutingSettings
from sim.seeds import Seeds
from sim.swapping import FabricPort
from sim.units import array_to_grid, to_grid
from sim.workload.base import ClosedLoop, Ragged, Workload
from sim.workload.columns import Columns

EXAMPLES = int(os.environ.get("SERVESIM_PROPERTY_EXAMPLES", "0"))
UNIQUE = 1_000_000  # tokens of one request alone start at UNIQUE * (row + 1)


def examples(number: int) -> settings:
    """`number` reproducible examples; as many random ones as SERVESIM_PROPERTY_EXAMPLES says where it is set.

    Only then is a failure made smaller, which can take minutes.
    """
    phases = [Phase.explicit, Phase.generate, *([Phase.shrink] if EXAMPLES else [])]
    return settings(
        phases=phases,
        max_examples=EXAMPLES or number,
        deadline=None,
        derandomize=not EXAMPLES,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


@dataclass(frozen=True)
class Row:
    """One request. Times in units of the scenario (about one step), tokens otherwise."""

    gap: float = 0.0  # since the row before
    prompt: int = 1  # own tokens; those of the row it follows come in front
    output: int = 1
    surplus: int = 0  # declared minus true output
    priority: int = 0
    cancel_after: float | None = None
    stream: int = 0  # whose tokens the prompt begins with
    shared: int = 0  # how many of them
    tenant: int = 0
    adapter: int = 0  # 0: none
    follows: int = 0  # the turn before this one is so many rows earlier (0: none)
    delay: float = 0.0


@dataclass(frozen=True)
class Scenario:
    """A workload and a cluster. `cost` is a name of `COSTS`, which also says how long a unit of time is."""

    rows: tuple[Row, ...]
    cost: str = "quarter"
    start: float = 0.0  # seconds before the first arrival
    concurrency: int = 0  # closed loop with so many users, think times are the gaps; 0: open
    hashed: bool = False
    hash_block_size: int = 4
    outputs_hashed: bool = False
    equal_outputs: bool = False
    num_replicas: int = 1
    num_blocks: int = 64
    block_size: int = 4
    prefix_caching: bool = True
    max_num_seqs: int = 4
    max_num_batched_tokens: int = 16
    max_model_len: int = 10_000
    depth: int = 2
    chunked_prefill: bool = True
    reserve_full_isl: bool = True
    watermark_blocks: int = 0
    long_prefill_token_threshold: int = 0
    scheduler: str = "fcfs"
    params: tuple[tuple[str, Any], ...] = ()  # of the scheduler
    allocator: str = "paged"
    context_shift: bool = False  # of slots
    host_blocks: int = 0  # of swap space; 0: preempted sequences are recomputed
    shared_host: bool = False  # one link to host memory for all replicas
    preemption: str = "newest"
    router: str = "round_robin"
    admission: str = "always"
    timeline_interval: float | None = None  # units
    client_timeout: float | None = None  # units
    snapshot_interval: float = 0.0  # units; 0: the router sees live loads
    count_sent: bool = False
    event_delay: float = 0.0  # units
    log_routing: bool = False

    @property
    def unit(self) -> float:
        """Seconds of one unit of time."""
        return COSTS[self.cost][0]


@cache
def cost_model(name: str) -> CostModel:
    """The cost model that a scenario names."""
    return COSTS[name][1]()


def _roofline() -> CostModel:
    gpu = load_gpu("h100-sxm")
    return build_cost_model(
        "roofline", {}, model=load_model("llama-3.1-8b"), gpu=gpu, max_num_seqs=64, max_num_batched_tokens=1024
    )


COSTS: dict[str, tuple[float, Callable[[], CostModel]]] = {
    "second": (1.0, lambda: ConstantCost(1.0)),
    "quarter": (0.25, lambda: ConstantCost(0.25)),
    "dyadic": (0.25, lambda: ConstantCost(0.25, per_prefill_token=2.0**-7, per_sequence=2.0**-5)),
    "context": (0.25, lambda: ConstantCost(0.25, per_context_token=2.0**-9)),
    "hundredth": (0.01, lambda: ConstantCost(0.01)),
    "uneven": (0.0123, lambda: ConstantCost(0.0123, 1.1e-4, 3.7e-4, 1.3e-6)),
    "roofline": (0.0075, _roofline),
}
DYADIC_COSTS = ("second", "quarter", "dyadic", "context")


# --- from a scenario to a simulation ----------------------------------------------------------------------------------


def make_simulation(
    scenario: Scenario,
    step_by_step: bool = False,
    step_log: bool = False,
    make_pools: Callable[[Cluster, EndFunction], Pools] | None = None,
) -> Simulation:
    """Everything built from the registries, as `sim/build.py` does."""
    timeout, interval, unit = scenario.client_timeout, scenario.timeline_interval, scenario.unit

    def make_replicas(clock: Clock, on_end: EndFunction, columns: Columns) -> list[Replica]:
        replicas = [
            _replica(scenario, i, clock, on_end, columns, step_by_step, step_log) for i in range(scenario.num_replicas)
        ]
        if scenario.host_blocks:
            _give_host_memory(scenario, clock, replicas)
        return replicas

    return Simulation(
        make_workload(scenario),
        make_replicas,
        make_policy("router", scenario.router),
        make_policy("admission", scenario.admission, max_outstanding=3),
        timeline_interval=None if interval is None else interval * unit,
        client_timeout=None if timeout is None else timeout * unit,
        make_pools=make_pools,
        routing=RoutingSettings(
            scenario.snapshot_interval * unit, scenario.count_sent, scenario.event_delay * unit, scenario.log_routing
        ),
    )


def simulate(scenario: Scenario, step_by_step: bool = False, step_log: bool = False) -> RunResult:
    """Build and run."""
    return make_simulation(scenario, step_by_step, step_log).run()


def make_policy(kind: str, name: str, index: int = 0, **params: Any) -> Any:
    """A fresh policy; parameters that the class does not have are left out."""
    known = {parameter.name for parameter in policies.parameters(policies.find(kind, name))}
    given = {key: value for key, value in params.items() if key in known}
    return policies.make(kind, name, given, "test", rng=Seeds(3).generator(kind, index))


def _replica(
    scenario: Scenario,
    index: int,
    clock: Clock,
    on_end: EndFunction,
    columns: Columns,
    step_by_step: bool,
    step_log: bool,
) -> Replica:
    cap = scenario.long_prefill_token_threshold
    allocator = make_policy("block_allocator", scenario.allocator, context_shift=scenario.context_shift)
    replica = Replica(
        index,
        clock,
        make_policy("scheduler", scenario.scheduler, index, long_prefill_token_threshold=cap, **dict(scenario.params)),
        make_policy("preemption", scenario.preemption, index),
        allocator.build(scenario.num_blocks, scenario.block_size, scenario.prefix_caching),
        cost_model(scenario.cost),
        limits_of(scenario),
        on_end,
        columns.content_spans,
        name=f"main-{index}",
        step_by_step=step_by_step,
        step_log=step_log,
    )
    replica.empty_call_duration = scenario.unit
    return replica


def _give_host_memory(scenario: Scenario, clock: Clock, replicas: list[Replica]) -> None:
    link = OneHostLink(clock)
    for replica in replicas:
        port: HostPort = PrivatePort(scenario.unit / 16)
        if scenario.shared_host:
            port = FabricPort(link, replica.index, scenario.unit / 16)
        replica.host = HostMemory(scenario.host_blocks, port)
        replica.swaps = lambda seq: seq.row % 3 > 0  # some come back from the host, some are recomputed


class OneHostLink(Fabric):
    """Copies of all replicas over one link of a byte a second, whatever the direction."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.network = clock, Network(clock)
        self._route = Route((Crossing(Link("host", 1.0)),))

    def host_route(self, replica: int, to_host: bool) -> Route:
        return self._route


def limits_of(scenario: Scenario) -> Limits:
    """An engine that does not chunk has a budget of at least its longest sequence, as vLLM demands at its start."""
    budget, longest = scenario.max_num_batched_tokens, scenario.max_model_len
    if not scenario.chunked_prefill:
        budget = longest = max(budget, min(longest, (scenario.num_blocks - 1) * scenario.block_size))
    return Limits(
        max_num_seqs=scenario.max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=longest,
        depth=scenario.depth,
        chunked_prefill=scenario.chunked_prefill,
        reserve_full_isl=scenario.reserve_full_isl,
        watermark_blocks=scenario.watermark_blocks,
    )


def make_workload(scenario: Scenario) -> Workload:
    """The rows as columns; instants on the time grid."""
    rows, unit = scenario.rows, scenario.unit
    gaps = array_to_grid(np.array([row.gap * unit for row in rows]))
    prompts, outputs = tokens_of(scenario)
    previous = np.array([i - row.follows if row.follows else -1 for i, row in enumerate(rows)])
    ids = chained_ids(prompts, outputs, scenario.hash_block_size) if scenario.hashed else None
    loop = scenario.concurrency
    return Workload(
        arrival_time=np.cumsum(gaps) + to_grid(scenario.start),
        num_prompt_tokens=np.array([len(prompt) for prompt in prompts]),
        num_output_tokens=np.array([row.output for row in rows]),
        max_output_tokens=np.array([max(1, row.output + row.surplus) for row in rows]),
        priority=np.array([row.priority for row in rows]),
        tenant=[f"tenant-{row.tenant}" for row in rows],
        request_class=[f"class-{row.tenant}" for row in rows],
        adapter=[f"adapter-{row.adapter}" if row.adapter else None for row in rows],  # type: ignore[misc]
        cancel_after=np.array([np.nan if row.cancel_after is None else row.cancel_after * unit for row in rows]),
        previous=None if loop else previous,
        session_id=sessions_of(rows),
        delay=array_to_grid(np.array([row.delay * unit for row in rows])),
        hash_ids=ids[0] if ids else None,
        output_hash_ids=ids[1] if ids and scenario.outputs_hashed else None,
        hash_block_size=scenario.hash_block_size,
        closed_loop=ClosedLoop(loop, gaps) if loop else None,
    )


def sessions_of(rows: tuple[Row, ...]) -> list[int]:
    """The row with which the conversation of each row began."""
    found: list[int] = []
    for i, row in enumerate(rows):
        found.append(found[i - row.follows] if row.follows else i)
    return found


def tokens_of(scenario: Scenario) -> tuple[list[list[int]], list[list[int]]]:
    """Prompt and output tokens of every row."""
    prompts: list[list[int]] = []
    outputs: list[list[int]] = []
    for i, row in enumerate(scenario.rows):
        own = UNIQUE * (i + 1)
        head = prompts[i - row.follows] + outputs[i - row.follows] if row.follows else []
        shared = min(row.shared, row.prompt)
        stream = [1000 * (row.stream + 1) + k for k in range(shared)]
        prompts.append(head + stream + [own + k for k in range(row.prompt - shared)])
        outputs.append([7 if scenario.equal_outputs else own + UNIQUE // 2 + k for k in range(row.output)])
    return prompts, outputs


def chained_ids(prompts: list[list[int]], outputs: list[list[int]], size: int) -> tuple[Ragged, Ragged]:
    """Ids of prompt blocks, a partial last one included, and of the full blocks that follow in prompt + output."""
    known: dict[tuple[int, ...], int] = {}

    def ids(tokens: list[int], first: int, last: int) -> list[int]:
        parent, found = -1, []
        for start in range(0, last, size):
            parent = known.setdefault((parent, *tokens[start : min(start + size, last)]), len(known))
            found.append(parent)
        return found[first:]

    prompt_ids = [ids(prompt, 0, len(prompt)) for prompt in prompts]
    output_ids = [
        ids(prompt + output, len(prompt) // size, (len(prompt) + len(output)) // size * size)
        for prompt, output in zip(prompts, outputs, strict=True)
    ]
    return ragged(prompt_ids), ragged(output_ids)


def ragged(rows: list[list[int]]) -> Ragged:
    """Lists as one `Ragged`."""
    values = np.array([value for row in rows for value in row], dtype=np.int64)
    return Ragged(values, np.cumsum([0, *map(len, rows)]))


# --- strategies -------------------------------------------------------------------------------------------------------

_instants = st.sampled_from([0.0, 0.0, 0.0, 1.0, 2.0, 0.5, 5.0]) | st.floats(0.0, 12.0)
_patience = st.none() | st.sampled_from([0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 9.0, 0.5]) | st.floats(0.0, 30.0)
_lengths = st.sampled_from([1, 2, 3, 4, 8, 16]) | st.integers(1, 40)


@st.composite
def _rows(draw: st.DrawFn, max_rows: int) -> tuple[Row, ...]:
    """Rows of one temper: cancellations, sessions, priorities, shared prompts each all over or not at all."""
    cancels, turns, ranks, shares = (draw(st.booleans()) for _ in range(4))
    rows: list[Row] = []
    free: set[int] = set()  # rows that no other follows yet
    for i in range(draw(st.integers(1, max_rows))):
        row = Row(
            gap=draw(_instants),
            prompt=draw(_lengths),
            output=draw(_lengths),
            surplus=draw(st.sampled_from([0, 0, 0, 5, -2])),
            priority=draw(st.integers(0, 2)) if ranks else 0,
            tenant=draw(st.integers(0, 2)) if ranks else 0,
            adapter=draw(st.sampled_from([0, 0, 1, 2])) if ranks else 0,
            cancel_after=draw(_patience) if cancels else None,
            stream=draw(st.integers(0, 1)) if shares else 0,
            shared=draw(_lengths) if shares else 0,
        )
        if turns and free and draw(st.booleans()):
            parent = draw(st.sampled_from(sorted(free)))
            free.discard(parent)
            row = replace(row, follows=i - parent, delay=draw(_instants), prompt=min(row.prompt, 12))
        rows.append(row)
        free.add(i)
    return tuple(rows)


@dataclass(frozen=True)
class Space:
    """Which scenarios to draw; a policy given is always used."""

    max_rows: int = 10
    costs: tuple[str, ...] = tuple(COSTS)
    num_replicas: tuple[int, ...] = (1,)
    policies: dict[str, str] = field(default_factory=dict)
    allocators: bool = True  # any; otherwise the paged one
    allocator: str | None = None  # this one
    timeline: bool = True


@st.composite
def scenarios(draw: st.DrawFn, space: Space) -> Scenario:
    """Scenarios with memory so small that preemption, eviction and refusal are everyday events."""
    rows = draw(_rows(space.max_rows))
    pick: Callable[..., Any] = lambda *choices: draw(st.sampled_from(choices))  # noqa: E731
    block_size = pick(1, 3, 4, 16)
    longest = max(row.prompt + row.output for row in rows)
    blocks = -(-longest // block_size)
    timeline = pick(None, 1.0, 0.37) if space.timeline else None
    names = {kind: space.policies.get(kind) or pick(*sorted(policies.table(kind))) for kind in POLICY_KINDS}
    allocators = ("paged", "paged", *sorted(policies.table("block_allocator"))) if space.allocators else ("paged",)
    choices = SCHEDULER_PARAMS.get(names["scheduler"], {})
    scenario = Scenario(
        rows=rows,
        params=tuple((key, pick(*values)) for key, values in choices.items()),
        allocator=space.allocator or pick(*allocators),
        host_blocks=pick(0, 0, 0, 2, 40),
        shared_host=pick(False, True),
        cost=pick(*space.costs),
        start=pick(0.0, 100_000.3) if timeline is None else 0.0,
        concurrency=pick(0, 0, 0, 1, 3),
        hashed=pick(True, True, False),
        hash_block_size=pick(1, 4, 6, 16),
        outputs_hashed=pick(True, False),
        equal_outputs=pick(True, False),
        num_replicas=pick(*space.num_replicas),
        num_blocks=1 + blocks + pick(0, 0, 1, 2, blocks, 5 * blocks),
        block_size=block_size,
        prefix_caching=pick(True, True, False),
        max_num_seqs=pick(1, 2, 3, 8),
        max_num_batched_tokens=pick(8, 8, 16, 32, 200),
        max_model_len=pick(10_000, 10_000, longest, 30),
        depth=pick(1, 2),
        chunked_prefill=pick(True, True, True, False),
        reserve_full_isl=pick(True, False),
        watermark_blocks=pick(0, 0, 1, 3),
        long_prefill_token_threshold=pick(0, 0, 3, 8),
        timeline_interval=timeline,
        client_timeout=pick(None, None, 3.0, 9.3, 40.0),
        **names,
    )
    scenario = replace(scenario, **ENGINES.get(scenario.scheduler, {}))
    if scenario.allocator == "slots":  # a quarter of the memory each
        shift = scenario.scheduler == "llama_server" and blocks * block_size >= 3 and pick(True, False)
        return replace(scenario, num_blocks=4 * (scenario.num_blocks - 1) + 1, context_shift=shift)
    return scenario


# What schedulers of other engines are drawn with, and what they take for granted. A new one is drawn with its defaults.
WHOLE_PROMPTS = {"depth": 1, "chunked_prefill": False}
RESERVATIONS = ("max", "pow2", "oracle", "allocator")
RESTARTS = (False, False, True)
SCHEDULER_PARAMS: dict[str, dict[str, tuple[Any, ...]]] = {
    "sglang": {
        "queue_policy": ("fcfs", "lof"),
        "mixed_chunk": (False, True),
        "chunked_prefill_size": (48, 96, 0),  # whole pages of every size, as the engine demands
        "max_prefill_tokens": (16, 64),
    },
    "vllm_v0": {
        "queue_policy": ("fcfs", "fcfs", "priority"),
        "idle_after_drop": (False, False, True),
        "output_count_restarts": RESTARTS,
    },
    "sarathi": {
        "dynamic_chunk_stages": (0, 0, 3),
        "dynamic_chunk_max_tokens": (32,),
        "output_count_restarts": RESTARTS,
    },
    "simple_chunking": {"output_count_restarts": RESTARTS},
    "orca": {"reservation": RESERVATIONS},
    "static": {"reservation": RESERVATIONS, "padded": (True, False)},
    "iteration_level": {"high_water": (1.0, 0.8), "low_water": (0.8, 0.5)},
    "trtllm": {
        "capacity": ("guaranteed_no_evict", "max_utilization", "static_batch"),
        "chunking": ("first_come_first_served", "equal_progress"),
        "chunk_unit": (4, 8),
    },
    "sorted": {
        "key": ("fcfs", "priority", "sjf", "srpt", "edf", "least_slack"),
        "deadline": (1.0,),
        "max_wait": (None, 2.0),
    },
    "mlfq": {"quantum": (2, 4), "num_levels": (2, 3), "prompt_tokens_per_step": (8,)},
    "drr": {"quantum": (8, 64)},
}
ENGINES: dict[str, dict[str, Any]] = {
    "sglang": {"depth": 1, "reserve_full_isl": False, "max_num_batched_tokens": 10_000, "host_blocks": 0},
    "vllm_v0": {"depth": 1},
    "sarathi": {"depth": 1},
    "simple_chunking": {"depth": 1},
    "orca": WHOLE_PROMPTS,
    "static": WHOLE_PROMPTS,
    "iteration_level": WHOLE_PROMPTS,
    "distserve": WHOLE_PROMPTS,
    "trtllm": {"depth": 1},
    "llama_server": {"depth": 1},
}

POLICY_KINDS = ("scheduler", "preemption", "router", "admission")
