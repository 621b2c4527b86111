"""Queues with a known answer: M/M/1, M/D/1, M/G/1, M/M/c, and routing between them, from the simulator's own requests.

One replica that holds one sequence and needs a fixed time for a step is a single server whose service time is output
tokens x step time (the step of the prefill gives the first token). Random tests use one fixed seed; a mean counts as
right within 4 standard errors of batch means (a deviation that one run in 10,000 shows), and each test also states how
small that standard error must be, so that it can fail.
"""

from __future__ import annotations

import heapq
import math

import numpy as np
import numpy.typing as npt
import pytest
from scenarios import cost_model, make_policy

from sim.clock import Clock
from sim.engine import EndFunction, Simulation
from sim.kv.paged import PagedKV
from sim.replica import Limits, Replica
from sim.result import RunResult
from sim.units import array_to_grid
from sim.workload.base import Workload
from sim.workload.columns import Columns

Floats = npt.NDArray[np.floating]
Ints = npt.NDArray[np.int64]

STEP = 0.25  # seconds, the "quarter" cost model
NUM_REQUESTS = 6000
WARMUP = 500
BATCHES = 25
ERRORS = 4.0  # standard errors


def poisson(rate: float, seed: int, size: int = NUM_REQUESTS) -> Floats:
    """Arrival times on the grid."""
    return np.cumsum(array_to_grid(np.random.default_rng(seed).exponential(1 / rate, size)))


def geometric(mean: float, seed: int, size: int = NUM_REQUESTS) -> Ints:
    """Output tokens; with a large mean as good as exponential."""
    return np.random.default_rng([seed, 1]).geometric(1 / mean, size)


def serve(
    arrival: Floats, tokens: Ints, router: str = "round_robin", num_replicas: int = 1, servers: int = 1
) -> RunResult:
    """Play the queue: replicas of `servers` sequences each, synchronous engine, a step takes STEP seconds."""
    ones = np.ones(len(arrival), dtype=np.int64)
    workload = Workload(
        arrival.astype(np.float64), num_prompt_tokens=ones, num_output_tokens=tokens, max_output_tokens=tokens
    )

    def make_replicas(clock: Clock, on_end: EndFunction, columns: Columns) -> list[Replica]:
        return [
            Replica(
                i,
                clock,
                make_policy("scheduler", "fcfs"),
                make_policy("preemption", "newest"),
                PagedKV(100_000, 16, False),
                cost_model("quarter"),
                Limits(max_num_seqs=servers, max_num_batched_tokens=64, max_model_len=100_000, depth=1),
                on_end,
                columns.content_spans,
            )
            for i in range(num_replicas)
        ]

    return Simulation(workload, make_replicas, make_policy("router", router), make_policy("admission", "always")).run()


def waits(result: RunResult) -> Floats:
    """Seconds in the queue."""
    found: Floats = result.requests["first_scheduled_time"] - result.requests["arrival_time"]
    return found


def mean_and_error(values: Floats) -> tuple[float, float]:
    """Mean after warm-up and its standard error from batch means."""
    kept = values[WARMUP:]
    batches = kept[: len(kept) // BATCHES * BATCHES].reshape(BATCHES, -1).mean(axis=1)
    return float(kept.mean()), float(batches.std(ddof=1) / math.sqrt(BATCHES))


def assert_mean(values: Floats, theory: float, resolution: float) -> None:
    """Within ERRORS standard errors, which are at most `resolution` of the theoretical value."""
    mean, error = mean_and_error(values)
    assert error < resolution * theory
    assert abs(mean - theory) < ERRORS * error, f"mean {mean:.4g} +- {error:.2g}, theory {theory:.4g}"


def pollaczek_khinchine(rate: float, service: Floats | float, second_moment: float | None = None) -> float:
    """Mean wait of M/G/1: rate * E[S^2] / (2 (1 - rate E[S]))."""
    mean = float(np.mean(service))
    square = float(np.mean(np.square(service))) if second_moment is None else second_moment
    return rate * square / (2 * (1 - rate * mean))


def erlang_c_wait(rate: float, mean_service: float, servers: int) -> float:
    """Mean wait of M/M/c."""
    load = rate * mean_service
    terms = [load**k / math.factorial(k) for k in range(servers)]
    last = load**servers / math.factorial(servers) * servers / (servers - load)
    return last / (sum(terms) + last) * mean_service / (servers - load)


def waits_by_recursion(arrival: Floats, service: Floats, servers: int) -> Floats:
    """Kiefer and Wolfowitz: who comes first takes the server that is free first."""
    free = [0.0] * servers
    found = []
    for time, duration in zip(arrival.tolist(), service.tolist(), strict=True):
        start = max(time, heapq.heappop(free))
        heapq.heappush(free, start + duration)
        found.append(start - time)
    return np.array(found)


MIXED = np.array([2, 2, 2, 60])  # a heavy fourth request: squared coefficient of variation 2.3


def lengths(kind: str, seed: int) -> Ints:
    """Output tokens with mean about 16.5."""
    if kind == "M/D/1":
        return np.full(NUM_REQUESTS, 16)
    if kind == "M/M/1":
        return geometric(16.0, seed)
    return np.random.default_rng([seed, 2]).choice(MIXED, NUM_REQUESTS)


def moments(kind: str) -> tuple[float, float]:
    """Exact E[S] and E[S^2], seconds."""
    if kind == "M/D/1":
        return 16 * STEP, (16 * STEP) ** 2
    if kind == "M/M/1":
        return 16 * STEP, (2 - 1 / 16) * (16 * STEP) ** 2  # geometric: E[N^2] = (2 - p) / p^2
    return float(MIXED.mean()) * STEP, float(np.square(MIXED).mean()) * STEP**2


@pytest.mark.parametrize("kind", ["M/D/1", "M/M/1", "M/G/1"])
def test_single_server_wait(kind: str) -> None:
    """At 60 % load the mean wait is that of Pollaczek and Khinchine."""
    mean, square = moments(kind)
    rate = 0.6 / mean
    result = serve(poisson(rate, seed=1), lengths(kind, seed=1))
    assert_mean(waits(result), pollaczek_khinchine(rate, mean, square), resolution=0.16)


@pytest.mark.parametrize("kind", ["M/D/1", "M/M/1", "M/G/1"])
def test_single_server_waits_one_by_one(kind: str) -> None:
    """Every single wait equals Lindley's recursion to the last bit, at 90 % load."""
    arrival, tokens = poisson(0.9 / moments(kind)[0], seed=2, size=3000), lengths(kind, seed=2)[:3000]
    np.testing.assert_array_equal(waits(serve(arrival, tokens)), waits_by_recursion(arrival, tokens * STEP, 1))


@pytest.mark.parametrize("servers", [2, 5])
def test_batch_of_c_sequences_is_m_m_c(servers: int) -> None:
    """One replica with c places and a constant step time: Erlang's formula, plus at most one step to its next start."""
    mean = 160 * STEP
    rate = 0.75 * servers / mean
    result = serve(poisson(rate, seed=3), geometric(160.0, seed=3), servers=servers)
    found, error = mean_and_error(waits(result))
    theory = erlang_c_wait(rate, mean, servers)
    assert error < 0.17 * theory
    assert theory - ERRORS * error < found < theory + STEP + ERRORS * error


@pytest.mark.parametrize("servers", [2, 5])
def test_batch_of_c_sequences_one_by_one(servers: int) -> None:
    """Every start lies less than one step behind that of c servers which need not wait for a step to end."""
    arrival, tokens = poisson(0.9 * servers / (30 * STEP), seed=4, size=3000), geometric(30.0, seed=4, size=3000)
    late = waits(serve(arrival, tokens, servers=servers)) - waits_by_recursion(arrival, tokens * STEP, servers)
    assert late.min() >= 0
    assert late.max() < STEP
    assert late.max() > 0.5 * STEP


def test_random_routing_makes_independent_queues() -> None:
    """c replicas behind a random router wait like c separate M/M/1 queues, each with its share of the arrivals."""
    mean, replicas = 16 * STEP, 3
    rate = 0.6 * replicas / mean
    result = serve(poisson(rate, seed=5), geometric(16.0, seed=5), router="random", num_replicas=replicas)
    theory = pollaczek_khinchine(rate / replicas, mean, moments("M/M/1")[1])
    assert_mean(waits(result), theory, resolution=0.12)
    share = np.bincount(result.requests["prefill_replica"]) / NUM_REQUESTS
    assert abs(share - 1 / replicas).max() < 4 * math.sqrt(2 / 9 / NUM_REQUESTS)


def test_join_the_shortest_queue_lies_between_one_queue_and_random_ones() -> None:
    """Common queue (M/M/c) < least_outstanding_requests < random, on the same arrivals and lengths."""
    mean, replicas = 16 * STEP, 3
    rate = 0.8 * replicas / mean
    arrival, tokens = poisson(rate, seed=6, size=4000), geometric(16.0, seed=6, size=4000)
    names = ("least_outstanding_requests", "random")
    shortest, random = (waits(serve(arrival, tokens, name, replicas)).mean() for name in names)
    common = waits_by_recursion(arrival, tokens * STEP, replicas).mean()
    assert common < shortest < 0.6 * random
    assert abs(common - erlang_c_wait(rate, mean, replicas)) < 0.35 * common


def test_round_robin_splits_the_stream_in_turn() -> None:
    """Request i waits as in a queue of its own with every c-th arrival, bit for bit (E_c/G/1)."""
    arrival, tokens = poisson(0.8 * 3 / (16 * STEP), seed=7, size=3000), geometric(16.0, seed=7, size=3000)
    found = waits(serve(arrival, tokens, num_replicas=3))
    for i in range(3):
        alone = waits_by_recursion(arrival[i::3], tokens[i::3] * STEP, 1)
        np.testing.assert_array_equal(found[i::3], alone)


def test_utilisation_law() -> None:
    """Busy time is exactly work; utilisation is arrival rate x mean service within the noise of the arrivals."""
    mean = 16 * STEP
    arrival, tokens = poisson(0.6 / mean, seed=8, size=3000), geometric(16.0, seed=8, size=3000)
    result = serve(arrival, tokens)
    busy = result.replicas[0].busy_time
    assert busy == tokens.sum() * STEP
    assert busy / result.end_time == pytest.approx(0.6, rel=4 * math.sqrt(2 / 3000))
