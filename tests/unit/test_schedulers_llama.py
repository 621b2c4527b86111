"""llama.cpp's slots on the worked example of its server: slot choice, reuse, and prompts behind decodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sim.config import experiment_from_values
from sim.errors import InputError
from sim.experiment import Outcome, run
from sim.kv.slots import SlotKV
from sim.request import Sequence


def serve(
    tmp_path: Path, rows: list[str], batch: int, parallel: int = 2, num_blocks: int = 129, **slots: Any
) -> Outcome:
    """Run rows of (arrival, prompt, output, ids) with steps of one second and blocks of one token's hash each."""
    cost = slots.pop("cost", {"kind": "constant", "step_duration": 1.0})
    scheduler = slots.pop("scheduler", {"policy": "llama_server"})
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(rows) + "\n")
    pool = {
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "engine": "llama-server",
        "scheduler": {**scheduler, "max_num_batched_tokens": batch, "max_num_seqs": min(batch, 256)},
        "kv_cache": {"allocator": "slots", "parallel": parallel, "num_blocks": num_blocks, "block_size": 1, **slots},
        "cost_model": cost,
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
    """64 tokens a slot, 60 of prompt: 4 outputs, as the server does by default."""
    outcome = serve(tmp_path, [row(0, list(range(60)), 50)], batch=64)
    assert list(outcome.requests["num_output_tokens"]) == [4]


@pytest.mark.parametrize(("computed", "left"), [(63, 36), (62, 36), (9, 9)])
def test_a_shift_keeps_the_first_tokens_and_the_later_half_of_the_others(computed: int, left: int) -> None:
    """EX-L2: 64 tokens a slot, 9 kept: at 63 tokens 27 of the other 54 are dropped and 36 remain."""
    kv = SlotKV(1, 64, 0.1, cache_prompt=True, keep=9)
    seq = Sequence(0, 0.0, 9, 100, 100)
    seq.content, seq.num_computed = kv.content([], 9), computed
    assert computed - kv.shift(seq) == left
    assert (kv.tokens_until_shift(62), kv.tokens_until_shift(63)) == (1, 0)


def test_with_context_shift_a_sequence_goes_on_in_a_full_slot(tmp_path: Path) -> None:
    """60 of 64 tokens are prompt: 3 decode steps fill the slot to 63, then each 27 and 28 others in turn."""
    rows = [row(0, list(range(60)), 200), row(300, list(range(60)), 1)]
    outcome = serve(tmp_path, rows, batch=64, parallel=1, num_blocks=65, context_shift=True, keep=9)
    assert list(outcome.requests["num_output_tokens"]) == [200, 1]
    assert list(outcome.requests["finish_time"]) == [200.0, 301.0]
    assert list(outcome.requests["num_cached_tokens"]) == [0, 9]
    kv = outcome.summary["kv_cache"]
    assert sum(kv[f"{name}_share"] for name in ("token", "reserved", "internal", "external")) == pytest.approx(1.0)
    assert 0.3 < kv["token_share"] < 1.0


def test_context_shift_shortens_the_context_that_a_step_reads(tmp_path: Path) -> None:
    """One microsecond a context token: contexts 61, 62, 63 and then 37 .. 63 over and over (by hand for 40 outputs)."""
    contexts = [61, 62, 63, *range(37, 64), *range(37, 46)]
    rows = [row(0, list(range(60)), 1 + len(contexts))]
    cost = {"kind": "constant", "step_duration": 1.0, "per_context_token": 2.0**-20}
    outcome = serve(tmp_path, rows, 64, 1, 65, context_shift=True, keep=9, cost=cost)
    requests = outcome.requests
    decode = requests["finish_time"][0] - requests["first_token_time"][0]
    assert decode == len(contexts) + sum(contexts) * 2.0**-20


def test_context_shift_goes_with_its_scheduler_only(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"context_shift: goes with scheduler.policy llama_server only"):
        serve(tmp_path, [row(0, [1], 1)], 64, context_shift=True, scheduler={"policy": "fcfs"})


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
