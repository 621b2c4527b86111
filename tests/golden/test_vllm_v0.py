"""The vLLM V0 preset against recordings of the real scheduler (0.6.6.post1), every field of every step."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from v0_replay import Engine, EngineReplay, Step, replay_engine

from sim.replica import Limits

SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "golden"
FOLDERS = [SHARED, Path(__file__).parent / "data", Path(os.environ.get("SERVESIM_GOLDEN_DIR", "/nonexistent"))]


@cache
def scenarios(kind: str) -> list[tuple[str, dict[str, Any]]]:
    """(label, scenario) of every file whose name starts with `kind`."""
    found = []
    for folder in FOLDERS:
        for path in sorted(folder.glob(f"{kind}*.json")):
            for i, scenario in enumerate(json.loads(path.read_text())["scenarios"]):
                found.append((f"{path.stem}-{i}", scenario))
    return found


def parametrise(kind: str) -> Any:
    cases = scenarios(kind)
    if not cases:
        return pytest.mark.skip(reason=f"no recording {kind}*.json: ../shared/data/golden is absent")
    return pytest.mark.parametrize("scenario", [case for _, case in cases], ids=[label for label, _ in cases])


def engine_of(config: dict[str, Any]) -> Engine:
    """The replica that a configuration of the recording means."""
    swaps = config["preemption_mode"] == "swap"
    limits = Limits(
        max_num_seqs=config["max_num_seqs"],
        max_num_batched_tokens=config["max_num_batched_tokens"],
        max_model_len=config["max_model_len"],
        depth=1,
        chunked_prefill=config["chunked_prefill"],
        reserve_full_isl=True,
        watermark_blocks=int(0.01 * config["gpu_blocks"]),
    )
    return Engine(
        scheduler="vllm_v0",
        params={"queue_policy": config["policy"]},
        limits=limits,
        num_blocks=config["gpu_blocks"],
        block_size=config["block_size"],
        host_blocks=config["cpu_blocks"] if swaps else None,
    )


def recorded(record: dict[str, Any]) -> dict[str, Any]:
    """A record with what it leaves out filled in."""
    lists = ("admitted", "swapped_out", "swapped_in", "ignored", "running", "waiting", "swapped")
    return {
        "scheduled": [list(item) for item in record["scheduled"].items()],
        "prefill_groups": record["prefill_groups"],
        **{name: record.get(name, []) for name in lists},
        "preempted_recompute": sorted(record.get("preempted_recompute", [])),  # their order shows in `waiting`
        "free_gpu_blocks": record["free_gpu_blocks"],
        "swap_blocks_in": record.get("swap_blocks_in", 0),
        "swap_blocks_out": record.get("swap_blocks_out", 0),
    }


def replayed(step: Step) -> dict[str, Any]:
    """A step of ours in the words of the recording."""
    lists = {name: names for name, names in step.lists.items() if name not in ("preempted", "dropped")}
    return {
        "scheduled": [list(item) for item in step.scheduled],
        "prefill_groups": len(step.prefill),
        **lists,
        "ignored": step.lists["dropped"],
        "preempted_recompute": sorted(step.lists["preempted"]),
        "free_gpu_blocks": step.free_blocks,
        "swap_blocks_in": step.blocks_in,
        "swap_blocks_out": step.blocks_out,
    }


def without_finished(step: Step, record: dict[str, Any]) -> dict[str, list[str]]:
    """The queues of the latest step, its finished requests taken out."""
    gone = record.get("finished", [])
    return {name: [key for key in step.lists[name] if key not in gone] for name in ("running", "waiting", "swapped")}


def check_idle(record: dict[str, Any], latest: Step | None, before: dict[str, Any]) -> None:
    """A step in which our replica made no call: nothing ran, and nothing has changed since its latest call."""
    assert not record["scheduled"]
    queues = without_finished(latest, before) if latest else {}
    for name in ("running", "waiting", "swapped"):
        assert record.get(name, []) == queues.get(name, []), name


def check_steps(replay: EngineReplay, records: list[dict[str, Any]], swaps: bool) -> None:
    steps = {step.time: step for step in replay.steps}
    latest: Step | None = None
    at_latest: dict[str, Any] = {}
    for number, record in enumerate(records, start=1):
        if "aborted" in record:
            assert "swap space exhausted" in (replay.error or "")
            return
        step = steps.pop(number - 1.0, None)
        if step is None:
            check_idle(record, latest, at_latest)
            continue
        assert replayed(step) == recorded(record), f"step {number}"
        if swaps:
            assert step.free_host_blocks == record["free_cpu_blocks"], f"step {number}"
        if replay.result is not None:
            assert replay.finished_at(number) == sorted(record.get("finished", [])), f"step {number}"
        latest, at_latest = step, record
    assert replay.error is None or "never" in replay.error, (
        replay.error
    )  # the engine hangs, idle or preempting for ever
    assert not steps or replay.error


@parametrise("vllm_v0")
def test_steps_equal_the_recording(scenario: dict[str, Any]) -> None:
    """Batches, admissions, preemptions, swaps, drops, queues, free blocks of both kinds and finishes of every step."""
    config = scenario["config"]
    replay = replay_engine(engine_of(config), scenario["requests"], step_by_step=True)
    check_steps(replay, scenario["steps"], config["preemption_mode"] == "swap")


@parametrise("vllm_v0")
def test_fast_forward_gives_the_same_token_times(scenario: dict[str, Any]) -> None:
    """Or stops for the same reason at the same instant."""
    engine = engine_of(scenario["config"])
    stepped = replay_engine(engine, scenario["requests"], step_by_step=True)
    fast = replay_engine(engine, scenario["requests"], step_by_step=False)
    assert fast.error == stepped.error
    if stepped.error is None:
        assert fast.token_times() == stepped.token_times()


def test_fast_forward_skips_steps() -> None:
    """The share is printed with -s."""
    cases = [case for _, case in scenarios("vllm_v0")]
    if not cases:
        pytest.skip("../shared/data/golden is absent")
    skipped = steps = 0
    for case in cases:
        fast = replay_engine(engine_of(case["config"]), case["requests"], step_by_step=False)
        if fast.result is not None:
            skipped += fast.num_skipped_steps
            steps += fast.result.replicas[0].num_steps
    print(f"vllm_v0: {skipped} of {steps} steps skipped ({100 * skipped / steps:.0f} %)")
    assert skipped > 0
