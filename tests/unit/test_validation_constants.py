"""Fitting an engine's constants: what a simulated server had is found again, with honest standard errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import validation_data

from sim.errors import InputError
from sim.validation import blis
from sim.validation.case import Case, Observed
from sim.validation.constants import CONSTANTS, compare, fit_server_constants, shortened
from sim.validation.replay import replay

TRUTH = {
    "small_ops_scale": 1.1,
    "mixed_step_per_layer": 5e-5,
    "eager_step_per_layer": 1.2e-4,
    "client_latency": 6e-3,
    "client_latency_per_sequence": 1e-4,
}


@pytest.fixture
def case(tmp_path: Path) -> Case:
    validation_data.write_blis(tmp_path / "blis")
    return blis.collect(tmp_path / "blis").cases[0]


def _measured_by_simulation(case: Case, constants: dict[str, float], prompt_scale: float = 1.0) -> Case:
    """The case as if a server with these constants had been measured."""
    workload = case.make_workload(1)
    lengths = np.maximum(1, workload.num_prompt_tokens * prompt_scale).astype(np.int64)
    arrival = workload.arrival_time.copy()
    arrival[60:] = arrival[60] + (arrival[60:] - arrival[60]) / 8  # a second stage with more load
    changed = replace(workload, num_prompt_tokens=lengths, arrival_time=arrival, hash_block_size=10_000)
    case = replace(case, make_workload=lambda seed: changed)
    run = replay(case, constants=constants)
    return replace(case, requests=Observed(run.ttft, run.e2e, (0, 60)))


def test_the_constants_of_a_simulated_server_are_found_again(case: Case) -> None:
    cases = [_measured_by_simulation(case, TRUTH, scale) for scale in (1.0, 0.05, 2.5)]
    other = replace(cases[1], pool={**cases[1].pool, "model": "llama-3.1-8b", "kv_cache": {}})
    cases.append(_measured_by_simulation(other, TRUTH))
    fit = fit_server_constants(cases)
    assert fit.residual < 2e-3
    for name in CONSTANTS:
        assert fit.values[name] == pytest.approx(TRUTH[name], rel=0.1), name
    assert np.allclose(np.diag(fit.correlations), 1.0)
    assert all(error >= 0 for error in fit.standard_errors.values())
    assert fit.without("llama-3.1-8b")["small_ops_scale"] == pytest.approx(1.1, rel=0.15)


def test_a_fit_on_fewer_values_than_constants_is_refused(case: Case) -> None:
    alone = _measured_by_simulation(case, TRUTH)
    assert alone.requests is not None
    single = replace(alone, requests=replace(alone.requests, stage_starts=(0,)))
    with pytest.raises(InputError, match="cannot fix 5 constants"):
        fit_server_constants([single])


def test_a_run_without_measured_requests_is_refused(case: Case) -> None:
    with pytest.raises(InputError, match="no measured requests"):
        fit_server_constants([replace(case, requests=None)])


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
    assert np.allclose(compare(case, case.requests.ttft, case.requests.e2e), 0.0)
    slower = compare(case, case.requests.ttft * 1.1, case.requests.e2e)
    assert slower.max() > 0 > slower.min()  # a later first token leaves less time for the others
