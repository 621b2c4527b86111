"""Intervals and tests: closed forms, and coverage measured on a queue whose waiting times are known exactly."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from sim.study.statistics import (
    bootstrap,
    correlated,
    holm,
    num_batches,
    of_mean,
    replications_needed,
    t_quantile,
)

if TYPE_CHECKING:
    from sim.units import FloatArray


def test_a_t_interval_is_the_textbook_one() -> None:
    spread = of_mean(np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    interval = spread.interval(0.95)
    assert interval.low == pytest.approx(3 - 2.7764451 * math.sqrt(2.5 / 5))
    assert interval.high == pytest.approx(3 + 2.7764451 * math.sqrt(2.5 / 5))
    assert spread.p_value() == pytest.approx(0.0132356, rel=1e-4)  # t = 4.2426 on 4 degrees of freedom


def test_equal_values_have_no_spread_and_a_certain_verdict() -> None:
    assert of_mean(np.array([0.1, 0.1, 0.1])).interval(0.95).low == 0.1
    assert of_mean(np.array([0.1, 0.1, 0.1])).p_value() == 0.0
    assert of_mean(np.zeros(3)).p_value() == 1.0


def test_holm_is_the_worked_example() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_replications_needed_have_the_stated_power() -> None:
    number = replications_needed(deviation=2.0, difference=1.0, confidence=0.95)
    assert number == 34  # as in tables of the paired t test
    generator = np.random.default_rng(1)
    values = generator.normal(1.0, 2.0, size=(4000, number))
    t = values.mean(axis=1) / (values.std(axis=1, ddof=1) / math.sqrt(number))
    assert (np.abs(t) > t_quantile(0.975, number - 1)).mean() == pytest.approx(0.8, abs=0.02)


def test_replications_needed_at_the_ends() -> None:
    assert replications_needed(0.0, 1.0, 0.95) == 2
    assert replications_needed(1.0, 0.0, 0.95) is None
    assert replications_needed(1.0, 1e-9, 0.95) is None
    assert replications_needed(0.01, 1.0, 0.95) == 2 or replications_needed(0.01, 1.0, 0.95) == 3


def test_batches_are_as_many_as_the_run_can_fill() -> None:
    assert [num_batches(size, 20) for size in (99, 100, 250, 10_000)] == [0, 5, 12, 20]


def test_correlation_of_successive_batches_is_seen() -> None:
    generator = np.random.default_rng(5)
    noise = generator.normal(size=2000)
    assert not correlated(noise[:20] * 0 + np.tile([1.0, -1.0], 10))
    walk = np.cumsum(noise[:40])
    assert correlated(walk)


# --- a known system: M/M/1 in equilibrium ------------------------------------------------------------------------------


def waiting_times(rate: float, uniform_gaps: FloatArray, uniform_services: FloatArray, first: FloatArray) -> FloatArray:
    """Waiting times of M/M/1 with service rate 1, by Lindley's recursion from equilibrium; rows are replications."""
    gaps, services = -np.log(uniform_gaps) / rate, -np.log(uniform_services)
    waits = np.empty_like(gaps)
    # Equilibrium: nobody waits with probability 1 - rho, else the wait is exponential with rate 1 - rho.
    waits[:, 0] = np.where(first < 1 - rate, 0.0, -np.log(np.maximum(1 - first, 1e-300) / rate) / (1 - rate))
    for i in range(1, waits.shape[1]):
        waits[:, i] = np.maximum(waits[:, i - 1] + services[:, i - 1] - gaps[:, i], 0.0)
    return waits


def mean_wait(rate: float) -> float:
    return rate / (1 - rate)


def systems(
    trials: int, size: int, seed: int, rates: tuple[float, float] = (0.5, 0.6)
) -> tuple[FloatArray, FloatArray]:
    """Two queues fed with the same random numbers; rows are replications."""
    generator = np.random.default_rng(seed)
    gaps, services = generator.random((trials, size)), generator.random((trials, size))
    first = generator.random(trials)
    return waiting_times(rates[0], gaps, services, first), waiting_times(rates[1], gaps, services, first)


TRIALS, REPLICATIONS, CUSTOMERS = 2000, 10, 400


def test_t_and_bootstrap_intervals_of_paired_differences_hold_93_to_97_percent() -> None:
    slow, fast = systems(TRIALS * REPLICATIONS, CUSTOMERS, seed=11)
    differences = (fast.mean(axis=1) - slow.mean(axis=1)).reshape(TRIALS, REPLICATIONS)
    truth = mean_wait(0.6) - mean_wait(0.5)
    held = [of_mean(values).interval(0.95).covers(truth) for values in differences]
    assert 0.93 <= np.mean(held) <= 0.97
    generator = np.random.default_rng(2)
    some = differences[:1000]
    assert 0.93 <= np.mean([bootstrap(values, 0.95, generator).covers(truth) for values in some]) <= 0.97
