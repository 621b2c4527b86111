"""`metrics.warmup: auto`: MSER-5 cuts known transients where they end, and nothing where there is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import sim
from sim.warmup import BATCH, mser


@pytest.mark.parametrize("length", [40, 200, 700])
def test_a_step_is_cut_where_it_ends(length: int) -> None:
    """To a batch: one that is off by chance may go with the transient."""
    rng = np.random.default_rng(1)
    series = np.where(np.arange(2000) < length, 5.0, 1.0) + 0.2 * rng.standard_normal(2000)
    assert mser(series) in (length, length + BATCH)


def test_an_exponential_transient_is_cut_when_it_is_down_to_the_noise() -> None:
    rng = np.random.default_rng(2)
    decay, level = 100.0, 10.0
    for seed_shift in range(5):
        noise = rng.standard_normal(4000)
        series = level * np.exp(-np.arange(4000) / decay) + noise + seed_shift
        cut = mser(series)
        assert cut is not None
        # Between the transient at four deviations of a batch mean and at a tenth of one.
        deviation = 1 / np.sqrt(BATCH)
        assert decay * np.log(level / (4 * deviation)) <= cut <= decay * np.log(level / (0.1 * deviation))
        assert abs(series[cut:].mean() - seed_shift) < abs(series.mean() - seed_shift)


def test_shift_and_scale_change_nothing() -> None:
    rng = np.random.default_rng(3)
    series = np.where(np.arange(1000) < 150, 3.0, 0.0) + rng.standard_normal(1000)
    assert mser(series) == mser(series * 64.0 + 2.0**20)


@pytest.mark.parametrize(("series", "cut"), [(np.ones(1000), 0), (np.arange(1000.0), None), (np.ones(10), None)])
def test_no_transient_and_one_that_never_ends(series: np.ndarray, cut: int | None) -> None:
    assert mser(series) == cut


def test_users_that_start_together_are_a_transient_of_their_number(small_experiment: Path) -> None:
    """64 users of a closed loop send at once to an idle replica: their first requests wait, nobody's later ones do."""
    settings = {
        "workload": {
            "num_requests": 1200,
            "arrivals": {"process": "closed_loop", "concurrency": 64},
            "prompt_tokens": {"distribution": "uniform", "min": 500, "max": 1500},
            "output_tokens": {"distribution": "uniform", "min": 20, "max": 100},
        },
        "cluster.pools.0.replicas": 1,
    }
    plain = sim.run(small_experiment, set=settings)
    auto = sim.run(small_experiment, set={**settings, "metrics": {"warmup": "auto"}})
    number = auto.document["warmup"]["num_requests"]
    assert auto.document["warmup"]["settled"]
    assert 30 <= number <= 300
    assert auto.summary["num_requests"] == 1200 - number
    assert len(auto.requests) == 1200
    stated = sim.run(small_experiment, set={**settings, "metrics": {"warmup_requests": number}})
    assert stated.document["ttft"] == auto.document["ttft"]
    assert auto.summary["ttft.max"] < plain.summary["ttft.max"]
    first, rest = plain.requests["ttft"][:64], plain.requests["ttft"][64:]
    assert abs(auto.summary["ttft.mean"] - rest.mean()) < abs(plain.summary["ttft.mean"] - rest.mean())
    assert first.mean() > 3 * rest.mean()


def test_report_and_comparison_leave_out_the_same(small_experiment: Path, tmp_path: Path) -> None:
    from sim.report.data import load

    result = sim.run(small_experiment, set={"metrics": {"warmup": "auto"}}, out=tmp_path / "run")
    assert load(tmp_path / "run").counted.sum() == result.summary["num_requests"]
