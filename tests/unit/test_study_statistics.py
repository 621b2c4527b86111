"""Intervals and tests: closed forms, and coverage measured on a queue whose waiting times are known exactly."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from sim.study.contrast import BETTER, NONE, WORSE, by_batches, by_replications, judged
from sim.study.metrics import RequestTable
from sim.study.statistics import (
    Interval,
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
    assert spread.skew == 0
    interval = spread.interval(0.95)
    assert interval.low == pytest.approx(3 - 2.7764451 * math.sqrt(2.5 / 5))
    assert interval.high == pytest.approx(3 + 2.7764451 * math.sqrt(2.5 / 5))
    assert spread.p_value() == pytest.approx(0.0132356, rel=1e-3)  # t = 4.2426 on 4 degrees of freedom


def test_the_skewed_interval_leans_towards_the_long_tail() -> None:
    values = np.array([1.0, 1.1, 1.2, 1.3, 9.0])
    spread = of_mean(values)
    interval = spread.interval(0.95)
    assert interval.high - spread.centre > spread.centre - interval.low
    # The test is the more cautious of the corrected and the plain one: far out the correction is too sure of itself.
    for end in (interval.low, interval.high):
        assert of_mean(values - end).p_value() >= 0.05 - 1e-9


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


# --- a known system: M/M/1 in equilibrium ---


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


RATES = (0.3, 0.5)  # arrivals per service time


def systems(trials: int, size: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """Two queues fed with the same random numbers; rows are replications."""
    generator = np.random.default_rng(seed)
    gaps, services = generator.random((trials, size)), generator.random((trials, size))
    first = generator.random(trials)
    return waiting_times(RATES[0], gaps, services, first), waiting_times(RATES[1], gaps, services, first)


TRIALS, REPLICATIONS, CUSTOMERS = 1000, 10, 1000


def share_held(intervals: list[Interval], truth: float) -> float:
    return float(np.mean([interval.covers(truth) for interval in intervals]))


def test_intervals_of_paired_differences_hold_93_to_97_percent_of_the_time() -> None:
    slow, fast = systems(TRIALS * REPLICATIONS, CUSTOMERS, seed=11)
    differences = (fast.mean(axis=1) - slow.mean(axis=1)).reshape(TRIALS, REPLICATIONS)
    truth = mean_wait(RATES[1]) - mean_wait(RATES[0])
    assert 0.93 <= share_held([of_mean(values).interval(0.95) for values in differences], truth) <= 0.97
    generator = np.random.default_rng(2)
    assert 0.93 <= share_held([bootstrap(values, 0.95, generator) for values in differences], truth) <= 0.97


def test_intervals_of_the_p99_of_a_run_hold_93_to_97_percent_of_the_time_with_20_replications() -> None:
    # With 10 of them 92 %: the p99 of a short run is so skewed that no interval from 10 values does better.
    slow, fast = systems(500 * 20, 400, seed=12)
    differences = np.quantile(fast, 0.99, axis=1) - np.quantile(slow, 0.99, axis=1)
    truth = float(differences.mean())  # of a run of this length, from 10,000 of them
    intervals = [of_mean(values).interval(0.95) for values in differences.reshape(500, 20)]
    assert 0.93 <= share_held(intervals, truth) <= 0.97


def test_batches_of_one_long_run_hold_93_to_97_percent_of_the_time() -> None:
    slow, fast = systems(400, 20_000, seed=13)
    pairs = [(table_of(a), table_of(b)) for a, b in zip(slow, fast, strict=True)]
    truths = {
        "queueing_delay.mean": mean_wait(RATES[1]) - mean_wait(RATES[0]),
        "queueing_delay.p99": quantile_of_wait(RATES[1], 0.99) - quantile_of_wait(RATES[0], 0.99),
    }
    for metric, truth in truths.items():
        statistic = np.mean if metric.endswith("mean") else lambda values: np.quantile(values, 0.99)
        wholes = [(float(statistic(a)), float(statistic(b))) for a, b in zip(slow, fast, strict=True)]
        found = [by_batches(metric, whole, pair, 0.95) for whole, pair in zip(wholes, pairs, strict=True)]
        assert 0.93 <= share_held([contrast.t for contrast in found if contrast.t], truth) <= 0.97, metric


def quantile_of_wait(rate: float, share: float) -> float:
    """P(wait > x) = rho exp(-(1 - rho) x)."""
    return -math.log((1 - share) / rate) / (1 - rate)


def table_of(waits: FloatArray) -> RequestTable:
    arrival = np.arange(len(waits), dtype=np.float64)
    columns = {
        "arrival_time": arrival,
        "finish_time": arrival + waits + 1,
        "queueing_delay": waits,
        "num_output_tokens": np.full(len(waits), 10),
    }
    return RequestTable(columns, np.ones(len(waits), dtype=bool), waits < 1)


# --- verdicts ---


def test_verdicts_know_which_way_is_better() -> None:
    generator = np.random.default_rng(3)
    base = generator.normal(10.0, 1.0, size=8)
    noise = generator.normal(0.0, 0.1, size=8)
    cases = {"ttft.p99": WORSE, "goodput": BETTER, "kv_cache.mean_usage": "higher"}
    found = judged([by_replications(metric, base, base + 1 + noise, 0.95) for metric in cases], 0.95)
    assert [contrast.verdict for contrast in found] == list(cases.values())
    (small,) = judged([by_replications("ttft.p99", base, base + noise, 0.95)], 0.95)
    assert small.verdict == NONE
    assert small.to_settle is not None
    assert small.negligible == (small.t is not None and small.t.low > -0.1 and small.t.high < 0.1)


def test_equal_systems_are_called_different_in_at_most_5_percent_of_comparisons() -> None:
    generator = np.random.default_rng(4)
    wrong = 0
    for _ in range(1000):
        noise = generator.normal(0.0, 1.0, size=(15, 8))
        wrong += min(holm([of_mean(values).p_value() for values in noise])) <= 0.05
    assert wrong / 1000 <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 1000)


def test_systems_that_are_the_same_to_the_bit_show_no_difference() -> None:
    values = np.array([1.0, 2.0, 3.0])
    (contrast,) = judged([by_replications("e2e.mean", values, values, 0.95)], 0.95)
    assert (contrast.verdict, contrast.p_value, contrast.difference) == (NONE, 1.0, 0.0)


def test_a_run_too_short_for_batches_has_no_interval_and_says_so() -> None:
    table = table_of(np.linspace(0, 1, 60))
    contrast = by_batches("queueing_delay.p99", (0.9, 0.9), (table, table), 0.95)
    assert contrast.t is None
    assert contrast.note is not None
    assert "too short" in contrast.note


def test_rates_are_compared_by_stretches_of_time() -> None:
    first, second = table_of(np.zeros(2000)), table_of(np.tile([0.0, 0.4], 1000))
    contrast = by_batches("output_token_throughput", (10.0, 10.0), (first, second), 0.95)
    assert contrast.t is not None
    assert contrast.t.covers(0.0)
    assert contrast.num_values == 20


def test_a_metric_of_whole_runs_needs_replications() -> None:
    table = table_of(np.zeros(2000))
    contrast = by_batches("cost.price", (1.0, 2.0), (table, table), 0.95)
    assert contrast.p_value is None
    assert "needs replications" in str(contrast.note)
