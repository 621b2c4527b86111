"""TensorRT-LLM's rules on the worked examples of its capacity and micro-batch schedulers."""

from __future__ import annotations

from pathlib import Path

from policies.scheduler.trtllm import TensorRtLlm, equal_progress, first_come_first_served
from sim.config import experiment_from_values
from sim.experiment import run


def test_chunks_first_come_first_served_are_cut_to_whole_units() -> None:
    """Capacity 100, unit 32, three prompts of 80: the second would get 20, which rounds to nothing."""
    assert first_come_first_served(100, [80, 80, 80], 32) == [80, 0, 0]


def test_chunks_of_equal_progress_take_turns() -> None:
    """The next unit after 96 tokens does not fit."""
    assert equal_progress(100, [80, 80, 80], 32) == [32, 32, 32]


def test_no_capacity_is_wasted_when_everything_fits() -> None:
    assert TensorRtLlm(chunking="equal_progress")._shares(300, [80, 80, 80], 300) == [80, 80, 80]


ROWS = ((100, 60), (64, 64), (32, 32), (16, 16))  # prompt and output of A, B, C, D


def first_scheduled(tmp_path: Path, capacity: str) -> list[float]:
    """When A to D, all present at 0, are first scheduled: blocks of 32 tokens, 10 usable, steps of one second."""
    trace = tmp_path / "trace.csv"
    lines = [f"0,{prompt},{output}" for prompt, output in ROWS]
    trace.write_text("\n".join(["arrival_time,num_prompt_tokens,num_output_tokens", *lines]) + "\n")
    pool = {
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "engine": "trtllm",
        "scheduler": {"policy": "trtllm", "capacity": capacity},
        "kv_cache": {"num_blocks": 11, "block_size": 32, "prefix_caching": False},
        "cost_model": {"kind": "constant", "step_duration": 1.0},
    }
    values = {"workload": {"trace": str(trace)}, "cluster": {"pools": [pool]}}
    outcome = run(experiment_from_values(values, tmp_path))
    return list(outcome.requests["first_scheduled_time"])


def test_no_evict_admits_what_can_be_completed_and_stops_at_the_first_that_cannot(tmp_path: Path) -> None:
    """A needs 5 blocks to completion, B 4, C 2: C does not fit, and D (1) is not tried although a block is left."""
    assert first_scheduled(tmp_path, "guaranteed_no_evict") == [0.0, 0.0, 60.0, 60.0]


def test_max_utilization_needs_memory_for_the_next_step_only(tmp_path: Path) -> None:
    """4 + 2 + 1 + 1 = 8 blocks: all four start at once."""
    assert first_scheduled(tmp_path, "max_utilization") == [0.0, 0.0, 0.0, 0.0]


def test_static_batches_do_not_mix(tmp_path: Path) -> None:
    """C and D wait until A and B have both ended."""
    assert first_scheduled(tmp_path, "static_batch") == [0.0, 0.0, 64.0, 64.0]
