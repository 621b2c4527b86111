"""ServeGen clients: chunk-N-trace.csv (rate, CV and family of arrivals a window) with chunk-N-dataset.json (lengths).

A client is a statistical model: requests are drawn from it. Every window gets its number of requests (rate x length of
the window, rounded at random) with gaps of its family and shape; lengths are drawn independently from the histogram
that holds at that time. The path is a trace file (its dataset lies beside it) or a folder of clients, laid together.
"""

from __future__ import annotations

import ast
import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.seeds import Seeds
from sim.workload.arrivals import weibull_shape
from sim.workload.raw import Chunk, Facts, Reader, ReadOptions
from sim.workload.textfile import Head, Source, read_json

if TYPE_CHECKING:
    from sim.units import FloatArray, IntArray

_TRACE = re.compile(r"chunk-\d+-trace\.csv(\.gz)?$")
_MOST_REQUESTS = 5_000_000
_INPUTS = ("input_tokens", "text_tokens", "image_tokens", "audio_tokens", "video_tokens")


@dataclass(frozen=True)
class _Window:
    start: float  # seconds from the start of the client's trace
    length: float
    rate: float
    cv: float
    family: str
    shape: float


@dataclass(frozen=True)
class _Client:
    name: str
    windows: list[_Window]
    dataset: dict[str, Any]
    source: Source


def _detect(head: Head) -> bool:
    if head.kind == "directory":
        return any(_TRACE.match(name) for name in head.names)
    return head.kind == "csv" and _looks_like_window(head.first_line)


def _looks_like_window(line: str) -> bool:
    parts = line.strip().split(",")
    return len(parts) == 6 and parts[3] in ("", "Gamma", "Weibull") and parts[0].replace(".", "", 1).isdigit()


def _read(source: Source, options: ReadOptions, facts: Facts) -> Iterator[Chunk]:
    clients = [_load(path) for path in _trace_files(source)]
    start, end = options.start or 0.0, _end(source, clients, options)
    facts.note(f"drawn from {len(clients)} ServeGen client(s), seconds {start:g} to {end:g} of the trace")
    parts = [_draw(client, options.seeds, start, end) for client in clients]
    arrival = np.concatenate([part[0] for part in parts])
    order = np.argsort(arrival, kind="stable")
    tenants = np.repeat(np.arange(len(clients)), [len(part[0]) for part in parts])[order]
    yield Chunk(
        line=np.arange(1, len(order) + 1),
        num_prompt_tokens=np.concatenate([part[1] for part in parts])[order],
        num_output_tokens=np.concatenate([part[2] for part in parts])[order],
        arrival_time=arrival[order],
        columns={"tenant": [clients[i].name for i in tenants]} if len(clients) > 1 else {},
    )


def _trace_files(source: Source) -> list[Path]:
    if not source.path.is_dir():
        return [source.path]
    return sorted(path for path in source.path.iterdir() if _TRACE.match(path.name))


def _load(path: Path) -> _Client:
    source = Source(path)
    stem = re.sub(r"-trace\.csv(\.gz)?$", "", path.name)
    beside = [path.with_name(f"{stem}-dataset.json{suffix}") for suffix in ("", ".gz")]
    dataset_path = next((p for p in beside if p.exists()), None)
    if dataset_path is None:
        raise source.error(None, f"a ServeGen trace needs its lengths beside it: {beside[0].name} or {beside[1].name}")
    dataset_source = Source(dataset_path)
    dataset = read_json(dataset_source)
    if not isinstance(dataset, dict) or not all(key.isdigit() for key in dataset):
        raise dataset_source.error(None, "expected an object from window start (seconds) to histograms")
    return _Client(stem, _windows(source), dataset, dataset_source)


def _windows(source: Source) -> list[_Window]:
    rows: list[tuple[float, float, float, str, float]] = []
    for number, row in enumerate(csv.reader(source.lines()), 1):
        try:
            start, rate, cv, family, first, _ = row
            rows.append((float(start), float(rate), float(cv), family, float(first)))
        except ValueError:
            raise source.error(number, "expected start, rate, cv, Gamma|Weibull|nothing and two parameters") from None
        if family not in ("", "Gamma", "Weibull") or rows[-1][1] < 0:
            raise source.error(number, f"expected the family Gamma or Weibull and a rate >= 0, got {family!r}, {rate}")
    if not rows:
        raise source.error(None, "is empty")
    length = rows[1][0] - rows[0][0] if len(rows) > 1 else 600.0
    return [_Window(start, length, rate, cv, family, first) for start, rate, cv, family, first in rows]


def _end(source: Source, clients: Sequence[_Client], options: ReadOptions) -> float:
    """Where to stop: the given end, or where `limit` is surely reached, or the last window."""
    start = options.start or 0.0
    last = max(client.windows[-1].start + client.windows[-1].length for client in clients)
    end = min(last, options.end if options.end is not None else last)
    boundaries = sorted(
        {w.start + w.length for client in clients for w in client.windows if w.start + w.length > start}
    )
    total = 0.0
    for boundary, count in _cumulative(clients, start, boundaries):
        total = count
        if boundary >= end or (options.limit is not None and count >= options.limit):
            end = min(end, boundary)
            break
    if total > _MOST_REQUESTS:
        raise source.error(None, f"holds about {total:,.0f} requests: give limit, or start and end in seconds")
    return end


def _cumulative(clients: Sequence[_Client], start: float, boundaries: Sequence[float]) -> Iterator[tuple[float, float]]:
    windows = [w for client in clients for w in client.windows if w.start + w.length > start]
    ends = np.array([w.start + w.length for w in windows])
    expected = np.array([np.floor(w.rate * (w.start + w.length - max(w.start, start))) for w in windows])
    for boundary in boundaries:
        yield boundary, float(expected[ends <= boundary].sum())


def _draw(client: _Client, seeds: Seeds, start: float, end: float) -> tuple[FloatArray, IntArray, IntArray]:
    times, lengths = (
        seeds.generator("servegen", client.name, "arrivals"),
        seeds.generator("servegen", client.name, "lengths"),
    )
    parts = []
    for window in client.windows:
        if window.start >= end or window.start + window.length <= start:
            continue
        arrival = window.start + _arrivals(times, window)
        inputs, outputs = _lengths(client, lengths, window.start, len(arrival))
        keep = (arrival >= start) & (arrival < end)
        parts.append((arrival[keep], inputs[keep], outputs[keep]))
    if not parts:
        return np.zeros(0), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    arrivals, prompts, answers = zip(*parts, strict=True)
    return np.concatenate(arrivals), np.concatenate(prompts), np.concatenate(answers)


def _arrivals(rng: np.random.Generator, window: _Window) -> FloatArray:
    """Arrivals in [0, length): as many as the rate says, with gaps of the window's family."""
    n = int(window.rate * window.length + rng.random())
    if n == 0:
        return np.zeros(0)
    gaps = _gaps(rng, window, n + 1)
    times = np.cumsum(gaps)
    scaled: FloatArray = times[:-1] * (window.length / times[-1])
    return np.minimum(scaled, np.nextafter(window.length, 0))


def _gaps(rng: np.random.Generator, window: _Window, n: int) -> FloatArray:
    if window.family == "Gamma" and window.shape > 0:
        return rng.gamma(window.shape, 1.0, n)
    if window.family == "Weibull":
        return rng.weibull(window.shape if window.shape > 0 else weibull_shape(max(window.cv, 0.1)), n)
    return rng.standard_exponential(n)


def _lengths(client: _Client, rng: np.random.Generator, time: float, n: int) -> tuple[IntArray, IntArray]:
    if n == 0:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    entry = _entry(client, time)
    prompt = np.zeros(n, dtype=np.int64)
    for name in _INPUTS:
        prompt += _sample(client.source, rng, entry.get(name, "{}"), n)
    return np.maximum(prompt, 1), np.maximum(_sample(client.source, rng, entry.get("output_tokens", "{}"), n), 1)


def _entry(client: _Client, time: float) -> dict[str, Any]:
    """The last histogram at or before `time` that is not empty, else the first one that is not."""
    starts = sorted(int(key) for key, entry in client.dataset.items() if entry.get("output_tokens", "{}") != "{}")
    if not starts:
        raise client.source.error(None, "holds no histogram of output_tokens")
    at = max((s for s in starts if s <= time), default=starts[0])
    entry: dict[str, Any] = client.dataset[str(at)]
    return entry


def _sample(source: Source, rng: np.random.Generator, histogram: Any, n: int) -> IntArray:
    try:
        values, weights = _parsed(histogram)
    except (ValueError, SyntaxError, TypeError, AttributeError):
        raise source.error(None, f"expected '{{tokens: probability, ...}}', got {str(histogram)[:60]!r}") from None
    if not len(values):
        return np.zeros(n, dtype=np.int64)
    return rng.choice(values, size=n, p=weights)


@cache
def _parsed(histogram: str) -> tuple[IntArray, FloatArray]:
    pairs: dict[Any, float] = ast.literal_eval(histogram)
    weights = np.array(list(pairs.values()), dtype=np.float64)
    total = weights.sum() if len(weights) else 1.0
    return np.array([int(key) for key in pairs], dtype=np.int64), weights / total


SERVEGEN = Reader("ServeGen client (statistics)", _detect, _read)
