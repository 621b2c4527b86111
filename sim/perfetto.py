"""trace.json: a run as events in the Chrome trace event format, for ui.perfetto.dev and chrome://tracing.

One process a replica: its steps as slices (overlapping pipeline steps on tracks of their own), the states of its
requests as nested asynchronous spans, and waiting, running and KV blocks as counters. Instants are microseconds with
three decimals (whole nanoseconds), so neighbouring steps touch and never overlap. A request stays in the process of the
replica that prefilled it; a preempted span begins at the eviction and is as long as the stall. Format: "Trace Event
Format" (Google, 2016), events M, X, b, e and C.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt

    from sim.experiment import Outcome
    from sim.units import FloatArray, IntArray

    Columns = Mapping[str, npt.NDArray[Any]]

MAX_EVENTS = 1_000_000  # what the viewers open in seconds: some 130 MB
_EVENTS_A_REQUEST = 8  # one span and three states, begin and end
_FIRST_PID = 1
_STATES = ("waiting", "prefill", "transfer", "decode", "preempted")
Event = tuple[int, int, str]  # instant in nanoseconds, 0 for what ends and 1 for the rest, JSON


@dataclass(frozen=True)
class Window:
    """The part of a run that is written: seconds of simulated time, and the most events."""

    start: float = 0.0
    end: float = math.inf
    max_events: int = MAX_EVENTS

    @classmethod
    def parse(cls, text: str | None) -> Window:
        """From `START:END` in seconds, either may be left out. `InputError` for anything else."""
        if text is None:
            return cls()
        low, colon, high = text.partition(":")
        try:
            found = cls(float(low or 0.0), float(high or math.inf))
        except ValueError:
            found = cls(0.0, 0.0)
        if not colon or not 0 <= found.start < found.end:
            raise InputError(f"--perfetto-window {text}: must be START:END in seconds, such as 10:20 or 60:")
        return found


def write_trace(path: Path, outcome: Outcome, window: Window) -> str | None:
    """Write the events of a run with a step log and a timeline. Returns what was left out, None when nothing was.

    With more events than `window.max_events` the trace ends where they are reached, and says so in `otherData`.
    """
    end = _end(outcome, window)
    requests = {str(name): outcome.requests[name].to_numpy() for name in outcome.requests.columns}
    left_out = None
    if end < min(window.end, outcome.result.end_time):
        left_out = (
            f"the trace ends at {end:.6g} s of {outcome.result.end_time:.6g} s: more than {window.max_events:,} "
            f"events; --perfetto-window {end:.6g}: gives what follows"
        )
    events = [*_steps(outcome, window.start, end), *_counters(outcome, window.start, end)]
    events += _requests(requests, outcome.result.preemptions, window.start, end)
    events.sort(key=lambda event: event[:2])  # stable: of one instant and kind in the order they were made
    other = {"simulated_seconds": outcome.result.end_time, "window": [window.start, end], "left_out": left_out}
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.write(f'{{"displayTimeUnit":"ms","otherData":{json.dumps(other)},"traceEvents":[\n')
        file.write(",\n".join([*_names(outcome), *(text for _, _, text in events)]))
        file.write("\n]}\n")
    os.replace(temporary, path)
    return left_out


def lanes(start: FloatArray, end: FloatArray) -> IntArray:
    """The lowest free lane for each of these intervals in order of their starts: steps in a pipeline overlap."""
    free: list[float] = []
    found = []
    for low, high in zip(start, end, strict=True):
        lane = next((i for i, until in enumerate(free) if until <= low), len(free))
        free[lane : lane + 1] = [high]
        found.append(lane)
    return np.array(found, dtype=np.int64)


def nanoseconds(times: FloatArray) -> IntArray:
    """Instants as whole nanoseconds; equal instants stay equal and none changes order."""
    return np.round(np.asarray(times, dtype=np.float64) * 1e9).astype(np.int64)


# --- which part ---


def _end(outcome: Outcome, window: Window) -> float:
    """The end of the window, or the instant at which the most events are reached."""
    steps, timeline = outcome.result.steps or {}, outcome.result.timeline or {}
    arrival = np.asarray(outcome.requests["arrival_time"], dtype=np.float64)
    times = [steps.get("start_time", np.empty(0)), timeline.get("time", np.empty(0)), arrival[~np.isnan(arrival)]]
    weights = np.repeat([1, 2, _EVENTS_A_REQUEST], [len(part) for part in times])
    instants = np.concatenate(times)
    inside = (instants >= window.start) & (instants < window.end)
    order = np.argsort(instants[inside], kind="stable")
    reached = np.flatnonzero(np.cumsum(weights[inside][order]) > window.max_events)
    if len(reached):
        return float(instants[inside][order][reached[0]])
    return min(window.end, float(max(outcome.result.end_time, instants.max(initial=0.0))))


# --- events ---


def _names(outcome: Outcome) -> Iterator[str]:
    for index, replica in enumerate(outcome.result.replicas):
        pid = index + _FIRST_PID
        yield _meta("process_name", pid, 0, name=f"{replica.name} ({replica.num_gpus} x {replica.gpu})")
        yield _meta("process_sort_index", pid, 0, sort_index=index)
    steps = outcome.result.steps
    if steps is None:
        return
    for index in np.unique(steps["replica"]).tolist():
        own = steps["replica"] == index
        start = steps["start_time"][own]
        for lane in range(int(lanes(start, start + steps["duration"][own]).max()) + 1):
            name = "steps" if lane == 0 else f"steps (overlapping {lane})"
            yield _meta("thread_name", index + _FIRST_PID, lane + 1, name=name)


def _meta(kind: str, pid: int, tid: int, **args: Any) -> str:
    return json.dumps({"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}, separators=(",", ":"))


def _steps(outcome: Outcome, start: float, end: float) -> Iterator[Event]:
    """A slice a step that begins in the window, with what its batch held."""
    steps = outcome.result.steps
    if steps is None:
        return
    for index in np.unique(steps["replica"]).tolist():
        own = steps["replica"] == index
        begin = steps["start_time"][own]
        lane = lanes(begin, begin + steps["duration"][own])
        inside = (begin >= start) & (begin < end)
        at, until = nanoseconds(begin)[inside], nanoseconds(begin + steps["duration"][own])[inside]
        columns = [steps[name][own][inside].tolist() for name in _ARGS]
        for low, high, track, *batch in zip(at.tolist(), until.tolist(), lane[inside].tolist(), *columns, strict=True):
            yield low, 1, _step(low, high, index + _FIRST_PID, track + 1, batch)


_ARGS = (
    "step", "num_prefill_tokens", "num_decode_sequences", "num_context_tokens", "num_preempted", "num_free_blocks",
)  # fmt: skip


def _step(low: int, high: int, pid: int, tid: int, batch: list[int]) -> str:
    prefill, decode = batch[1], batch[2]
    name = "mixed" if prefill and decode else "prefill" if prefill else "decode"
    args = ",".join(f'"{key}":{value}' for key, value in zip(_ARGS, batch, strict=True))
    return (
        f'{{"ph":"X","cat":"step","name":"{name}","pid":{pid},"tid":{tid},"ts":{_us(low)},"dur":{_us(high - low)},'
        f'"args":{{{args}}}}}'
    )


def _counters(outcome: Outcome, start: float, end: float) -> Iterator[Event]:
    timeline = outcome.result.timeline
    if timeline is None:
        return
    inside = (timeline["time"] >= start) & (timeline["time"] <= end)
    at = nanoseconds(timeline["time"][inside]).tolist()
    names = ("replica", "waiting", "running", "used_blocks", "cached_blocks", "free_blocks")
    for low, *row in zip(at, *(timeline[name][inside].tolist() for name in names), strict=True):
        pid, (waiting, running, used, cached, free) = row[0] + _FIRST_PID, row[1:]
        head = f'"ph":"C","pid":{pid},"tid":0,"ts":{_us(low)}'
        yield low, 1, f'{{{head},"name":"requests","args":{{"waiting":{waiting},"running":{running}}}}}'
        yield low, 1, f'{{{head},"name":"KV blocks","args":{{"used":{used},"cached":{cached},"free":{free}}}}}'


def _requests(requests: Columns, preemptions: Columns | None, start: float, end: float) -> Iterator[Event]:
    """A span a request from arrival to end with its states inside, cut to the window."""
    low, high = nanoseconds(np.array([start, end]))
    stalls = _stalls(preemptions)
    arrival, finish = requests["arrival_time"], requests["finish_time"]
    for row in np.flatnonzero((arrival < end) & ~(finish <= start)).tolist():
        spans = [(state, max(a, int(low)), min(b, int(high))) for state, a, b in states(requests, stalls, row)]
        spans = [(state, a, b) for state, a, b in spans if b > a]
        if not spans:
            continue
        pid = max(int(requests["prefill_replica"][row]), 0) + _FIRST_PID
        head = f'"cat":"request","id":{row},"pid":{pid},"tid":0'
        yield from _span(
            f"request {requests['request_id'][row]}", head, spans[0][1], spans[-1][2], spans, requests, row
        )


def _span(
    name: str, head: str, low: int, high: int, spans: list[tuple[str, int, int]], requests: Columns, row: int
) -> Iterator[Event]:
    keys = ("num_prompt_tokens", "num_output_tokens", "num_cached_tokens", "num_preemptions")
    args: dict[str, Any] = {key: int(requests[key][row]) for key in keys}
    args |= {"status": str(requests["status"][row]), "decode_replica": int(requests["decode_replica"][row])}
    label = json.dumps(name)
    yield low, 1, f'{{"ph":"b","name":{label},{head},"ts":{_us(low)},"args":{json.dumps(args, separators=(",", ":"))}}}'
    for state, a, b in spans:
        yield a, 1, f'{{"ph":"b","name":"{state}",{head},"ts":{_us(a)}}}'
        yield b, 0, f'{{"ph":"e","name":"{state}",{head},"ts":{_us(b)}}}'
    yield high, 0, f'{{"ph":"e","name":{label},{head},"ts":{_us(high)}}}'


def states(requests: Columns, stalls: Mapping[int, list[tuple[int, int]]], row: int) -> list[tuple[str, int, int]]:
    """The states of a request, one after the other, in nanoseconds: waiting, prefill, transfer, decode, preempted.

    What did not happen ends with the request; a request that never ended (nan) has its states up to its last instant.
    """
    names = ("arrival_time", "first_scheduled_time", "first_token_time", "finish_time")
    known = [float(requests[name][row]) for name in names]
    last = known[3] if not math.isnan(known[3]) else max(time for time in known if not math.isnan(time))
    arrival, scheduled, token, finish = (int(nanoseconds(np.array(t if not math.isnan(t) else last))) for t in known)
    transfer = token + int(nanoseconds(np.array(np.nan_to_num(requests["transfer_duration"][row]))))
    found = [("waiting", arrival, scheduled), ("prefill", scheduled, token), ("transfer", token, transfer)]
    found.append(("decode", max(token, transfer), finish))
    found = [(state, a, b) for state, a, b in found if b > a]
    for low, high in stalls.get(row, []):
        found = [piece for span in found for piece in _interrupted(span, low, high)]
    return found


def _interrupted(span: tuple[str, int, int], low: int, high: int) -> Iterator[tuple[str, int, int]]:
    """A span with the part from `low` to `high` as preempted."""
    state, begin, end = span
    low, high = max(low, begin), min(high, end)
    if state not in ("prefill", "decode") or low >= high:
        yield span
        return
    pieces = ((state, begin, low), ("preempted", low, high), (state, high, end))
    yield from (piece for piece in pieces if piece[2] > piece[1])


def _stalls(preemptions: Columns | None) -> dict[int, list[tuple[int, int]]]:
    """From preemption to the next token (or what ended the wait), by row of the request, in nanoseconds."""
    found: dict[int, list[tuple[int, int]]] = {}
    if preemptions is None:
        return found
    start = nanoseconds(preemptions["time"])
    end = nanoseconds(preemptions["time"] + preemptions["stalled_duration"])
    for row, low, high in zip(preemptions["row"].tolist(), start.tolist(), end.tolist(), strict=True):
        found.setdefault(int(row), []).append((low, high))
    return found


def _us(instant: int) -> str:
    """Nanoseconds as microseconds with three decimals."""
    return f"{instant // 1000}.{instant % 1000:03d}"
