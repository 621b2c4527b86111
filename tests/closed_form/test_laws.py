"""Laws that hold without a formula for the distribution: Little's, and what scaling and renaming may not change."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from scenarios import (
    COSTS,
    DYADIC_COSTS,
    Row,
    Scenario,
    Space,
    cost_model,
    examples,
    make_simulation,
    scenarios,
    simulate,
)

from policies.router import ROUTERS
from sim.cost.base import BatchShape, CostModel
from sim.measured import measure
from sim.metrics import requests_frame
from sim.result import RunResult, Status

if TYPE_CHECKING:
    from sim.units import FloatArray


def random_rows(seed: int, number: int, load: float) -> tuple[Row, ...]:
    """Requests of 1 to 40 prompt and 1 to 30 output tokens, on quarters of a step, `load` a step."""
    random = np.random.default_rng(seed)
    gaps = np.round(4 * random.exponential(1 / load, number)) / 4
    prompts, outputs = random.integers(1, 41, number), random.integers(1, 31, number)
    return tuple(
        Row(gap=float(g), prompt=int(p), output=int(o)) for g, p, o in zip(gaps, prompts, outputs, strict=True)
    )


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("step_by_step", [True, False])
def test_littles_law_exactly(depth: int, step_by_step: bool) -> None:
    """The time integral of the requests in the system, from the timeline, is the sum of the times they spent there.

    All instants are multiples of 1/16 s, so samples at odd multiples of 1/32 s give the integral without error.
    """
    scenario = Scenario(
        rows=random_rows(1, 150, load=0.3), depth=depth, num_blocks=30, num_replicas=2, timeline_interval=0.125
    )
    simulation = make_simulation(scenario, step_by_step)
    result = simulation.run()
    timeline = result.timeline
    assert timeline is not None
    between = np.round(timeline["time"] * 32).astype(int) % 2 == 1
    integral = (timeline["waiting"] + timeline["running"])[between].sum() / 16
    requests = result.requests
    assert integral == (requests["finish_time"] - requests["arrival_time"]).sum()
    assert (timeline["waiting"] > 0).mean() > 0.1  # queues were seen


@pytest.mark.parametrize("depth", [1, 2])
def test_the_timeline_integrates_to_the_replica_totals(depth: int) -> None:
    """Sampled used blocks and busy time against the totals of the replica, on the same lattice, fast-forwarded."""
    scenario = Scenario(rows=random_rows(2, 120, load=0.12), depth=depth, num_blocks=30, timeline_interval=0.125)
    result = simulate(scenario)
    timeline = result.timeline
    assert timeline is not None
    between = np.round(timeline["time"] * 32).astype(int) % 2 == 1
    assert timeline["used_blocks"][between].sum() / 16 == result.replicas[0].used_block_seconds
    busy = timeline["batch_tokens"][between] > 0
    assert busy.sum() / 16 == result.replicas[0].busy_time
    assert timeline["num_preemptions"][-1] == result.replicas[0].num_preemptions > 0
    total = timeline["used_blocks"] + timeline["cached_blocks"] + timeline["free_blocks"]
    assert set(total.tolist()) == {29}


# --- scaling ----------------------------------------------------------------------------------------------------------

TIMES = ("arrival_time", "admission_time", "first_scheduled_time", "first_token_time", "finish_time")
DURATIONS = ("preempted_duration", "preempted_before_first_token", "interference_duration")


@dataclasses.dataclass(frozen=True)
class Slower:
    """Twice the time of another cost model."""

    cost: CostModel

    def step_time(self, shape: BatchShape) -> float:
        return 2 * self.cost.step_time(shape)

    def decode_times(self, num_sequences: int, context: int, max_context: int, num_steps: int) -> FloatArray:
        return 2 * self.cost.decode_times(num_sequences, context, max_context, num_steps)


@pytest.fixture
def slower_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """For every dyadic cost model a twin `slow-NAME` that takes twice as long, in a unit twice as long."""
    for name in DYADIC_COSTS:
        unit = COSTS[name][0]
        monkeypatch.setitem(COSTS, f"slow-{name}", (2 * unit, partial(Slower, cost_model(name))))


@pytest.mark.usefixtures("slower_costs")
def test_twice_the_time_gives_twice_every_time() -> None:
    """Arrivals, patience, think times and steps doubled: every instant and integral doubles, every count stays."""

    @examples(60)
    @given(scenarios(Space(costs=DYADIC_COSTS, num_replicas=(1, 2))))
    def check(scenario: Scenario) -> None:
        scenario = dataclasses.replace(on_grid(scenario), start=0.0)
        assert_doubled(simulate(scenario), simulate(dataclasses.replace(scenario, cost=f"slow-{scenario.cost}")))

    check()


def on_grid(scenario: Scenario) -> Scenario:
    """Times as multiples of 1/1024 of a unit, so that rounding to the grid changes neither run."""

    def near(units: float) -> float:
        return round(1024 * units) / 1024

    rows = tuple(
        dataclasses.replace(
            row,
            gap=near(row.gap),
            delay=near(row.delay),
            cancel_after=None if row.cancel_after is None else near(row.cancel_after),
        )
        for row in scenario.rows
    )
    timeout, interval = scenario.client_timeout, scenario.timeline_interval
    return dataclasses.replace(
        scenario,
        rows=rows,
        client_timeout=None if timeout is None else near(timeout),
        timeline_interval=None if interval is None else near(interval),
    )


def assert_doubled(once: RunResult, twice: RunResult) -> None:
    for name, column in once.requests.items():
        factor = 2 if name in (*TIMES, *DURATIONS, "saved_prefill_seconds") else 1
        if column.dtype == object:
            assert column.tolist() == twice.requests[name].tolist()
        else:
            np.testing.assert_array_equal(factor * column, twice.requests[name], err_msg=name)
    for a, b in zip(once.replicas, twice.replicas, strict=True):
        assert 2 * a.busy_time == b.busy_time
        assert 2 * a.used_block_seconds == b.used_block_seconds
        assert 2 * a.filled_token_seconds == b.filled_token_seconds
        assert (a.num_steps, a.num_tokens, a.num_preemptions) == (b.num_steps, b.num_tokens, b.num_preemptions)


# --- renaming ---------------------------------------------------------------------------------------------------------


@examples(30)
@given(scenarios(Space(num_replicas=(1, 2), timeline=False)))
def test_names_of_requests_decide_nothing(scenario: Scenario) -> None:
    """Other request, session and tenant names: the same table but for these columns."""
    plain, named = make_simulation(scenario), make_simulation(scenario)
    size = len(scenario.rows)
    renamed = dataclasses.replace(
        named.workload, request_id=[f"r{size - i}" for i in range(size)], session_id=[f"s{i % 3}" for i in range(size)]
    )
    named.workload = renamed
    frames = [requests_frame(s.run(), s.workload, None) for s in (plain, named)]
    assert frames[0]["request_id"].tolist() != frames[1]["request_id"].tolist()
    names = ["request_id", "session_id"]
    assert frames[0].drop(columns=names).equals(frames[1].drop(columns=names))


# --- monotony ---------------------------------------------------------------------------------------------------------


# Memory in use says nothing of who waits: with 8 replicas one of them may get most of a burst.
BLIND_TO_QUEUES = ("least_kv_usage",)


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("seed", range(3))
def test_more_replicas_never_lower_the_throughput(router: str, seed: int) -> None:
    """A burst of 120 requests on 1, 2, 4 and 8 replicas: all finish, never later. A stated set, not a theorem."""
    rows = random_rows(10 + seed, 120, load=8.0)
    ends = []
    for num_replicas in (1, 2, 4, 8):
        result = simulate(Scenario(rows=rows, cost="uneven", router=router, num_replicas=num_replicas, num_blocks=40))
        assert (result.requests["status"] == Status.FINISHED).all()
        ends.append(result.end_time)
    if router in BLIND_TO_QUEUES:
        assert ends[-1] < ends[0] / 2
        return
    assert ends == sorted(ends, reverse=True)
    assert ends[-1] < ends[0] / 3


@pytest.mark.parametrize("seed", range(3))
def test_more_memory_never_lowers_the_throughput(seed: int) -> None:
    """The same burst with 20, 40, 80 and 1000 blocks, no prefixes: fewer preemptions, never later."""
    rows = random_rows(20 + seed, 120, load=8.0)
    ends, preemptions = [], []
    for blocks in (20, 40, 80, 1000):
        result = simulate(Scenario(rows=rows, cost="uneven", num_blocks=blocks, max_num_seqs=16))
        ends.append(result.end_time)
        preemptions.append(result.replicas[0].num_preemptions)
    assert ends == sorted(ends, reverse=True)
    assert preemptions[0] > 0
    assert preemptions[-1] == 0


@pytest.mark.parametrize("cost", ["uneven", "roofline"])
def test_a_lone_request_is_the_sum_of_its_steps(cost: str) -> None:
    """End to end = the cost model's time for its prefill and for each decode with one more token of context."""
    scenario = Scenario(rows=(Row(prompt=50, output=20),), cost=cost, max_num_batched_tokens=64)
    simulation = make_simulation(scenario)
    result = simulation.run()
    model = cost_model(cost)
    times = [model.step_time(BatchShape(50, 1, 50 * 51 // 2, 50, 0, 0, 50))]
    times += [model.step_time(BatchShape(0, 0, 0, 0, 1, context, context)) for context in range(51, 70)]
    columns = measure(result, simulation.workload, None).columns
    assert columns["e2e"][0] == pytest.approx(sum(times), abs=20 * 2**-30)
    assert columns["ttft"][0] == pytest.approx(times[0], abs=2**-30)
    assert columns["max_itl"][0] == pytest.approx(max(times[1:]), abs=2**-30)
