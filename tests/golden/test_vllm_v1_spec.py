"""Speculative decoding in the vLLM V1 preset against recordings of the real scheduler (0.33.0), call by call."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from test_vllm_v1 import FOLDERS, finished_in_calls, idle, named, prompt_tokens, recorded
from v1_replay import Call, Delivery, Replay, replay


@cache
def scenarios(kind: str) -> list[tuple[str, dict[str, Any]]]:
    """(label, scenario) of every scenario that speculates in the files whose name starts with `kind`."""
    return [
        (f"{path.stem}-{i}-{scenario['config']['spec_method']}", scenario)
        for folder in FOLDERS
        for path in sorted(folder.glob(f"{kind}*.json"))
        for i, scenario in enumerate(json.loads(path.read_text())["scenarios"])
        if "spec_method" in scenario["config"]
    ]


def parametrise(kind: str) -> Any:
    cases = scenarios(kind)
    if not cases:
        return pytest.mark.skip(reason=f"no recording {kind}*.json: ../shared/data/golden is absent")
    return pytest.mark.parametrize("scenario", [case for _, case in cases], ids=[label for label, _ in cases])


def run(scenario: dict[str, Any], asynchronous: bool) -> Replay:
    requests = scenario["requests"]
    numbers = [int(r["id"][1:]) for r in requests]
    return replay(
        scenario["config"],
        [r["arrival_time"] if asynchronous else r["arrival_step"] - 1 for r in requests],
        [
            prompt_tokens(k, r["prompt_len"], r["group"], r["shared_len"])
            for k, r in zip(numbers, requests, strict=True)
        ],
        [r["max_tokens"] for r in requests],
        [r.get("stop_after", 0) for r in requests],
        [r["priority"] for r in requests],
        asynchronous,
        numbers=numbers,
    )


def with_drafts(scenario: dict[str, Any], call: Call) -> dict[str, Any]:
    """A call in the words of the recording, drafts included."""
    names = [r["id"] for r in scenario["requests"]]
    drafts = {names[row]: count for row, count in call.drafts.items()}
    return {**named(scenario, call), "drafts": drafts, "padded": [names[row] for row in call.padded]}


def recorded_drafts(record: dict[str, Any]) -> dict[str, Any]:
    return {**recorded(record), "drafts": record["drafts"], "padded": record.get("padded", [])}


def returned(scenario: dict[str, Any], deliveries: list[Delivery], time: float) -> dict[str, dict[str, int]]:
    """Emitted tokens and accepted drafts of the batch that ended at `time`."""
    names, here = [r["id"] for r in scenario["requests"]], [d for d in deliveries if d.time == time]
    return {
        "emitted": {names[d.row]: d.num_tokens for d in here},
        "accepted": {names[d.row]: d.num_accepted for d in here if d.num_drafts},
    }


@parametrise("vllm_v1_spec")
def test_synchronous_speculation_equals_the_recording(scenario: dict[str, Any]) -> None:
    """Tokens, drafts, padding, hits, preemptions, queues, free blocks, accepted, emitted and finishes of every step."""
    replayed = run(scenario, asynchronous=False)
    calls = {call.time: call for call in replayed.calls}
    names = [r["id"] for r in scenario["requests"]]
    for step, record in enumerate(scenario["steps"]):
        if idle(record):
            assert step not in calls
            continue
        expected, got = recorded_drafts(record), with_drafts(scenario, calls.pop(step))
        if scenario["config"]["policy"] == "priority":  # recorded in heap order
            expected["waiting"].sort()
            got["waiting"].sort()
        assert got == expected, f"step {step + 1}"
        back = returned(scenario, replayed.deliveries, step + 1)
        assert back == {name: record[name] for name in back}, f"step {step + 1}"
        finished = [names[row] for row, time in replayed.finished.items() if time == step + 1]
        assert sorted(finished) == sorted(record["finished"]), f"step {step + 1}"
    assert not calls


@parametrise("vllm_v1_async")
def test_asynchronous_speculation_equals_the_recording(scenario: dict[str, Any]) -> None:
    """The same with two batches in flight, and the instant of every call and of every return."""
    replayed = run(scenario, asynchronous=True)
    names = [r["id"] for r in scenario["requests"]]
    records = [record for record in scenario["steps"] if not idle(record)]
    for call, record in zip(replayed.calls, records, strict=False):
        assert call.time == record["time"]
        assert with_drafts(scenario, call) == recorded_drafts(record), f"call at {call.time}"
    assert len(replayed.calls) == len(records)
    for record in scenario["steps"]:
        if record.get("emitted"):
            back = returned(scenario, replayed.deliveries, record["output_time"])
            assert back == {name: record[name] for name in back}, f"batch that ended at {record['output_time']}"
    assert {names[row]: time for row, time in replayed.finished.items()} == finished_in_calls(scenario["steps"])
