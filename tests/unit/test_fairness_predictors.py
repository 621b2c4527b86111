"""Length predictors, what they are told, and the admission policy that prices blocks."""

from __future__ import annotations

import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from engine_runs import run_rows

from policies.admission.estimate_based import EstimateBased
from policies.admission.requests_per_minute import RequestsPerMinute
from policies.length_predictor import LENGTH_PREDICTORS
from policies.length_predictor.constant import Constant
from policies.length_predictor.noisy_oracle import NoisyOracle, uniform
from policies.length_predictor.oracle import Oracle
from policies.length_predictor.quantile import Quantile, RecentLengths
from policies.scheduler.peak_memory import PeakMemory, peak
from policies.scheduler.sorted import Sorted
from sim.build import build
from sim.config import experiment_from_values
from sim.decisions import ADMIT, Delay, Reject
from sim.experiment import run
from sim.result import Status


def request(row: int = 0, **facts: Any) -> Any:
    known = {"row": row, "num_prompt_tokens": 100, "max_output_tokens": 1000, "tenant": None, "request_class": None}
    return SimpleNamespace(**{**known, **facts})


def test_only_oracles_are_told_the_truth() -> None:
    told = {}
    for name, make in LENGTH_PREDICTORS.items():
        predictor = make()
        heard: list[Any] = []
        ask = predictor.predict
        predictor.predict = lambda seq, truth, ask=ask, heard=heard: (heard.append(truth), ask(seq, truth))[1]  # type: ignore[method-assign]
        run_rows([(4, 7)], declared=[50], simulation_options={"length_predictor": predictor})
        told[name] = heard
    assert told == {"none": [None], "constant": [None], "quantile": [None], "noisy_oracle": [7], "oracle": [7]}


def test_quantile_of_the_latest_lengths() -> None:
    seen = RecentLengths(4)
    for length in (900, 10, 20, 30, 40):
        seen.add(length)
    assert [seen.quantile(share) for share in (0.01, 0.25, 0.5, 0.51, 1.0)] == [10, 10, 20, 30, 40]


def test_quantile_learns_by_tenant_and_never_exceeds_what_is_declared() -> None:
    predictor = Quantile(0.5, by="tenant", min_samples=3)
    for length in (100, 200, 300):
        predictor.learn(request(tenant="A"), length)
    assert predictor.predict(request(tenant="A"), None) == 200.0
    assert predictor.predict(request(tenant="A", max_output_tokens=50), None) == 50.0
    assert predictor.predict(request(tenant="B"), None) == 1000.0  # too few samples: as declared


def test_quantile_learns_online_during_a_run() -> None:
    """Ten one after the other, true length 5, declared 50: from the fourth on 5 is expected."""
    options = {"length_predictor": Quantile(0.5, min_samples=3)}
    result = run_rows(
        [(4, 5)] * 10, declared=[50] * 10, arrivals=[10.0 * i for i in range(10)], simulation_options=options
    )
    assert result.requests["predicted_output_tokens"].tolist() == [50.0] * 3 + [5.0] * 7


def test_noise_has_the_stated_spread_and_depends_on_seed_and_row_only() -> None:
    predictor = NoisyOracle(0.5, rng=np.random.default_rng(1))
    predictions = [predictor.predict(request(row, max_output_tokens=10**9), 1000) for row in range(4000)]
    logs = np.log(np.array(predictions, dtype=float) / 1000)
    assert abs(np.median(logs)) < 0.03
    assert abs(logs.std() - 0.5) < 0.02
    again = NoisyOracle(0.5, rng=np.random.default_rng(1))
    assert again.predict(request(77, max_output_tokens=10**9), 1000) == predictions[77]


def test_uniform_numbers_are_uniform() -> None:
    drawn = np.array([uniform(12345, row) for row in range(10_000)])
    assert 0 < drawn.min() < drawn.max() < 1
    counts = np.histogram(drawn, bins=20, range=(0, 1))[0]
    assert ((counts - 500) ** 2 / 500).sum() < 43.8  # chi squared, 19 degrees of freedom, 0.1 %


def test_shortest_first_gains_from_an_oracle_and_less_from_noise() -> None:
    """Mean time to the end with one slot; everybody declares 400."""
    draw = random.Random(4)
    rows = [(4, draw.choice([5, 20, 80, 300])) for _ in range(60)]

    def mean_end(predictor: Any) -> float:
        options = {"length_predictor": predictor}
        scheduler = Sorted(key="sjf")
        result = run_rows(rows, declared=[400] * 60, num_seqs=1, scheduler=scheduler, simulation_options=options)
        return float(result.requests["finish_time"].mean())

    blind, noisy, sure = mean_end(Constant(50.0)), mean_end(NoisyOracle(1.0)), mean_end(Oracle())
    assert sure < noisy < blind


def test_the_summary_names_the_prediction_that_a_scheduler_used() -> None:
    values: dict[str, Any] = {
        "workload": {
            "num_requests": 5,
            "arrivals": {"process": "constant", "rate": 1.0},
            "prompt_tokens": {"distribution": "fixed", "value": 8},
            "output_tokens": {"distribution": "fixed", "value": 8},
        },
        "cluster": {
            "pools": [{"model": "llama-3.1-8b", "gpu": "h100-sxm", "scheduler": {"policy": "sorted", "key": "sjf"}}],
            "length_predictor": {"policy": "oracle"},
        },
    }
    outcome = run(experiment_from_values(values, Path()))
    assert "scheduler 'sorted' decides by the lengths of predictor 'oracle'" in outcome.summary["warnings"]
    found = outcome.summary["length_prediction"]
    assert (found["num_predicted"], found["mean_error"], found["share_too_short"]) == (5, 0.0, 0.0)
    values["cluster"].pop("length_predictor")
    warnings = build(experiment_from_values(values, Path())).warnings
    assert "scheduler 'sorted' decides by the declared maximum, for want of a length predictor" in warnings


# --- admission by price -----------------------------------------------------------------------------------------------


def cluster(num_blocks: int) -> Any:
    return SimpleNamespace(replicas=[SimpleNamespace(num_kv_blocks=num_blocks, kv_block_size=16)])


def test_a_request_costs_its_prompt_and_its_declared_output_until_its_tenant_is_known() -> None:
    policy = EstimateBased(min_samples=2)
    assert policy.price(request(), 16) == math.ceil(1100 / 16)
    for row in (1, 2):
        assert policy.admit(request(row), cluster(1000), 0.0) is ADMIT
        policy.ended(request(row), 60, finished=True)
    assert policy.price(request(), 16) == 10
    assert policy.num_promised == 0


def test_promises_stay_within_the_budget() -> None:
    policy = EstimateBased(overcommit=0.5)
    assert policy.admit(request(1), cluster(200), 0.0) is ADMIT  # 69 of 100 blocks
    answer = policy.admit(request(2), cluster(200), 0.0)
    assert isinstance(answer, Reject)
    assert answer.reason == "estimate_based: 69 blocks on top of 69 of 100"
    policy.ended(request(1), 3, finished=False)  # cancelled: room again, nothing learned
    assert policy.admit(request(2), cluster(200), 0.0) is ADMIT


def test_a_full_cluster_can_delay_instead() -> None:
    policy = EstimateBased(when_full="delay", retry_interval=2.0)
    policy.admit(request(1, max_output_tokens=2900), cluster(200), 0.0)
    assert policy.admit(request(2), cluster(200), 7.0) == Delay(9.0)


def test_a_request_beyond_the_budget_is_let_in_alone() -> None:
    assert EstimateBased().admit(request(1), cluster(10), 0.0) is ADMIT


@pytest.mark.parametrize("pricing", ["declared", "learned"])
def test_learned_prices_undo_exaggeration(pricing: Any) -> None:
    """Everybody declares ten times what it needs: by declaration four get in at once, by experience all."""
    result = run_rows(
        [(10, 10)] * 120,
        declared=[100] * 120,
        arrivals=[float(i) for i in range(120)],
        num_blocks=29,
        num_seqs=100,
        admission=EstimateBased(pricing, min_samples=5),
    )
    rejected = int((result.requests["status"] == Status.REJECTED).sum())
    assert rejected > 60 if pricing == "declared" else rejected < 15


def test_peak_of_a_batch_by_hand() -> None:
    """EX-PM: lengths and remaining outputs A (100, 50), C (31, 19), B (60, 10) need 150, 169 and 221 tokens."""
    assert peak([(50, 100)]) == 150
    assert peak([(50, 100), (19, 31)]) == 169
    assert peak([(10, 60), (50, 100), (19, 31)]) == 221


@pytest.mark.parametrize(("num_blocks", "together"), [(222, True), (221, False)])
def test_peak_memory_admits_what_will_fit_to_the_end(num_blocks: int, together: bool) -> None:
    """The batch of EX-PM with blocks of one token: the third gets in at once only with more than 221 tokens."""
    rows = [(100, 50), (31, 19), (60, 10)]
    result = run_rows(rows, num_blocks=num_blocks + 1, block_size=1, budget=1000, scheduler=PeakMemory())
    assert bool(result.requests["first_scheduled_time"][2] == 0.0) == together
    assert result.requests["num_preemptions"].tolist() == [0, 0, 0]


def test_requests_per_minute_counts_what_was_let_in_within_the_last_minute() -> None:
    quota = RequestsPerMinute(limit=2)
    answers = [quota.admit(request(tenant="A"), None, now) for now in (0.0, 30.0, 59.0, 60.0, 61.0)]  # type: ignore[arg-type]
    assert [answer == ADMIT for answer in answers] == [True, True, False, True, False]
    assert answers[2] == Reject("requests_per_minute: 2 requests of this tenant in the last minute")
    assert quota.admit(request(tenant="B"), None, 61.0) == ADMIT  # type: ignore[arg-type]
