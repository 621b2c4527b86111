"""Fitted statistics and what is drawn from them: close to the real traces in all that is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim.errors import InputError
from sim.seeds import Seeds
from sim.workload.base import Workload
from sim.workload.config import WorkloadConfig
from sim.workload.describe import describe
from sim.workload.prefix import num_blocks, num_chain_breaks
from sim.workload.synthesize import Statistics, fit, load_statistics, rank_correlation, synthesize
from sim.workload.trace import load_trace

TRACES = {
    "azure conv": "azure_llm_2023/AzureLLMInferenceTrace_conv.csv.gz",
    "azure code": "azure_llm_2023/AzureLLMInferenceTrace_code.csv.gz",
    "mooncake conversation": "mooncake_fast25/conversation_trace.jsonl.gz",
    "mooncake synthetic": "mooncake_fast25/synthetic_trace.jsonl.gz",
}


def poisson_workload(n: int = 3000) -> Workload:
    rng = np.random.default_rng(0)
    prompt = np.maximum(1, rng.lognormal(6, 1, n)).astype(np.int64)
    output = np.maximum(1, prompt * rng.uniform(0.1, 0.3, n)).astype(np.int64)
    times = np.concatenate([[0.0], np.cumsum(rng.exponential(0.5, n - 1))])
    return Workload(times, prompt, output, output, name="poisson")


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("size", [None, 1500])
def test_drawn_requests_are_like_the_real_ones(shared_data: Path, name: str, size: int | None) -> None:
    path = shared_data / "traces" / TRACES[name]
    real = load_trace(path, WorkloadConfig(trace=str(path)), Seeds(1)).workload
    statistics = Statistics.model_validate_json(fit(real).model_dump_json())  # through the file that is published
    drawn = synthesize(statistics, size or len(real), Seeds(11))
    one, two = describe(real), describe(drawn)
    for kind in ("prompt_tokens", "output_tokens"):
        assert two[kind]["mean"] == pytest.approx(one[kind]["mean"], rel=0.03)
        assert two[kind]["p50"] == pytest.approx(one[kind]["p50"], rel=0.03, abs=1)
        assert two[kind]["p99"] == pytest.approx(one[kind]["p99"], rel=0.05)
    assert two["arrivals"]["rate"] == pytest.approx(one["arrivals"]["rate"], rel=0.001)
    assert two["arrivals"]["gap_cv"] == pytest.approx(one["arrivals"]["gap_cv"], rel=0.2)
    assert _rank(drawn) == pytest.approx(_rank(real), abs=0.07)
    if one["prefix"] is not None:
        assert two["prefix"]["block_hit_rate"] == pytest.approx(one["prefix"]["block_hit_rate"], abs=0.025)
        assert two["prefix"]["token_hit_rate"] == pytest.approx(one["prefix"]["token_hit_rate"], abs=0.025)


def _rank(workload: Workload) -> float:
    return rank_correlation(workload.num_prompt_tokens, workload.num_output_tokens)


def test_drawn_prefixes_are_chained_and_fill_their_prompts(repository: Path) -> None:
    statistics = load_statistics(repository / "traces/statistics/mooncake_conversation.json")
    drawn = synthesize(statistics, 800, Seeds(2))
    assert drawn.hash_ids is not None
    assert num_chain_breaks(drawn.hash_ids) == 0
    assert np.array_equal(np.diff(drawn.hash_ids.offsets), num_blocks(drawn.num_prompt_tokens, 512))


def test_drawing_is_reproducible_and_arrivals_do_not_depend_on_lengths() -> None:
    statistics = fit(poisson_workload())
    one, same, other = (synthesize(statistics, 500, Seeds(seed)) for seed in (1, 1, 2))
    assert np.array_equal(one.num_prompt_tokens, same.num_prompt_tokens)
    assert not np.array_equal(one.num_prompt_tokens, other.num_prompt_tokens)
    changed = statistics.model_copy(update={"prompt_tokens": [5.0] * len(statistics.prompt_tokens)})
    assert np.array_equal(synthesize(changed, 500, Seeds(1)).arrival_time, one.arrival_time)


def test_correlated_lengths_stay_correlated() -> None:
    real = poisson_workload()
    drawn = synthesize(fit(real), 3000, Seeds(1))
    assert _rank(real) > 0.9
    assert _rank(drawn) == pytest.approx(_rank(real), abs=0.02)


def test_bursts_stay_together() -> None:
    """A calm half and a busy half: the drawn trace has them too, whatever its length."""
    times = np.concatenate([np.arange(1000) * 1.0, 1000 + np.arange(1000) * 0.1])
    lengths = np.full(2000, 5)
    drawn = synthesize(fit(Workload(times, lengths, lengths, lengths, name="halves")), 400, Seeds(1))
    gaps = np.diff(drawn.arrival_time)
    assert gaps[:190].mean() == pytest.approx(1.0, rel=0.1)
    assert gaps[210:].mean() == pytest.approx(0.1, rel=0.2)


def test_one_request_can_be_drawn() -> None:
    assert synthesize(fit(poisson_workload()), 1, Seeds(1)).arrival_time.tolist() == [0.0]


def test_statistics_hold_no_rows() -> None:
    statistics = fit(poisson_workload(20_000))
    assert len(statistics.model_dump_json()) < 20_000


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "is not JSON"), ("{}", "is not a file of trace statistics"), ('{"source": 3}', "source")],
)
def test_broken_statistics_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "s.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        load_statistics(path)


def test_tables_of_another_length_are_refused() -> None:
    statistics = fit(poisson_workload())
    with pytest.raises(InputError, match=r"prompt_tokens: expected .* rising quantiles"):
        synthesize(statistics.model_copy(update={"prompt_tokens": [1.0, 2.0]}), 5, Seeds(1))


@pytest.mark.parametrize(("n", "scale", "message"), [(20, 1.0, "too few"), (100, 0.0, "no arrival process")])
def test_what_cannot_be_fitted_is_said(n: int, scale: float, message: str) -> None:
    lengths: Any = np.full(n, 5)
    with pytest.raises(InputError, match=message):
        fit(Workload(np.arange(n) * scale, lengths, lengths, lengths))
