"""Fast-forward never changes a result: every array of a run equals, bit for bit, that of the run stepped one by one."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenarios import COSTS, Scenario, Space, examples, scenarios, simulate

from policies.block_allocator import BLOCK_ALLOCATORS
from policies.preemption import PREEMPTIONS
from policies.router import ROUTERS
from policies.scheduler import SCHEDULERS
from sim.result import ReplicaResult, RunResult

HOW_IT_RAN = {"num_skipped_steps", "num_fast_forwards"}  # the only two fields that may differ


def assert_same_bits(found: dict[str, npt.NDArray[np.generic]], wanted: dict[str, npt.NDArray[np.generic]]) -> None:
    """Same columns, same types, same values; nan equals nan, and 0.0 is not -0.0."""
    assert found.keys() == wanted.keys()
    for name, column in found.items():
        other = wanted[name]
        assert column.dtype == other.dtype, name
        if column.dtype == object:
            assert column.tolist() == other.tolist(), name
        else:
            assert column.tobytes() == other.tobytes(), f"{name}: {column} instead of {other}"


def totals(replica: ReplicaResult) -> dict[str, object]:
    return {key: value for key, value in dataclasses.asdict(replica).items() if key not in HOW_IT_RAN}


def deliveries(result: RunResult) -> list[list[float]]:
    """Token times by row, first tokens left out."""
    times: list[list[float]] = [[] for _ in result.requests["status"]]
    for spans in result.spans:
        for row, time in zip(spans.resumed_row.tolist(), spans.resumed_time.tolist(), strict=True):
            times[row].append(time)
        for row, first, last in zip(spans.row.tolist(), spans.first.tolist(), spans.last.tolist(), strict=True):
            times[row] += spans.ends[first : last + 1].tolist()
    return [sorted(row) for row in times]


def assert_same_result(found: RunResult, wanted: RunResult) -> None:
    """Everything that files are made of."""
    assert_same_bits(found.requests, wanted.requests)
    assert deliveries(found) == deliveries(wanted)
    for mine, other in zip(found.replicas, wanted.replicas, strict=True):
        for key, value in totals(mine).items():
            assert value == totals(other)[key], f"{key}: {value} instead of {totals(other)[key]}"
    assert found.end_time == wanted.end_time, f"end_time: {found.end_time} instead of {wanted.end_time}"
    for a, b in ((found.timeline, wanted.timeline), (found.steps, wanted.steps)):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            assert_same_bits(a, b)


def assert_fast_forward_is_exact(scenario: Scenario) -> None:
    stepped = simulate(scenario, step_by_step=True, step_log=True)
    assert sum(replica.num_skipped_steps for replica in stepped.replicas) == 0
    assert_same_result(simulate(scenario, step_by_step=False, step_log=True), stepped)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_every_scheduler(scheduler: str) -> None:
    """One replica, any preemption policy, any memory."""

    @examples(20)
    @given(scenarios(Space(policies={"scheduler": scheduler})))
    def check(scenario: Scenario) -> None:
        assert_fast_forward_is_exact(scenario)

    check()


@pytest.mark.parametrize("preemption", PREEMPTIONS)
def test_every_preemption_policy(preemption: str) -> None:
    """One replica, any scheduler, paged memory (others hardly ever run out in the middle)."""

    @examples(15)
    @given(scenarios(Space(policies={"preemption": preemption}, allocators=False)))
    def check(scenario: Scenario) -> None:
        assert_fast_forward_is_exact(scenario)

    check()


@pytest.mark.parametrize("allocator", BLOCK_ALLOCATORS)
def test_every_allocator(allocator: str) -> None:
    """One replica, any scheduler."""

    @examples(15)
    @given(scenarios(Space(allocator=allocator)))
    def check(scenario: Scenario) -> None:
        assert_fast_forward_is_exact(scenario)

    check()


@pytest.mark.parametrize("router", ROUTERS)
def test_every_router(router: str) -> None:
    """Two or three replicas that the router looks at in the middle of planned steps."""

    @examples(15)
    @given(scenarios(Space(policies={"router": router}, num_replicas=(2, 3), max_rows=14)))
    def check(scenario: Scenario) -> None:
        assert_fast_forward_is_exact(scenario)

    check()


@pytest.mark.parametrize("cost", COSTS)
def test_long_decodes_with_every_cost_model(cost: str) -> None:
    """Hundreds of steps between two decisions: plans of several horizons, cut by what happens in between."""

    @examples(4)
    @given(scenarios(Space(costs=(cost,), max_rows=5)), st.integers(100, 900))
    def check(scenario: Scenario, longer: int) -> None:
        rows = tuple(
            dataclasses.replace(row, output=row.output + longer * (i % 2), gap=row.gap * 20)
            for i, row in enumerate(scenario.rows)
        )
        blocks = scenario.num_blocks + longer // scenario.block_size + 1
        assert_fast_forward_is_exact(dataclasses.replace(scenario, rows=rows, num_blocks=blocks, client_timeout=None))

    check()
