"""Stability verdicts of queues whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from sim.stability import judge


def single_server(arrival: np.ndarray, service: np.ndarray) -> np.ndarray:
    """When each request of a FIFO single-server queue leaves the queue, by Lindley's recursion."""
    left, free = np.empty(len(arrival)), 0.0
    for i, (at, work) in enumerate(zip(arrival, service, strict=True)):
        left[i] = max(at, free)
        free = left[i] + work
    return left


def poisson_queue(utilization: float, seed: int, count: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(1.0, count))
    return arrival, single_server(arrival, rng.exponential(utilization, count))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("utilization", [0.2, 0.5, 0.8])
def test_a_queue_below_capacity_is_stable(utilization, seed):
    assert judge(*poisson_queue(utilization, seed), 0, 0).verdict == "stable"


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("utilization", [1.2, 2.0])
def test_a_queue_above_capacity_is_overloaded(utilization, seed):
    found = judge(*poisson_queue(utilization, seed), 0, 0)
    assert found.verdict == "overloaded"
    assert found.queue_growth_per_second == pytest.approx(1 - 1 / utilization, rel=0.4)
    assert "queue grew" in found.reasons[0]


def test_the_queue_by_quarter_is_its_time_average():
    found = judge(np.array([0.0, 4.0]), np.array([1.5, 4.0]), 0, 0)
    assert found.queue_by_quarter == [1.0, 0.5, 0.0, 0.0]


def test_an_offline_batch_is_backlogged():
    arrival = np.zeros(100)
    assert judge(arrival, single_server(arrival, np.ones(100)), 0, 0).verdict == "backlogged"


def test_a_burst_at_the_end_is_backlogged():
    arrival = np.concatenate([np.arange(400.0), np.linspace(399.5, 400, 60)])
    found = judge(arrival, single_server(arrival, np.full(460, 0.5)), 0, 0)
    assert found.verdict in ("backlogged", "overloaded")
    assert found.drain_duration == pytest.approx(30, abs=2)


def test_a_burst_that_drains_is_backlogged_and_the_reason_names_its_quarter():
    arrival = np.sort(np.concatenate([np.arange(400.0), np.linspace(120, 130, 60)]))
    found = judge(arrival, single_server(arrival, np.full(460, 0.7)), 0, 0)
    assert found.verdict == "backlogged"
    assert "waited in quarter 2" in found.reasons[0]
    assert found.waiting_at_last_arrival < 3


def test_a_cluster_that_loses_requests_is_overloaded_and_says_how_many():
    arrival = np.arange(100.0)
    found = judge(arrival, arrival, 12, 0)
    assert found.verdict == "overloaded"
    assert found.reasons == ["12 of 100 requests (12.0%) were rejected"]


def test_a_single_request_is_stable():
    assert judge(np.array([1.0]), np.array([1.0]), 0, 0).verdict == "stable"


def test_who_never_leaves_the_queue_leaves_the_drain_unknown():
    arrival = np.arange(100.0)
    found = judge(arrival, np.where(arrival < 50, arrival, np.inf), 0, 0)
    assert found.verdict == "overloaded"
    assert found.drain_duration is None
