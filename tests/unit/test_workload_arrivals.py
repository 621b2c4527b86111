"""Arrival processes: rates, burstiness, exact counts, and time-varying rates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from sim.errors import InputError
from sim.seeds import Seeds
from sim.workload.arrivals import Arrivals, weibull_shape

ADAPTER: TypeAdapter[Any] = TypeAdapter(Arrivals)


def times(num: int | None = None, duration: float | None = None, **given: Any) -> np.ndarray[Any, Any]:
    return ADAPTER.validate_python(given).times(Seeds(5).generator("test"), num, duration)


def cv(values: np.ndarray[Any, Any]) -> float:
    return float(values.std() / values.mean())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"process": "poisson"}, 1.0),
        ({"process": "gamma", "cv": 3.0}, 3.0),
        ({"process": "gamma", "burstiness": 4.0}, 0.5),
        ({"process": "weibull", "cv": 2.0}, 2.0),
        ({"process": "weibull", "shape": 1.0}, 1.0),
        ({"process": "constant"}, 0.0),
    ],
)
def test_gaps_have_the_rate_and_the_coefficient_of_variation(given: dict[str, Any], expected: float) -> None:
    gaps = np.diff(times(num=200_000, rate=4.0, **given))
    assert gaps.mean() == pytest.approx(0.25, rel=0.03)
    assert cv(gaps) == pytest.approx(expected, rel=0.03, abs=1e-9)


def test_poisson_counts_have_variance_equal_to_their_mean() -> None:
    counts = np.histogram(times(duration=20_000.0, process="poisson", rate=5.0), bins=np.arange(0, 20_001))[0]
    assert counts.mean() == pytest.approx(5.0, rel=0.02)
    assert counts.var() == pytest.approx(5.0, rel=0.04)


def test_all_arrivals_of_a_duration_lie_in_it() -> None:
    for given in ({"process": "poisson"}, {"process": "gamma", "cv": 4.0}, {"process": "diurnal", "period": 100.0}):
        drawn = times(duration=500.0, rate=3.0, **given)
        assert 0 <= drawn[0] <= drawn[-1] < 500
        assert len(drawn) == pytest.approx(1500, rel=0.3)


def test_constant_arrivals_are_a_grid_from_zero() -> None:
    assert times(num=4, process="constant", rate=2.0).tolist() == [0, 0.5, 1.0, 1.5]
    assert times(duration=2.0, process="constant", rate=2.0).tolist() == [0, 0.5, 1.0, 1.5]


def test_exact_rate_ends_at_number_over_rate() -> None:
    assert times(num=300, process="gamma", rate=3.0, cv=2.0, exact_rate=True)[-1] == pytest.approx(100.0)


def test_weibull_shape_inverts_the_coefficient_of_variation() -> None:
    """Shape 1 is exponential (CV 1); shape 2 is Rayleigh: CV = sqrt(4 / pi - 1)."""
    assert weibull_shape(1.0) == pytest.approx(1.0)
    assert weibull_shape(np.sqrt(4 / np.pi - 1)) == pytest.approx(2.0)


def test_stages_with_counts_have_exactly_these_counts() -> None:
    drawn = times(
        process="stages",
        exact_rate=True,
        stages=[{"rate": 1.0, "num_requests": 50}, {"rate": 10.0, "num_requests": 500}],
    )
    assert len(drawn) == 550
    assert drawn[49] == pytest.approx(50.0)
    assert drawn[-1] == pytest.approx(100.0)


def test_stages_with_durations_follow_their_rates() -> None:
    drawn = times(
        process="stages",
        stages=[{"rate": 5.0, "duration": 400}, {"rate": 0.0, "duration": 100}, {"rate": 20, "duration": 400}],
    )
    low, none, high = np.histogram(drawn, bins=[0, 400, 500, 900])[0]
    assert none == 0
    assert (low, high) == (pytest.approx(2000, rel=0.08), pytest.approx(8000, rel=0.05))


@pytest.mark.parametrize(("rate", "end_rate"), [(0.0, 20.0), (20.0, 0.0), (5.0, 15.0)])
def test_a_ramp_has_a_linear_rate(rate: float, end_rate: float) -> None:
    """With exact counts the arrival number i comes where the integral of the rate is i, up to noise of the gaps."""
    drawn = times(process="stages", stages=[{"rate": rate, "end_rate": end_rate, "duration": 1000.0}])
    assert len(drawn) == pytest.approx(10_000, rel=0.04)
    assert drawn[-1] <= 1000
    half = rate * 500 + (end_rate - rate) * 125
    assert np.searchsorted(drawn, 500) == pytest.approx(half, rel=0.06)


def test_diurnal_peaks_at_its_peak_time() -> None:
    drawn = (
        times(duration=1000.0 * 40, process="diurnal", rate=5.0, amplitude=0.8, period=1000.0, peak_time=250.0) % 1000.0
    )
    counts = np.histogram(drawn, bins=np.arange(0, 1001, 125))[0] / 40
    expected = [5 * 125 * (1 + 0.8 * mean) for mean in _mean_cosines(125, 250, 1000)]
    assert counts == pytest.approx(expected, rel=0.05)


def _mean_cosines(width: float, peak: float, period: float) -> list[float]:
    turn = 2 * np.pi / period
    edges = np.arange(0, period + 1, width)
    integral = np.sin(turn * (edges - peak)) / turn
    return list(np.diff(integral) / width)


def test_bursts_have_their_size_at_their_interval() -> None:
    drawn = times(num=100, process="burst", size=25, interval=60.0)
    assert np.unique(drawn, return_counts=True)[0].tolist() == [0, 60, 120, 180]
    assert np.unique(drawn, return_counts=True)[1].tolist() == [25] * 4
    assert times(num=7, process="burst").tolist() == [0.0] * 7


def test_bursts_lie_on_top_of_a_background() -> None:
    drawn = times(duration=6000.0, process="burst", size=100, interval=60.0, spread=1.0, rate=2.0)
    assert len(drawn) == pytest.approx(100 * 100 + 12_000, rel=0.03)
    assert np.mean((drawn % 60) < 1) == pytest.approx((10_000 + 200) / 22_000, abs=0.02)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"process": "gamma", "rate": 1}, "either cv or burstiness"),
        ({"process": "gamma", "rate": 1, "cv": 1, "burstiness": 1}, "either cv or burstiness"),
        ({"process": "poisson", "rate": 0}, "greater than 0"),
        ({"process": "poisson", "rate": 1, "cv": 2}, "cv"),
        ({"process": "stages", "stages": [{"rate": 1}]}, "either duration or num_requests"),
        ({"process": "stages", "stages": [{"rate": 0, "num_requests": 5}]}, "rate above 0"),
        ({"process": "closed_loop", "concurrency": 0}, "greater than or equal to 1"),
    ],
)
def test_processes_that_make_no_sense_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ADAPTER.validate_python(given)


def test_closed_loop_needs_a_number_of_requests() -> None:
    with pytest.raises(InputError, match="closed_loop needs num_requests"):
        times(duration=5.0, process="closed_loop", concurrency=2)
