"""The schedulers of the Sarathi tree against recordings of the real ones (96f9911), every field of every step."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from sarathi_replay import engine_of
from v0_replay import EngineReplay, Step, replay_engine

SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "golden"
FOLDERS = [SHARED, Path(__file__).parent / "data", Path(os.environ.get("SERVESIM_GOLDEN_DIR", "/nonexistent"))]
LISTS = ("prefill", "admitted", "preempted", "ignored", "running", "waiting")


@cache
def scenarios() -> list[tuple[str, dict[str, Any]]]:
    """(label, scenario) of every file whose name starts with sarathi."""
    found = []
    for folder in FOLDERS:
        for path in sorted(folder.glob("sarathi*.json")):
            for i, scenario in enumerate(json.loads(path.read_text())["scenarios"]):
                found.append((f"{path.stem}-{i}-{scenario['config']['scheduler']}", scenario))
    return found


if scenarios():
    of_every_scenario = pytest.mark.parametrize(
        "scenario", [case for _, case in scenarios()], ids=[label for label, _ in scenarios()]
    )
else:
    of_every_scenario = pytest.mark.skip(reason="no recording sarathi*.json: ../shared/data/golden is absent")


def recorded(record: dict[str, Any]) -> dict[str, Any]:
    """A record with what it leaves out filled in."""
    return {
        "scheduled": [list(item) for item in record["scheduled"].items()],
        **{name: record.get(name, []) for name in LISTS},
        "free_blocks": record["free_blocks"],
    }


def replayed(step: Step) -> dict[str, Any]:
    """A step of ours in the words of the recording."""
    lists = {"ignored" if name == "dropped" else name: names for name, names in step.lists.items()}
    return {
        "scheduled": [list(item) for item in step.scheduled],
        **{name: step.prefill if name == "prefill" else lists[name] for name in LISTS},
        "free_blocks": step.free_blocks,
    }


def check_idle(record: dict[str, Any], latest: Step | None, before: dict[str, Any]) -> None:
    """A step in which our replica made no call: nothing ran, and nothing has changed since its latest call."""
    assert not record["scheduled"]
    gone = before.get("finished", [])
    for name in ("running", "waiting"):
        queue = latest.lists[name] if latest else []
        assert record[name] == [key for key in queue if key not in gone], name


def check_emissions(replay: EngineReplay, scenario: dict[str, Any]) -> None:
    """Token times of every request, and their number over the run."""
    times: dict[str, list[float]] = {request["id"]: [] for request in scenario["requests"]}
    for number, record in enumerate(scenario["steps"], start=1):
        for name in record.get("emitted", []):
            times[name].append(float(number))
    assert replay.token_times() == times
    assert {name: len(row) for name, row in times.items() if row} == {
        name: count for name, count in scenario["emitted_total"].items() if count
    }


@of_every_scenario
def test_steps_equal_the_recording(scenario: dict[str, Any]) -> None:
    """Batches, admissions, preemptions, drops, queues, free blocks, tokens and finishes of every step."""
    replay = replay_engine(engine_of(scenario["config"]), scenario["requests"], step_by_step=True)
    steps = {step.time: step for step in replay.steps}
    latest: Step | None = None
    before: dict[str, Any] = {}
    for number, record in enumerate(scenario["steps"], start=1):
        step = steps.pop(number - 1.0, None)
        if step is None:
            check_idle(record, latest, before)
            continue
        assert replayed(step) == recorded(record), f"step {number}"
        assert replay.finished_at(number) == sorted(record.get("finished", [])), f"step {number}"
        latest, before = step, record
    assert not steps
    check_emissions(replay, scenario)


@of_every_scenario
def test_fast_forward_gives_the_same_token_times(scenario: dict[str, Any]) -> None:
    """Of every request."""
    engine = engine_of(scenario["config"])
    stepped = replay_engine(engine, scenario["requests"], step_by_step=True)
    fast = replay_engine(engine, scenario["requests"], step_by_step=False)
    assert fast.token_times() == stepped.token_times()


def test_fast_forward_skips_steps() -> None:
    """By scheduler; the shares are printed with -s."""
    if not scenarios():
        pytest.skip("../shared/data/golden is absent")
    counts: dict[str, list[int]] = {}
    for _, case in scenarios():
        fast = replay_engine(engine_of(case["config"]), case["requests"], step_by_step=False)
        assert fast.result is not None
        count = counts.setdefault(case["config"]["scheduler"], [0, 0])
        count[0] += fast.num_skipped_steps
        count[1] += fast.result.replicas[0].num_steps
    for name, (skipped, steps) in counts.items():
        print(f"{name}: {skipped} of {steps} steps skipped ({100 * skipped / steps:.0f} %)")
        assert skipped > 0, name
