"""Distributions of lengths and times: means and percentiles are met, limits hold, impossible ones are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from sim.errors import InputError
from sim.seeds import Seeds
from sim.workload.distributions import Distribution

ADAPTER: TypeAdapter[Any] = TypeAdapter(Distribution)
N = 400_000


def tokens(**given: Any) -> np.ndarray[Any, Any]:
    return ADAPTER.validate_python(given).tokens(Seeds(1).generator("test"), N)


@pytest.mark.parametrize(
    "given",
    [
        {"distribution": "fixed", "value": 300},
        {"distribution": "exponential", "mean": 300},
        {"distribution": "exponential", "mean": 300, "max": 500},
        {"distribution": "geometric", "mean": 300},
        {"distribution": "geometric", "mean": 300, "min": 100},
        {"distribution": "normal", "mean": 300, "std": 50},
        {"distribution": "normal", "mean": 300, "std": 400},
        {"distribution": "gamma", "mean": 300, "cv": 2.0, "max": 2000},
        {"distribution": "lognormal", "mean": 300, "cv": 1.0},
        {"distribution": "lognormal", "mean": 300, "sigma": 0.7},
        {"distribution": "lognormal", "mean": 300, "p99": 2400, "max": 4000},
        {"distribution": "lognormal", "mean": 300, "p50": 100, "min": 20, "max": 5000},
    ],
)
def test_the_mean_asked_for_is_the_mean_of_what_is_drawn(given: dict[str, Any]) -> None:
    """Within 1 %, after limits and rounding (standard error here is at most 0.4 %)."""
    drawn = tokens(**given)
    assert drawn.mean() == pytest.approx(300, rel=0.012)
    assert drawn.min() >= max(1, given.get("min", 1))
    assert drawn.max() <= given.get("max", np.inf)


def test_lognormal_meets_mean_and_percentile_together() -> None:
    """mean 512 and p99 4096: sigma = z - sqrt(z^2 - 2 ln 8) = 1.207."""
    drawn = tokens(distribution="lognormal", mean=512, p99=4096)
    assert drawn.mean() == pytest.approx(512, rel=0.012)
    assert np.quantile(drawn, 0.99) == pytest.approx(4096, rel=0.02)
    assert np.log(drawn).std() == pytest.approx(1.207, rel=0.01)


def test_lognormal_from_two_percentiles() -> None:
    drawn = tokens(distribution="lognormal", p50=200, p99=2000)
    assert np.quantile(drawn, [0.5, 0.99]) == pytest.approx([200, 2000], rel=0.02)


def test_uniform_tokens_include_both_ends_evenly() -> None:
    values, counts = np.unique(tokens(distribution="uniform", min=3, max=7), return_counts=True)
    assert values.tolist() == [3, 4, 5, 6, 7]
    assert counts == pytest.approx(np.full(5, N / 5), rel=0.02)


def test_empirical_values_come_with_their_weights() -> None:
    drawn = tokens(distribution="empirical", values=[10, 20, 40], weights=[1, 2, 1])
    assert np.mean(drawn == 20) == pytest.approx(0.5, abs=0.005)
    assert set(drawn.tolist()) == {10, 20, 40}


def test_empirical_quantiles_are_read_linearly() -> None:
    drawn = tokens(distribution="empirical", quantiles={0: 100, 0.5: 200, 1: 1000})
    assert np.quantile(drawn, [0.25, 0.5, 0.75]) == pytest.approx([150, 200, 600], rel=0.02)


def test_a_bare_number_is_fixed_and_times_may_be_zero() -> None:
    assert ADAPTER.validate_python(0).times(Seeds(0).generator(), 3).tolist() == [0, 0, 0]


def test_tokens_are_never_below_one() -> None:
    assert tokens(distribution="fixed", value=0).tolist()[:2] == [1, 1]
    assert tokens(distribution="exponential", mean=1.5).min() == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"distribution": "lognormal", "mean": 100}, "takes two of"),
        ({"distribution": "lognormal", "mean": 100, "cv": 1, "p99": 300}, "takes two of"),
        ({"distribution": "lognormal", "mean": 100, "p99": 2000}, "at most 14.97 times"),
        ({"distribution": "lognormal", "mean": 100, "p99": 90}, "above the mean"),
        ({"distribution": "lognormal", "mean": 100, "p50": 150}, "below the mean"),
        ({"distribution": "lognormal", "p50": 100, "p99": 90}, "larger percentile"),
        ({"distribution": "uniform", "min": 9, "max": 3}, "min 9 is above max 3"),
        ({"distribution": "geometric", "mean": 0.5}, "greater than or equal to 1"),
        ({"distribution": "empirical", "values": [1], "weights": [1, 2]}, "as many weights"),
        ({"distribution": "empirical", "quantiles": {0: 5, 1: 3}}, "must not decrease"),
        ({"distribution": "exponential", "mean": 5, "mena": 3}, "mena"),
        ({"distribution": "zipf"}, "zipf"),
    ],
)
def test_impossible_distributions_are_refused_with_the_reason(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ADAPTER.validate_python(given)


def test_a_mean_outside_the_limits_is_refused() -> None:
    with pytest.raises(InputError, match=r"mean 9000 is outside \[1, 8192\]"):
        tokens(distribution="exponential", mean=9000, max=8192)
