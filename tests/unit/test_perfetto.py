"""trace.json against the published trace event format, and against the tables of the same run."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import report_folders as folders

from sim.config import load_experiment
from sim.errors import InputError
from sim.experiment import Outcome, RunOptions, run, write
from sim.perfetto import Window, lanes, states, write_trace

# So few blocks that sequences are preempted.
BUSY = {"num_requests": 60, "arrivals": {"process": "poisson", "rate": 60.0}}
FEW = {"kv_cache": {"num_blocks": 400, "prefix_caching": False}}
TIGHT = {
    "workload": {**folders.EXPERIMENT["workload"], **BUSY},
    "cluster": {"pools": [{**folders.EXPERIMENT["cluster"]["pools"][0], **FEW}]},
}
PHASES = {"M", "X", "b", "e", "C"}


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    path = folders.write_yaml(
        tmp_path_factory.mktemp("perfetto") / "run.yaml", {"name": "small", **folders.EXPERIMENT, **TIGHT}
    )
    config = load_experiment(path)
    return run(config, RunOptions.of(config.output, perfetto=Window()))


@pytest.fixture(scope="module")
def document(outcome: Outcome, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    assert write_trace(path, outcome, Window()) is None
    return read(path)


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def of(document: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [event for event in document["traceEvents"] if event["ph"] == phase]


def test_every_event_has_the_fields_of_its_phase(document: dict[str, Any]) -> None:
    assert document["displayTimeUnit"] == "ms"
    for event in document["traceEvents"]:
        assert event["ph"] in PHASES
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["name"]
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "process_sort_index", "thread_name")
            continue
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] > 0
        if event["ph"] in "be":
            assert event["cat"] == "request"
            assert isinstance(event["id"], int)
        if event["ph"] == "C":
            assert all(isinstance(value, int) and value >= 0 for value in event["args"].values())


def test_instants_never_go_back(document: dict[str, Any]) -> None:
    times = [event["ts"] for event in document["traceEvents"] if event["ph"] != "M"]
    assert times == sorted(times)
    kinds = [event["ph"] == "M" for event in document["traceEvents"]]
    assert kinds == sorted(kinds, reverse=True)


def test_begins_and_ends_of_a_request_are_balanced_and_nested(document: dict[str, Any]) -> None:
    open_spans: dict[tuple[int, int], list[str]] = defaultdict(list)
    for event in document["traceEvents"]:
        key = (event["pid"], event.get("id", -1))
        if event["ph"] == "b":
            assert bool(open_spans[key]) != event["name"].startswith("request")
            open_spans[key].append(event["name"])
            assert len(open_spans[key]) <= 2
        elif event["ph"] == "e":
            assert open_spans[key].pop() == event["name"]
    assert not any(open_spans.values())


def test_slices_of_a_track_never_overlap(document: dict[str, Any]) -> None:
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in of(document, "X"):
        start = round(event["ts"] * 1000)
        tracks[event["pid"], event["tid"]].append((start, start + round(event["dur"] * 1000)))
    for spans in tracks.values():
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    named = {(event["pid"], event["tid"]) for event in of(document, "M") if event["name"] == "thread_name"}
    assert named == set(tracks)


def test_slices_are_the_rows_of_the_step_log(document: dict[str, Any], outcome: Outcome) -> None:
    steps = outcome.result.steps
    assert steps is not None
    slices = of(document, "X")
    assert len(slices) == len(steps["step"])
    for name in ("num_prefill_tokens", "num_decode_sequences", "num_context_tokens"):
        assert sum(event["args"][name] for event in slices) == steps[name].sum()
    assert sum(event["dur"] for event in slices) / 1e6 == pytest.approx(steps["duration"].sum(), rel=1e-6)
    for event in slices:
        kinds = (event["args"]["num_prefill_tokens"] > 0, event["args"]["num_decode_sequences"] > 0)
        assert event["name"] == {(True, True): "mixed", (True, False): "prefill"}.get(kinds, "decode")


def test_states_of_requests_add_up_to_their_parts(document: dict[str, Any], outcome: Outcome) -> None:
    total: dict[str, float] = defaultdict(float)
    for event in document["traceEvents"]:
        if event["ph"] in "be" and not event["name"].startswith("request"):
            total[event["name"]] += event["ts"] * (1 if event["ph"] == "e" else -1) / 1e6
    frame = outcome.requests
    assert total["waiting"] == pytest.approx(frame["waiting_duration"].sum(), abs=1e-5)
    working = ("prefill_duration", "decode_duration", "preempted_duration")
    assert total["prefill"] + total["decode"] + total["preempted"] == pytest.approx(
        sum(frame[name].sum() for name in working), abs=1e-4
    )
    assert frame["num_preemptions"].sum() > 0
    assert total["preempted"] > 0
    ends = {event["id"]: event["ts"] for event in of(document, "e") if event["name"].startswith("request")}
    assert len(ends) == len(frame)
    for row, end in ends.items():
        assert end / 1e6 == pytest.approx(frame["finish_time"][row], abs=1e-8)


def test_counters_are_those_of_the_timeline(document: dict[str, Any], outcome: Outcome) -> None:
    timeline = outcome.result.timeline
    assert timeline is not None
    counted = of(document, "C")
    assert len(counted) == 2 * len(timeline["time"])
    assert sum(e["args"]["running"] for e in counted if e["name"] == "requests") == timeline["running"].sum()
    assert sum(e["args"]["used"] for e in counted if e["name"] == "KV blocks") == timeline["used_blocks"].sum()


def test_processes_are_the_replicas(document: dict[str, Any], outcome: Outcome) -> None:
    names = {e["pid"]: e["args"]["name"] for e in of(document, "M") if e["name"] == "process_name"}
    assert [names[pid].split()[0] for pid in sorted(names)] == [r.name for r in outcome.result.replicas]
    assert {e["pid"] for e in document["traceEvents"]} <= set(names)


def test_a_window_cuts_spans_and_leaves_out_the_rest(outcome: Outcome, tmp_path: Path) -> None:
    write_trace(tmp_path / "trace.json", outcome, Window(0.5, 1.0))
    document = read(tmp_path / "trace.json")
    for event in document["traceEvents"]:
        if event["ph"] != "M":
            assert 0.5e6 <= event["ts"] <= 1.0e6
    frame = outcome.requests
    present = frame[(frame["arrival_time"] < 1.0) & (frame["finish_time"] > 0.5)]
    assert {event["id"] for event in of(document, "b")} == set(present.index)
    assert len(of(document, "b")) == len(of(document, "e"))


def test_too_many_events_end_the_trace_and_say_how_to_get_the_rest(outcome: Outcome, tmp_path: Path) -> None:
    note = write_trace(tmp_path / "trace.json", outcome, Window(max_events=300))
    document = read(tmp_path / "trace.json")
    assert note is not None
    assert "--perfetto-window" in note
    assert document["otherData"]["left_out"] == note
    assert 100 < len(document["traceEvents"]) <= 400
    assert len(of(document, "b")) == len(of(document, "e"))


@pytest.mark.parametrize("text", ["10", "5:5", "9:3", "-1:4", "a:b", ""])
def test_a_window_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="must be START:END"):
        Window.parse(text)


@pytest.mark.parametrize(("text", "start", "end"), [("10:20", 10, 20), (":5", 0, 5), ("7:", 7, float("inf"))])
def test_a_window_may_be_open(text: str, start: float, end: float) -> None:
    assert Window.parse(text) == Window(start, end)


def test_states_of_a_request_by_hand() -> None:
    columns = {
        "arrival_time": np.array([0.0, 1.0, 2.0]),
        "first_scheduled_time": np.array([1.0, np.nan, 2.0]),
        "first_token_time": np.array([3.0, np.nan, 2.5]),
        "finish_time": np.array([9.0, 4.0, 6.0]),
        "transfer_duration": np.array([0.0, 0.0, 0.5]),
    }
    second = 10**9
    assert states(columns, {0: [(5 * second, 7 * second)]}, 0) == [
        ("waiting", 0, second),
        ("prefill", second, 3 * second),
        ("decode", 3 * second, 5 * second),
        ("preempted", 5 * second, 7 * second),
        ("decode", 7 * second, 9 * second),
    ]
    assert states(columns, {}, 1) == [("waiting", second, 4 * second)]
    assert [state for state, _, _ in states(columns, {}, 2)] == ["prefill", "transfer", "decode"]


def test_the_command_writes_the_trace_with_the_run(outcome: Outcome, tmp_path: Path) -> None:
    assert write(outcome, tmp_path / "out") is None
    document = read(tmp_path / "out" / "trace.json")
    assert len(of(document, "X")) == len(pd.read_parquet(tmp_path / "out" / "steps.parquet"))
    assert not [path for path in (tmp_path / "out").iterdir() if path.suffix == ".tmp"]


def test_lanes_are_reused_as_soon_as_they_are_free() -> None:
    assert list(lanes(np.array([0.0, 0.0, 1.0]), np.array([1.0, 2.0, 3.0]))) == [0, 1, 0]
