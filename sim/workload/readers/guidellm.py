"""guidellm reports (JSON): the requests of one benchmark, with request_start_time (s), prompt and output tokens.

A report with several benchmarks (one a rate) needs `where: {benchmark: N}`, counted from 0. Requests that were not
completed count as failed rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sim.workload.raw import Chunk, Facts, Reader, ReadOptions
from sim.workload.textfile import Head, Source, integers, read_json
from sim.workload.timebase import TimeBase

_PROMPT = ("prompt_tokens", "request_prompt_tokens", "input_tokens")
_OUTPUT = ("output_tokens", "response_output_tokens", "generated_tokens")
_START = ("request_start_time", "start_time")


def _detect(head: Head) -> bool:
    return head.kind in ("json", "jsonl") and "benchmarks" in head.names


def benchmark_of(source: Source, report: Any, number: str | None) -> dict[str, Any]:
    """One benchmark of a report. `InputError` where it is not said which."""
    found = report.get("benchmarks") if isinstance(report, dict) else None
    if not isinstance(found, list) or not found:
        raise source.error(None, "has no benchmarks: not a guidellm report")
    if number is None and len(found) > 1:
        raise source.error(None, f"holds {len(found)} benchmarks: say which, counted from 0 (benchmark: N)")
    index = int(number or 0) if (number or "0").isdigit() else len(found)
    if index >= len(found):
        raise source.error(None, f"benchmark: must be 0 to {len(found) - 1} (got {number})")
    one: dict[str, Any] = found[index]
    return one


def _read(source: Source, options: ReadOptions, facts: Facts) -> Iterator[Chunk]:
    benchmark = benchmark_of(source, read_json(source), options.where.get("benchmark"))
    groups = benchmark.get("requests") or {}
    rows = [(row, kind != "successful") for kind, own in groups.items() if kind != "total" for row in own or []]
    if not rows:
        raise source.error(None, "the benchmark keeps no requests: write the report with all of them")
    line = np.arange(1, len(rows) + 1)
    clock = TimeBase(source, facts, "request_start_time", "s", options.time_unit)
    yield Chunk(
        line=line,
        num_prompt_tokens=integers(source, "prompt_tokens", [_first(row, _PROMPT) for row, _ in rows], line),
        num_output_tokens=integers(source, "output_tokens", [_first(row, _OUTPUT) for row, _ in rows], line),
        arrival_time=clock.seconds([_first(row, _START) for row, _ in rows], line),
        failed=np.array([failed for _, failed in rows]),
    )


def _first(row: dict[str, Any], names: tuple[str, ...]) -> Any:
    """The value under the first of the names that the row has; versions of the report differ."""
    return next((row[name] for name in names if row.get(name) is not None), 0)


GUIDELLM = Reader("guidellm report (JSON)", _detect, _read)
