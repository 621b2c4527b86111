"""llama.cpp's slots on the worked example of its server: slot choice, reuse, and prompts behind decodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.config import experiment_from_values
from sim.experiment import Outcome, run
from sim.kv.slots import SlotKV


def serve(tmp_path: Path, rows: list[str], batch: int, parallel: int = 2, num_blocks: int = 129) -> Outcome:
    """Run rows of (arrival, prompt, output, ids) with steps of one second and blocks of one token's hash each."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(rows) + "\n")
    pool = {
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "engine": "llama-server",
        "scheduler": {"policy": "llama_server", "max_num_batched_tokens": batch, "max_num_seqs": min(batch, 256)},
        "kv_cache": {"allocator": "slots", "parallel": parallel, "num_blocks": num_blocks, "block_size": 1},
        "cost_model": {"kind": "constant", "step_duration": 1.0},
    }
    values = {
        "workload": {"trace": str(trace), "format": "mooncake", "hash_block_size": 1},
        "cluster": {"pools": [pool]},
    }
    return run(experiment_from_values(values, tmp_path))


def row(second: float, prompt: list[int], output: int) -> str:
    return (
        f'{{"timestamp": {int(second * 1000)}, "input_length": {len(prompt)}, "output_length": {output}, '
        f'"hash_ids": {prompt}}}'
    )


FIRST = list(range(1, 11))
SIMILAR = [*range(1, 7), *range(101, 107)]  # 6 of 12 tokens as in FIRST


def test_a_similar_prompt_reuses_the_slot_of_its_predecessor(tmp_path: Path) -> None:
    """EX-L1: 6 of 12 tokens are in the idle slot, 6 are left to compute; the first token comes with the same step."""
    rows = [row(0, FIRST, 1), row(0, list(range(500, 503)), 60), row(20, SIMILAR, 2)]
    requests = serve(tmp_path, rows, batch=8).requests
    assert list(requests["num_cached_tokens"]) == [0, 0, 6]
    assert requests["first_token_time"][2] == 21.0


def test_prompts_take_what_the_decodes_leave_of_the_batch(tmp_path: Path) -> None:
    """EX-L1 with n_batch 4: one decode and 3 prompt tokens a step, so the first token needs two steps."""
    rows = [row(0, FIRST, 1), row(0, list(range(500, 503)), 60), row(20, SIMILAR, 2)]
    assert serve(tmp_path, rows, batch=4).requests["first_token_time"][2] == 22.0


def test_requests_wait_for_a_slot_and_nobody_is_preempted(tmp_path: Path) -> None:
    rows = [row(0, [i * 50 + j for j in range(5)], 10) for i in range(3)]
    outcome = serve(tmp_path, rows, batch=64)
    assert list(outcome.requests["first_scheduled_time"]) == [0.0, 0.0, 10.0]
    assert outcome.summary["num_preemptions"] == 0


def test_a_sequence_ends_when_its_slot_is_full(tmp_path: Path) -> None:
    """64 tokens a slot, 60 of prompt: 4 outputs, as the context shift is not modelled."""
    outcome = serve(tmp_path, [row(0, list(range(60)), 50)], batch=64)
    assert list(outcome.requests["num_output_tokens"]) == [4]


def test_a_prompt_as_long_as_a_slot_is_unservable(tmp_path: Path) -> None:
    outcome = serve(tmp_path, [row(0, list(range(64)), 5)], batch=64)
    assert list(outcome.requests["status"]) == ["unservable"]


@pytest.mark.parametrize(("similarity", "slot"), [(0.1, 1), (0.0, 3)])
def test_the_least_recently_used_slot_is_taken_where_none_is_similar_enough(similarity: float, slot: int) -> None:
    """Ties of never used slots go to the later one."""
    kv = SlotKV(4, 100, similarity, cache_prompt=True)
    kv._idle[1].key = [("a", 0, 10)]
    content = kv.content([("a", 0, 20)], 20)
    kv.match(content, 19)
    assert content.slot is not None
    assert content.slot.index == slot
