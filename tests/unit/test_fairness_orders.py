"""Orders of the waiting queue, shares of tenants, and bounds on starvation."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from engine_runs import build_rows, run_rows

from policies.scheduler.drr import Drr
from policies.scheduler.mlfq import Mlfq
from policies.scheduler.sorted import Sorted
from policies.scheduler.vtc import Vtc
from policies.scheduler.wfq import Wfq
from sim.result import RunResult
from sim.workload.base import Ragged


def order_of_service(result: RunResult) -> list[int]:
    """Rows by the start of their first batch."""
    started = result.requests["first_scheduled_time"]
    return sorted(range(len(started)), key=lambda row: (started[row], row))


@pytest.mark.parametrize(
    ("scheduler", "order"),
    [
        (Sorted(), [0, 1, 2, 3]),
        (Sorted(key="priority"), [0, 2, 1, 3]),
        (Sorted(key="sjf"), [0, 3, 1, 2]),
        (Sorted(key="edf", deadline=100.0, class_deadlines={"chat": 1.0}), [0, 2, 1, 3]),
        (Sorted(key="least_slack", deadline=100.0, seconds_per_output_token=1.0), [0, 2, 1, 3]),
    ],
    ids=lambda value: value.key if isinstance(value, Sorted) else "",
)
def test_each_key_orders_the_queue(scheduler: Sorted, order: list[int]) -> None:
    """One slot; row 0 holds it while three wait: outputs 20, 30 (priority -1, class chat), 10."""
    result = run_rows(
        [(4, 5), (4, 20), (4, 30), (4, 10)],
        num_seqs=1,
        scheduler=scheduler,
        arrivals=[0.0, 1.0, 1.0, 1.0],
        priority=[0, 0, -1, 0],
        request_class=np.array([None, None, "chat", None], dtype=object),
    )
    assert order_of_service(result) == order


def test_srpt_counts_what_is_left_after_a_preemption() -> None:
    """Key by key: 30 declared, 25 generated before it lost its memory: 5 to come, ahead of one with 10."""
    scheduler = Sorted(key="srpt")
    simulation = build_rows([(4, 30), (4, 10)], scheduler=scheduler)
    first, second = (simulation.columns.sequence(row, 0.0) for row in (0, 1))
    assert scheduler.queue_key(first) == (30,)
    first.num_known = first.num_prompt_tokens + 25
    assert scheduler.queue_key(first) < scheduler.queue_key(second)  # type: ignore[operator]


def test_longest_cached_prefix_goes_first() -> None:
    """Row 0 leaves 32 tokens in the cache that row 3 begins with; rows 1 and 2 came before it."""
    ids = [[1, 2], [3, 4], [5, 6], [1, 2, 7]]
    hashes = Ragged(np.array([x for row in ids for x in row]), np.cumsum([0, *map(len, ids)]))
    options: dict[str, Any] = {"num_seqs": 1, "arrivals": [0.0, 1.0, 1.0, 1.0], "prefix_caching": True}
    rows = [(32, 4), (32, 4), (32, 4), (48, 4)]

    def run(key: Any) -> RunResult:
        return run_rows(rows, scheduler=Sorted(key=key), hash_ids=hashes, hash_block_size=16, **options)

    assert order_of_service(run("lpm")) == [0, 3, 1, 2]
    assert order_of_service(run("fcfs")) == [0, 1, 2, 3]


def stream(num_short: int) -> tuple[list[tuple[int, int]], list[float]]:
    """A long request among short ones that keep coming while it waits."""
    rows = [(4, 3), (4, 50), *[(4, 3)] * num_short]
    return rows, [0.0, 0.5, *[1.0 + 2 * i for i in range(num_short)]]


def test_without_a_bound_shortest_first_starves_the_long_request() -> None:
    rows, arrivals = stream(100)
    result = run_rows(rows, num_seqs=1, scheduler=Sorted(key="sjf"), arrivals=arrivals)
    assert result.requests["first_scheduled_time"][1] > 200.0


def test_nobody_overtakes_a_request_that_has_waited_max_wait() -> None:
    rows, arrivals = stream(100)
    result = run_rows(rows, num_seqs=1, scheduler=Sorted(key="sjf", max_wait=20.0), arrivals=arrivals)
    started = result.requests["first_scheduled_time"]
    assert 20.5 <= started[1] <= 20.5 + 3.0  # it expires at 20.5; the request in service then takes three steps at most
    overtaken = [row for row in range(2, len(rows)) if started[row] < started[1]]
    assert all(started[row] < 20.5 for row in overtaken)


def test_ageing_lets_a_request_outrank_later_ones_of_better_priority() -> None:
    """Priority 2 with 10 s a level: overtaken only by requests of priority 0 that arrive less than 20 s after it."""
    rows, arrivals = [(4, 5), (4, 3), *[(4, 3)] * 40], [0.0, 0.5, *[1.0 + 2 * i for i in range(40)]]
    priority = [0, 2, *[0] * 40]
    result = run_rows(
        rows, num_seqs=1, scheduler=Sorted(key="priority", ageing=10.0), arrivals=arrivals, priority=priority
    )
    started = result.requests["first_scheduled_time"]
    overtakers = [row for row in range(2, 42) if started[row] < started[1]]
    assert overtakers
    assert max(arrivals[row] for row in overtakers) < 0.5 + 20.0
    strict = run_rows(rows, num_seqs=1, scheduler=Sorted(key="priority"), arrivals=arrivals, priority=priority)
    assert strict.requests["first_scheduled_time"][1] > 100.0


def test_mlfq_lets_short_requests_pass_a_long_one() -> None:
    """One slot, quantum 4. The long one sinks a level after 4 and 12 tokens and gives way to whoever comes."""
    rows, arrivals = [(4, 60), (4, 3), (4, 3)], [0.0, 6.0, 14.0]
    result = run_rows(rows, num_seqs=1, scheduler=Mlfq(quantum=4), arrivals=arrivals)
    finish = result.requests["finish_time"]
    assert finish[1] <= 6.0 + 4.0
    assert finish[2] <= 14.0 + 5.0
    assert result.requests["num_preemptions"].tolist() == [2, 0, 0]
    plain = run_rows(rows, num_seqs=1, arrivals=arrivals)
    assert plain.requests["finish_time"][1] > 60.0


def test_mlfq_levels_by_hand() -> None:
    """Quanta 4, 8, 16: level 0 up to 4 tokens, 1 up to 12, 2 beyond; a prompt of 3 x 512 x 4 tokens joins level 2."""
    mlfq = Mlfq(quantum=4, num_levels=3)
    assert [mlfq.level(10, emitted) for emitted in (0, 3, 4, 11, 12, 500)] == [0, 0, 1, 1, 2, 2]
    assert mlfq.level(3 * 512 * 4, 0) == 2


# --- tenants ------------------------------------------------------------------------------------------------------


def tenants(names: str) -> Any:
    return np.array(list(names), dtype=object)


def test_vtc_alternates_by_service_after_a_lift() -> None:
    """EX-VTC2 with the first output token free and one output each: A 100, B 300, A 100 cost 100, 300 and 100.

    All wait behind one slot, counters level: A first (it began to wait first), then B (0 < 100), then A.
    """
    rows = [(1, 1), (100, 1), (100, 1), (300, 1)]
    result = run_rows(
        rows, num_seqs=1, budget=1000, scheduler=Vtc(), arrivals=[0.0, 0.5, 0.5, 0.5], tenant=tenants("ZAAB")
    )
    assert order_of_service(result) == [0, 1, 3, 2]


def test_vtc_lifts_a_tenant_that_comes_late() -> None:
    """EX-VTC1: B joins when A has had 500: it is lifted to 500, and not served until it has had as much."""
    vtc = Vtc()
    vtc.service.prompt = {"A": 500}
    vtc._seen = {"A": 0}
    vtc._lift_newcomers({"A": 0, "B": 1})
    assert (vtc.counter("A"), vtc.counter("B")) == (500.0, 500.0)
    alone = Vtc()
    alone.service.prompt = {"A": 500}
    alone._lift_newcomers({"C": 0})  # nobody else is waiting
    assert alone.counter("C") == 0.0


def backlog(scheduler: Any, **options: Any) -> tuple[RunResult, dict[str, float]]:
    """Two tenants, A sends twice as much as B and all of it at once; weighted service up to 1,500 s."""
    draw = random.Random(3)
    names = "AAB" * 100
    rows = [(draw.randint(20, 60), draw.randint(20, 60)) for _ in names]
    result = run_rows(rows, num_seqs=4, scheduler=scheduler, tenant=tenants(names), **options)
    served = {"A": 0.0, "B": 0.0}
    for row, name in enumerate(names):
        if result.requests["finish_time"][row] <= 1500.0:
            served[name] += rows[row][0] + 2 * (rows[row][1] - 1)
    return result, served


def test_vtc_keeps_the_gap_between_backlogged_tenants_below_its_bound() -> None:
    """Bound: 2 x max(1 x 60, 2 x M), M = tokens that 4 slots can hold: here 4 x 120 tokens at most in service."""
    _, fair = backlog(Vtc())
    _, fcfs = backlog(Sorted())
    bound = 2 * 2 * 4 * 120
    assert abs(fair["A"] - fair["B"]) < bound / 4
    assert fcfs["A"] - fcfs["B"] > 1.5 * abs(fair["A"] - fair["B"])
    assert fcfs["A"] / fcfs["B"] > 1.5


@pytest.mark.parametrize(
    "scheduler", [Vtc(weights={"B": 2.0}), Drr(quantum=200, weights={"B": 2.0}), Wfq(weights={"B": 2.0})]
)
def test_a_tenant_of_double_weight_gets_double_service(scheduler: Any) -> None:
    _, served = backlog(scheduler)
    assert served["B"] / served["A"] == pytest.approx(2.0, rel=0.25)


@pytest.mark.parametrize("scheduler", [Drr(quantum=200), Wfq(), Vtc()])
def test_equal_tenants_get_equal_service_however_much_they_send(scheduler: Any) -> None:
    _, served = backlog(scheduler)
    assert served["A"] / served["B"] == pytest.approx(1.0, rel=0.15)


def test_a_weight_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match=r"weights\.B must be above 0"):
        Vtc(weights={"B": 0.0})


FAIR = {
    "vtc": Vtc,
    "drr": lambda: Drr(quantum=50),
    "wfq": Wfq,
    "mlfq": lambda: Mlfq(quantum=3, prompt_tokens_per_step=4),
    "sjf_bounded": lambda: Sorted(key="sjf", max_wait=7.3),
    "lpm": lambda: Sorted(key="lpm"),
    "least_slack": lambda: Sorted(key="least_slack"),
    "srpt": lambda: Sorted(key="srpt"),
    "ageing": lambda: Sorted(key="priority", ageing=8.0),
    "edf_bounded": lambda: Sorted(key="edf", class_deadlines={}, max_wait=0.0),
}


@pytest.mark.parametrize("name", FAIR)
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("seed", range(6))
def test_fast_forward_is_exact_with_tenants(name: str, depth: int, seed: int) -> None:
    """Little memory or few slots, cancellations, bursts; every column the same bits as step by step."""
    draw = random.Random(1000 * seed + depth)
    rows = [(draw.randint(1, 30), draw.randint(1, 80)) for _ in range(40)]
    options: dict[str, Any] = {
        "tenant": tenants("".join(draw.choice("AABC") for _ in rows)),
        "arrivals": np.cumsum([draw.choice([0.0, 0.0, 0.5, 4.0, 30.0]) for _ in rows]).tolist(),
        "cancel_after": [draw.choice([np.nan, np.nan, np.nan, 25.0, 3.0]) for _ in rows],
        "declared": [output + draw.choice([0, 0, 9]) for _, output in rows],
        "priority": [draw.randint(0, 2) for _ in rows],
        "depth": depth,
        "num_seqs": draw.choice([2, 4, 20]),
        "num_blocks": draw.choice([30, 40, 200]),
        "block_size": 4,
        "budget": draw.choice([8, 24, 200]),
        "prefix_caching": draw.random() < 0.5,
    }
    fast = run_rows(rows, scheduler=FAIR[name](), **options)
    stepped = run_rows(rows, scheduler=FAIR[name](), step_by_step=True, **options)
    for key, column in fast.requests.items():
        if column.dtype != object:
            assert column.tobytes() == stepped.requests[key].tobytes(), key
    assert fast.replicas[0].num_skipped_steps > 0 or name == "mlfq"
    assert (fast.requests["status"] > 0).all()
