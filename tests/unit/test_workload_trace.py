"""What happens to the rows of a trace: order, failed rows, windows, ties, copies, and the real files at full size."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim.errors import InputError
from sim.seeds import Seeds
from sim.workload.config import WorkloadConfig
from sim.workload.trace import Trace, load_trace, spread_ties

HEADER = "arrived_at,num_prefill_tokens,num_decode_tokens\n"


def read(path: Path, **options: Any) -> Trace:
    return load_trace(path, WorkloadConfig.model_validate({"trace": str(path), **options}), Seeds(1))


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Ten rows a second apart; the third failed."""
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "".join(f"{i},{i + 1},{0 if i == 2 else 5}\n" for i in range(10)))
    return path


def test_failed_rows_are_dropped_and_counted(rows: Path) -> None:
    trace = read(rows)
    assert (len(trace.workload), trace.num_rows, trace.num_failed_rows) == (9, 10, 1)
    assert "1 failed rows (no prompt or output tokens) dropped" in trace.workload.notes


def test_failed_rows_can_be_kept_or_refused(rows: Path) -> None:
    assert read(rows, failed_rows="keep_as_one").workload.num_output_tokens[2] == 1
    with pytest.raises(InputError, match=r"trace\.csv:4: failed request"):
        read(rows, failed_rows="error")


def test_limit_counts_requests_that_are_kept(rows: Path) -> None:
    assert read(rows, limit=4).workload.num_prompt_tokens.tolist() == [1, 2, 4, 5]


def test_start_and_end_cut_a_window_that_begins_at_zero(rows: Path) -> None:
    trace = read(rows, start=3.5, end=7)
    assert trace.workload.num_prompt_tokens.tolist() == [5, 6, 7]
    assert trace.workload.arrival_time.tolist() == [0, 1, 2]
    with pytest.raises(InputError, match="none of its 10 requests is left"):
        read(rows, start=100)


def test_rate_scale_divides_the_gaps(rows: Path) -> None:
    assert read(rows, rate_scale=4).workload.arrival_time[-1] == 9 / 4


def test_unsorted_rows_are_sorted_stably_and_noted(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "5,1,1\n3,2,1\n5,3,1\n3,4,1\n")
    trace = read(path)
    assert trace.workload.num_prompt_tokens.tolist() == [2, 4, 1, 3]
    assert trace.workload.arrival_time.tolist() == [0, 0, 2, 2]
    assert not trace.was_sorted
    assert "not in order of time" in trace.workload.warnings[0]


def test_ties_are_spread_evenly_in_row_order() -> None:
    spread = spread_ties(np.array([0.0, 0, 0, 0, 3, 7, 7]), 2.0)
    assert spread.tolist() == [0, 0.5, 1.0, 1.5, 3, 7, 8]


def test_spread_ties_says_so(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "0,1,1\n0,2,1\n0,3,1\n")
    trace = read(path, spread_ties=3.0)
    assert trace.workload.arrival_time.tolist() == [0, 1, 2]
    assert "equal time stamps spread over 3 s" in trace.workload.notes


def test_repeated_copies_follow_each_other_and_share_no_prefix(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    row = {"input_length": 5, "output_length": 5}
    path.write_text("".join(json.dumps({**row, "timestamp": 1000 * i, "hash_ids": [9]}) + "\n" for i in range(3)))
    workload = read(path, repeat=2).workload
    assert workload.arrival_time.tolist() == [0, 1, 2, 3, 4, 5]
    assert workload.hash_ids is not None
    assert workload.hash_ids.values.tolist() == [0, 0, 0, 1, 1, 1]


def test_a_big_file_is_read_in_chunks_and_only_as_far_as_needed(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "".join(f"{i},7,8\n" for i in range(70_000)) + "broken\n")
    assert read(path, limit=66_000).workload.arrival_time[-1] == 65_999
    with pytest.raises(InputError, match=r"trace\.csv:70002: expected 3 fields"):
        read(path)


def test_a_session_without_its_first_turn_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    turns = [
        {"session_id": "a", "timestamp": 0, "input_length": 5, "output_length": 5},
        {"session_id": "b", "input_length": 5, "output_length": 5, "delay": 1},
    ]
    path.write_text("".join(json.dumps(turn) + "\n" for turn in turns))
    with pytest.raises(InputError, match="first turn kept of session 'b' has no arrival time"):
        read(path)


def test_full_prompts_of_sessions_contain_the_turn_before(tmp_path: Path) -> None:
    """Context that grows goes on with the chain of ids; a shorter one (compacted) starts another."""
    path = tmp_path / "trace.csv"
    turns = "0,,a,32,16\n,1,a,64,16\n,1,a,40,16\n"
    path.write_text("arrival_time,delay,session_id,num_prompt_tokens,num_output_tokens\n" + turns)
    workload = read(path, session_prompts="full").workload
    ids, more = workload.hash_ids, workload.output_hash_ids
    assert ids is not None
    assert more is not None
    assert ids.row(1)[:3].tolist() == [*ids.row(0), *more.row(0)]
    assert not set(ids.row(2)) & {*ids.row(0), *ids.row(1)}
    assert read(path).workload.hash_ids is None


REAL = {
    "azure_llm_2023/AzureLLMInferenceTrace_conv.csv.gz": ("azure", 19_366, 3501.72, 1154.70, 211.13),
    "azure_llm_2023/AzureLLMInferenceTrace_code.csv.gz": ("azure", 8_819, 3435.95, 2047.85, 27.88),
    "vidur_processed/splitwise_conv.csv.gz": ("vidur", 19_366, 3501.72, 1154.70, 211.13),
    "mooncake_fast25/conversation_trace.jsonl.gz": ("mooncake", 12_031, 3536.999, 12_035.06, 342.62),
    "mooncake_fast25/synthetic_trace.jsonl.gz": ("mooncake", 3_993, 1022.025, 15_325.48, 149.12),
    "llmservingsim/workload_me2_01_mixed.jsonl.gz": ("llmservingsim", 608, 60.898, 9_217.77, 3_021.4),
    "secondhand_samples/burstgpt_first54.csv": ("burstgpt", 51, 3293.0, None, None),
    "splitwise_test_trace.csv": ("splitwise", 3, 3.0, None, None),
}


@pytest.mark.parametrize("name", REAL)
def test_real_traces_are_read_whole(shared_data: Path, name: str) -> None:
    """Rows, span and mean lengths are those of the data's own table of statistics."""
    format, num, span, prompt, output = REAL[name]
    trace = read(shared_data / "traces" / name)
    workload = trace.workload
    assert (trace.format, len(workload)) == (format, num)
    assert workload.arrival_time[-1] == pytest.approx(span, abs=0.01)
    if prompt is not None:
        assert workload.num_prompt_tokens.mean() == pytest.approx(prompt, abs=0.01)
        assert workload.num_output_tokens.mean() == pytest.approx(output, abs=0.05)


def test_azure_and_vidurs_copy_of_it_are_the_same_requests(shared_data: Path) -> None:
    azure = read(shared_data / "traces/azure_llm_2023/AzureLLMInferenceTrace_conv.csv.gz").workload
    vidur = read(shared_data / "traces/vidur_processed/splitwise_conv.csv.gz").workload
    assert np.array_equal(azure.num_prompt_tokens, vidur.num_prompt_tokens)
    assert azure.arrival_time == pytest.approx(vidur.arrival_time, abs=1e-6)


def test_reading_the_azure_trace_takes_no_noticeable_time(shared_data: Path) -> None:
    """0.2 s of processor time where it was measured; the bound leaves room for a slow machine."""
    path = shared_data / "traces/azure_llm_2023/AzureLLMInferenceTrace_conv.csv.gz"
    start = time.process_time()
    read(path)
    assert time.process_time() - start < 1.0


def test_real_multi_turn_sessions_hold_together(shared_data: Path) -> None:
    workload = read(shared_data / "traces/inferencex/synthetic_multiturn.first6000.jsonl.gz").workload
    previous, sessions = workload.previous, workload.session_id
    assert previous is not None
    assert sessions is not None
    later = np.flatnonzero(previous >= 0)
    assert len(workload) - len(later) == len(set(sessions))
    assert all(sessions[i] == sessions[previous[i]] for i in later)
    ends = workload.num_prompt_tokens + workload.num_output_tokens
    assert (workload.num_prompt_tokens[later] > ends[previous[later]]).all()


def test_real_servegen_clients_give_their_rates(shared_data: Path) -> None:
    """The client deepseek-r1/chunk-0 is idle first; m-small/chunk-17 has 2.965/s, then 40.4/s in windows of 600 s."""
    folder = shared_data / "traces/servegen/language/m-small"
    workload = read(folder / "chunk-17-trace.csv.gz", end=1200).workload
    counts = np.histogram(workload.arrival_time, bins=[0, 600, 1201])[0]
    assert counts.sum() == pytest.approx(600 * (2.965 + 40.4), rel=0.001)
    assert 13 <= workload.num_prompt_tokens.min() <= workload.num_prompt_tokens.max() <= 18
