"""What is said of a workload: known numbers of the real traces, hand-made ones, and warnings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sim.seeds import Seeds
from sim.workload.base import Workload
from sim.workload.config import WorkloadConfig
from sim.workload.describe import describe
from sim.workload.prefix import ragged
from sim.workload.trace import load_trace


def workload(times: list[float], prompt: list[int]) -> Workload:
    lengths = np.array(prompt, dtype=np.int64)
    return Workload(np.array(times), lengths, lengths, lengths)


@pytest.mark.parametrize(("name", "by_block"), [("conversation", 0.3664), ("synthetic", 0.6396)])
def test_mooncakes_ideal_hit_rates(shared_data: Path, name: str, by_block: float) -> None:
    """36.64 % and 63.96 % of the blocks, counted on the published traces."""
    path = shared_data / f"traces/mooncake_fast25/{name}_trace.jsonl.gz"
    trace = load_trace(path, WorkloadConfig(trace=str(path)), Seeds(1))
    described = describe(trace.workload, trace)
    assert described["prefix"]["block_hit_rate"] == pytest.approx(by_block, abs=5e-5)
    assert by_block < described["prefix"]["token_hit_rate"] < by_block + 0.02
    assert any("first" in text and "block hit rate" in text for text in described["warnings"])
    json.dumps(described)


@pytest.mark.parametrize(("name", "cv"), [("code", 13.152), ("conv", 1.0942)])
def test_azures_burstiness(shared_data: Path, name: str, cv: float) -> None:
    path = shared_data / f"traces/azure_llm_2023/AzureLLMInferenceTrace_{name}.csv.gz"
    described = describe(load_trace(path, WorkloadConfig(trace=str(path)), Seeds(1)).workload)
    assert described["arrivals"]["gap_cv"] == pytest.approx(cv, abs=0.001)
    assert described["prefix"] is None


def test_lengths_and_rates_of_a_hand_made_workload() -> None:
    described = describe(workload([0, 1, 2, 5], [10, 20, 30, 40]))
    assert described["num_prompt_tokens"] == 100
    assert described["prompt_tokens"]["mean"] == 25
    assert described["prompt_tokens"]["p50"] == 25
    assert described["arrivals"]["rate"] == 3 / 5
    assert described["arrivals"]["gap_cv"] == pytest.approx(np.std([1, 1, 3]) / np.mean([1, 1, 3]))
    assert described["length_correlation"] == pytest.approx(1.0)


def test_one_request_and_equal_lengths_have_no_undefined_numbers() -> None:
    described = describe(workload([0.0], [5]))
    assert described["arrivals"]["rate"] is None
    assert described["length_correlation"] is None
    assert "NaN" not in json.dumps(described)


def test_ties_are_warned_of_with_the_remedy() -> None:
    times = sorted([3.0 * (i // 10) for i in range(200)])
    warnings = describe(workload(times, [5] * 200))["warnings"]
    assert any("90% of the requests share the time stamp" in text and "spread_ties: 3" in text for text in warnings)


def test_simultaneous_arrivals_are_warned_of() -> None:
    assert "all requests arrive at the same time" in describe(workload([0.0] * 5, [5] * 5))["warnings"]


def test_repeated_prompts_are_warned_of() -> None:
    repeated = replace(workload([float(i) for i in range(50)], [5] * 50), hash_ids=ragged([[1]] * 50))
    described = describe(repeated)
    assert described["prefix"]["share_of_repeated_prompts"] == 49 / 50
    assert any("almost all prompts repeat" in text for text in described["warnings"])


def test_unrepresentative_beginnings_are_warned_of() -> None:
    n = 4000
    prompt = [100] * (n // 4) + [1000] * (3 * n // 4)
    warnings = describe(workload([float(i) for i in range(n)], prompt))["warnings"]
    assert any("the first 1000 rows are not representative" in text and "mean prompt" in text for text in warnings)
    assert describe(workload([float(i) for i in range(n)], [100] * n))["warnings"] == []


def test_sessions_are_timed_by_their_first_turns() -> None:
    chained = replace(
        workload([0.0, 0.0, 4.0, 4.0], [5, 9, 5, 9]),
        previous=np.array([-1, 0, -1, 2]),
        delay=np.zeros(4),
        session_id=["a", "a", "b", "b"],
    )
    described = describe(chained)
    assert described["arrivals"]["rate"] == 1 / 4
    assert described["num_sessions"] == 2
