"""Fitting an engine's constants: what a simulated server had is found again, with honest standard errors."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import validation_data

from sim import catalogue
from sim.errors import InputError
from sim.validation import blis
from sim.validation.case import Case, Observed
from sim.validation.constants import CONSTANTS, compare, fit_server_constants, shortened
from sim.validation.replay import replay
from sim.validation.workloads import replayed

TRUTH = {
    "small_ops_scale": 1.1,
    "mixed_step_per_layer": 5e-5,
    "eager_step_per_layer": 1.2e-4,
    "client_latency": 6e-3,
    "client_latency_per_sequence": 1e-4,
}


@pytest.fixture(autouse=True)
def _parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catalogue files are parsed once: a fit builds dozens of simulations."""
    monkeypatch.setattr(catalogue, "_read_packaged", cache(catalogue._read_packaged))


@pytest.fixture
def case(tmp_path: Path) -> Case:
    validation_data.write_blis(tmp_path / "blis")
    return blis.collect(tmp_path / "blis").cases[0]


def _measured_by_simulation(case: Case, prompt: int, output: int, gap: float, model: str = "llama-2-7b") -> Case:
    """A case with equal requests as if a server with the true constants had been measured."""
    size = validation_data.NUM_REQUESTS
    arrival = np.cumsum(np.random.default_rng(prompt).uniform(0.0, 2.0 * gap, size))
    prompts, outputs = np.full(size, prompt), np.full(size, output)
    pool = {**case.pool, "model": model, "kv_cache": {"num_blocks": 20_000}}
    case = replace(case, pool=pool, make_workload=lambda seed: replayed(arrival, prompts, outputs))
    run = replay(case, constants=TRUTH)
    return replace(case, requests=Observed(run.ttft, run.e2e, (0, size // 2)))


def test_the_constants_of_a_simulated_server_are_found_again(case: Case) -> None:
    cases = [
        _measured_by_simulation(case, 16, 200, 0.4),  # decode steps of few sequences
        _measured_by_simulation(case, 100, 20, 0.01),  # small mixed steps, of a tile or two
        _measured_by_simulation(case, 600, 20, 0.15),  # mixed steps beyond the largest graph
        _measured_by_simulation(case, 100, 60, 0.03, model="llama-3.1-8b"),
    ]
    fit = fit_server_constants(cases)
    assert fit.residual < 1e-2
    for name in CONSTANTS:
        most = 0.35 if name == "client_latency_per_sequence" else 0.15  # a few sequences run at a time
        assert fit.values[name] == pytest.approx(TRUTH[name], rel=most), name
    assert np.allclose(np.diag(fit.correlations), 1.0)
    assert all(error >= 0 for error in fit.standard_errors.values())
    assert fit.without("llama-3.1-8b")["small_ops_scale"] == pytest.approx(1.1, rel=0.2)


def test_a_fit_on_fewer_values_than_constants_is_refused(case: Case) -> None:
    alone = _measured_by_simulation(case, 100, 20, 0.1)
    assert alone.requests is not None
    single = replace(alone, requests=replace(alone.requests, stage_starts=(0,)))
    with pytest.raises(InputError, match="cannot fix 5 constants"):
        fit_server_constants([single])


def test_of_a_run_without_requests_the_means_are_compared(case: Case) -> None:
    means = replace(case, requests=None, measured={"ttft.mean": 0.02, "tpot.mean": 0.01})
    errors = compare(means, np.full(3, 0.03), np.full(3, 0.03 + 0.19), np.full(3, 20))
    assert errors == pytest.approx([0.0, 0.25])  # TTFT half again as long, at half the weight


def test_a_shortened_run_has_the_head_of_each_stage_and_compares_less(case: Case) -> None:
    short = shortened(case, most=40, trailing=10)
    assert short.requests is not None
    assert len(short.make_workload(1)) == 80
    assert short.requests.stage_starts == (0, 40)
    assert np.isnan(short.requests.e2e[30:40]).all()
    assert np.isfinite(short.requests.e2e[:30]).all()
    assert short.make_workload(1).arrival_time[40] == case.make_workload(1).arrival_time[60]


def test_a_perfect_prediction_has_no_residual(case: Case) -> None:
    assert case.requests is not None
    outputs = np.full(validation_data.NUM_REQUESTS, 20)
    assert np.allclose(compare(case, case.requests.ttft, case.requests.e2e, outputs), 0.0)
    slower = compare(case, case.requests.ttft * 1.1, case.requests.e2e, outputs)
    assert slower.max() > 0 > slower.min()  # a later first token leaves less time for the others
