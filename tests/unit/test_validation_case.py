"""Metrics of measured requests, workloads that replay them, and scores over groups of runs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cost.base import BatchShape
from sim.cost.constant import ConstantCost
from sim.validation.case import relative_errors, request_metrics
from sim.validation.early import HostBoundCost, HostTimes
from sim.validation.scores import score
from sim.validation.workloads import Stage, all_at_once, closed_loop, replayed, staged_arrivals


def test_metrics_of_three_requests_worked_by_hand() -> None:
    ttft, e2e = np.array([0.1, 0.3, np.nan]), np.array([1.1, 2.3, np.nan])
    metrics = request_metrics(ttft, e2e, np.array([11, 21, 5]))
    assert metrics["finished"] == 2
    assert metrics["ttft.mean"] == pytest.approx(0.2)
    assert metrics["e2e.p50"] == pytest.approx(1.7)
    assert metrics["tpot.mean"] == pytest.approx((1.0 / 10 + 2.0 / 20) / 2)
    assert "ttft_settled.mean" not in metrics  # there are no requests beyond the first hundred


def test_a_single_token_has_no_time_per_token() -> None:
    metrics = request_metrics(np.array([0.1]), np.array([0.1]), np.array([1]))
    assert "tpot.mean" not in metrics
    assert metrics["ttft.p99"] == pytest.approx(0.1)


def test_settled_ttft_leaves_the_first_hundred_requests_out() -> None:
    ttft = np.concatenate([np.full(100, 9.0), np.full(50, 1.0)])
    metrics = request_metrics(ttft, ttft + 1.0, np.full(150, 2))
    assert metrics["ttft_settled.p99"] == 1.0
    assert metrics["ttft.mean"] > 6.0


def test_errors_are_relative_and_skip_what_one_side_lacks() -> None:
    errors = relative_errors({"a": 1.1, "b": 2.0}, {"a": 1.0, "c": 3.0, "b": 0.0})
    assert errors == {"a": pytest.approx(0.1)}


def test_a_score_holds_size_and_bias() -> None:
    found = score("g", "s", "m", [0.1, -0.3, 0.05])
    assert (found.num_runs, found.mean, found.median) == (3, pytest.approx(0.15), pytest.approx(0.1))
    assert found.bias == pytest.approx(-0.05)
    assert found.worst == -0.3


@given(st.lists(st.tuples(st.integers(1, 60), st.floats(0.5, 100.0)), min_size=1, max_size=4), st.integers(0, 9))
def test_staged_arrivals_fill_each_stage_exactly(parts: list[tuple[int, float]], seed: int) -> None:
    stages = [Stage(n, duration) for n, duration in parts]
    times = staged_arrivals(stages, seed)
    assert len(times) == sum(stage.num_requests for stage in stages)
    assert (np.diff(times) >= 0).all()
    ends = np.cumsum([stage.num_requests for stage in stages]) - 1
    spans = times[ends] - np.concatenate([[0.0], times[ends][:-1]])
    assert spans[0] == pytest.approx(stages[0].duration)
    assert (np.diff(times[ends]) > [stage.duration for stage in stages[1:]]).all()  # the pause comes on top
    assert np.array_equal(times, staged_arrivals(stages, seed))


def test_cycled_prompts_share_one_id_for_the_whole_prompt() -> None:
    workload = replayed(np.arange(5.0), np.array([10, 20, 10, 20, 10]), np.full(5, 3), period=2)
    assert workload.hash_ids is not None
    assert [workload.hash_ids.row(i).tolist() for i in range(5)] == [[0], [1], [0], [1], [0]]
    assert workload.hash_block_size > 20
    assert replayed(np.arange(2.0), np.array([1, 1]), np.array([1, 1])).hash_ids is None


def test_closed_loops_and_offline_batches_have_every_request() -> None:
    loop = closed_loop(np.full(6, 5), np.full(6, 2), concurrency=9)
    assert loop.closed_loop is not None
    assert loop.closed_loop.concurrency == 6
    batch = all_at_once(4, 100, 7)
    assert batch.arrival_time.tolist() == [0.0] * 4
    assert batch.num_output_tokens.tolist() == [7] * 4


@given(st.integers(1, 40), st.integers(1, 5000), st.integers(1, 50), st.floats(0, 1e-3), st.floats(0, 1e-3))
def test_a_host_bound_step_has_the_same_bits_alone_and_in_a_vector(
    num: int, context: int, steps: int, layer: float, each: float
) -> None:
    cost = HostBoundCost(ConstantCost(step_duration=0.01, per_context_token=1e-6), 32, HostTimes(layer, each))
    times = cost.decode_times(num, context, context, steps)
    single = [
        cost.step_time(BatchShape(num_decode_sequences=num, decode_context=context + i * num, max_context=context + i))
        for i in range(steps)
    ]
    assert times.tolist() == single
    assert min(single) >= max(32 * layer, 0.01) + num * each
