"""The vLLM V1 preset against recordings of the real scheduler (0.33.0), every field of every call."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from v1_replay import Call, Replay, replay

SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "golden"
FOLDERS = [SHARED, Path(__file__).parent / "data", Path(os.environ.get("SERVESIM_GOLDEN_DIR", "/nonexistent"))]
SEPARATE = 500_000_000
REPEATED = 7  # every generated token of the recordings


@cache
def scenarios(kind: str) -> list[tuple[str, dict[str, Any]]]:
    """(label, scenario) of every file whose name starts with `kind` and means this kind."""
    found = []
    for folder in FOLDERS:
        for path in sorted(folder.glob(f"{kind}*.json")):
            if kind == "vllm_v1_async" and path.name.startswith("vllm_v1_async_long"):
                continue
            for i, scenario in enumerate(json.loads(path.read_text())["scenarios"]):
                if "spec_method" not in scenario["config"]:
                    found.append((f"{path.stem}-{i}", scenario))
    return found


def parametrise(kind: str) -> Any:
    cases = scenarios(kind)
    if not cases:
        return pytest.mark.skip(reason=f"no recording {kind}*.json: ../shared/data/golden is absent")
    return pytest.mark.parametrize("scenario", [case for _, case in cases], ids=[label for label, _ in cases])


def prompt_tokens(k: int, length: int, group: int, shared: int) -> list[int]:
    return [10_000_000 * (group + 1) + i if i < shared else SEPARATE + 100_000 * k + i for i in range(length)]


def run_small(scenario: dict[str, Any], asynchronous: bool, step_by_step: bool) -> Replay:
    requests = scenario["requests"]
    return replay(
        scenario["config"],
        [r["arrival_time"] if asynchronous else r["arrival_step"] - 1 for r in requests],
        [prompt_tokens(int(r["id"][1:]), r["prompt_len"], r["group"], r["shared_len"]) for r in requests],
        [r["max_tokens"] for r in requests],
        [r.get("stop_after", 0) for r in requests],
        [r["priority"] for r in requests],
        asynchronous,
        step_by_step,
    )


def run_long(scenario: dict[str, Any], asynchronous: bool, step_by_step: bool) -> Replay:
    rows = [dict(zip(scenario["request_keys"], row, strict=True)) for row in scenario["requests"]]
    prompts: dict[int, list[int]] = {}
    for r in rows:
        own = prompt_tokens(r["id"], r["prompt_len"], r["group"], r["shared_len"])
        if r["parent"] is not None:
            parent = next(p for p in rows if p["id"] == r["parent"])
            head = prompts[parent["id"]] + [REPEATED] * parent["max_tokens"]
            own = head + [SEPARATE + 100_000 * r["id"] + i for i in range(len(head), r["prompt_len"])]
        prompts[r["id"]] = own
    return replay(
        scenario["config"],
        [r["arrival_time"] if asynchronous else r["arrival_step"] - 1 for r in rows],
        [prompts[r["id"]] for r in rows],
        [r["max_tokens"] for r in rows],
        [r.get("stop_after", 0) for r in rows],
        [r["priority"] for r in rows],
        asynchronous,
        step_by_step,
    )


def named(scenario: dict[str, Any], call: Call) -> dict[str, Any]:
    """A call in the words of the recording."""
    names = [r["id"] for r in scenario["requests"]]
    return {
        "scheduled": [(names[row], tokens) for row, tokens in call.scheduled.items()],
        "admitted_hit_tokens": {names[row]: tokens for row, tokens in call.hits.items()},
        "preempted": sorted(names[row] for row in call.preempted),
        "running": [names[row] for row in call.running],
        "waiting": [names[row] for row in call.waiting],
        "free_blocks": call.free_blocks,
    }


def recorded(record: dict[str, Any]) -> dict[str, Any]:
    fields = ("admitted_hit_tokens", "preempted", "running", "waiting", "free_blocks")
    return {"scheduled": list(record["scheduled"].items()), **{name: record[name] for name in fields}}


def idle(record: dict[str, Any]) -> bool:
    return not (record.get("running") or record.get("waiting") or record.get("scheduled"))


@parametrise("vllm_v1_scheduler_traces")
def test_synchronous_steps_equal_the_recording(scenario: dict[str, Any]) -> None:
    """Tokens, hits, preemptions, queues, free blocks and finishes of every step."""
    replayed = run_small(scenario, asynchronous=False, step_by_step=True)
    calls = {call.time: call for call in replayed.calls}
    names = [r["id"] for r in scenario["requests"]]
    unordered = scenario["config"]["policy"] == "priority"  # recorded in heap order
    for step, record in enumerate(scenario["steps"]):
        finished = [names[row] for row, time in replayed.finished.items() if time == step + 1]
        assert sorted(finished) == sorted(record["finished"]), f"step {step + 1}"
        if idle(record):
            assert step not in calls
            continue
        expected, got = recorded(record), named(scenario, calls.pop(step))
        if unordered:
            expected["waiting"].sort()
            got["waiting"].sort()
        assert got == expected, f"step {step + 1}"
    assert not calls


def finished_in_calls(records: list[dict[str, Any]]) -> dict[str, float]:
    return {name: record["output_time"] for record in records for name in record.get("finished", [])}


@parametrise("vllm_v1_async")
def test_asynchronous_calls_equal_the_recording(scenario: dict[str, Any]) -> None:
    """Every call with work in it, in order, with its instant; every end; the token times of every request."""
    replayed = run_small(scenario, asynchronous=True, step_by_step=True)
    names = [r["id"] for r in scenario["requests"]]
    records = [record for record in scenario["steps"] if not idle(record)]
    assert len(replayed.calls) == len(records)
    for call, record in zip(replayed.calls, records, strict=True):
        assert call.time == record["time"]
        assert named(scenario, call) == recorded(record), f"call at {call.time}"
    assert {names[row]: time for row, time in replayed.finished.items()} == finished_in_calls(scenario["steps"])
    emitted: dict[str, list[float]] = {name: [] for name in names}
    for record in scenario["steps"]:
        for name, count in record.get("emitted", {}).items():
            emitted[name] += [record["output_time"]] * count
    assert replayed.token_times() == [emitted[name] for name in names]


def assert_columns(replayed: Replay, columns: dict[str, list[Any]], times: list[float]) -> None:
    """Tokens, prefill tokens, queues and free blocks of every call, by instant."""
    calls = iter(replayed.calls)
    for i, time in enumerate(times):
        expected = {
            name: columns[name][i] for name in ("tokens", "prefill_tokens", "running", "waiting", "free_blocks")
        }
        if not (expected["running"] or expected["waiting"]):
            continue
        call = next(calls)
        got = {
            "tokens": sum(call.scheduled.values()),
            "prefill_tokens": call.num_prefill_tokens,
            "running": len(call.running),
            "waiting": len(call.waiting),
            "free_blocks": call.free_blocks,
        }
        assert (call.time, got) == (time, expected), f"call {i + 1}"
    assert next(calls, None) is None


def flattened(scenario: dict[str, Any], replayed: Replay) -> dict[str, list[list[float]]]:
    calls, ids = replayed.calls, [row[scenario["request_keys"].index("id")] for row in scenario["requests"]]
    return {
        "preempted": [[call.time, ids[row]] for call in calls for row in call.preempted],
        "admitted": [[call.time, ids[row], hit] for call in calls for row, hit in call.hits.items()],
        "finished": sorted([time, ids[row]] for row, time in replayed.finished.items()),
    }


@parametrise("vllm_v1_long")
def test_long_synchronous_runs_equal_the_recording(scenario: dict[str, Any]) -> None:
    """Hundreds of requests and thousands of steps: columns, admissions, preemptions, ends and hit counters."""
    replayed = run_long(scenario, asynchronous=False, step_by_step=True)
    assert_columns(replayed, scenario["steps"], [float(i) for i in range(scenario["totals"]["steps"])])
    got = flattened(scenario, replayed)
    assert got["admitted"] == [[step - 1, row, hit] for step, row, hit in scenario["admitted"]]
    assert sorted(got["preempted"]) == sorted([step - 1, row] for step, row in scenario["preempted"])
    assert got["finished"] == sorted([step, row] for step, row in scenario["finished"])
    stats, replica = scenario["totals"]["stats"], replayed.result.replicas[0]
    assert (replica.num_lookup_tokens, replica.num_hit_tokens) == (stats["queries"], stats["hits"])
    assert replica.num_preemptions == scenario["totals"]["preemptions"]
    assert replica.num_tokens == scenario["totals"]["tokens"]


@parametrise("vllm_v1_async_long")
def test_long_asynchronous_runs_equal_the_recording(scenario: dict[str, Any]) -> None:
    """The same with two batches in flight."""
    replayed = run_long(scenario, asynchronous=True, step_by_step=True)
    columns = scenario["calls"]
    assert_columns(replayed, columns, columns["time"])
    time_of = {call + 1: time for call, time in enumerate(columns["time"])}
    got = flattened(scenario, replayed)
    assert got["admitted"] == [[time_of[call], row, hit] for call, row, hit in scenario["admitted"]]
    assert sorted(got["preempted"]) == sorted([time_of[call], row] for call, row in scenario["preempted"])
    assert sorted(row for _, row in got["finished"]) == sorted(row for _, row in scenario["finished"])
    assert replayed.result.replicas[0].num_tokens == scenario["totals"]["tokens"]


@pytest.mark.parametrize("kind", ["vllm_v1_scheduler_traces", "vllm_v1_async"])
def test_fast_forward_gives_the_same_token_times_on_small_scenarios(kind: str) -> None:
    if not scenarios(kind):
        pytest.skip("../shared/data/golden is absent")
    for label, scenario in scenarios(kind):
        asynchronous = kind == "vllm_v1_async"
        stepped = run_small(scenario, asynchronous, step_by_step=True)
        fast = run_small(scenario, asynchronous, step_by_step=False)
        assert fast.token_times() == stepped.token_times(), label


@pytest.mark.parametrize("kind", ["vllm_v1_long", "vllm_v1_async_long"])
def test_fast_forward_gives_the_same_token_times_on_long_scenarios(kind: str) -> None:
    """And skips steps: the share is printed with -s."""
    if not scenarios(kind):
        pytest.skip("../shared/data/golden is absent")
    steps = skipped = 0
    for label, scenario in scenarios(kind):
        asynchronous = kind == "vllm_v1_async_long"
        stepped = run_long(scenario, asynchronous, step_by_step=True)
        fast = run_long(scenario, asynchronous, step_by_step=False)
        assert fast.token_times() == stepped.token_times(), label
        replica = fast.result.replicas[0]
        assert replica.num_steps == stepped.result.replicas[0].num_steps
        steps += replica.num_steps
        skipped += replica.num_skipped_steps
    print(f"{kind}: {skipped} of {steps} steps skipped ({100 * skipped / steps:.0f} %)")
    assert skipped > 0
