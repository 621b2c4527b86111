"""inference-perf's per_request_lifecycle_metrics.json: start_time (s), info.input_tokens, info.output_tokens, error."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sim.workload.raw import Chunk, Facts, Reader, ReadOptions
from sim.workload.textfile import Head, Source, integers, read_json
from sim.workload.timebase import TimeBase


def _detect(head: Head) -> bool:
    return head.kind in ("json", "jsonl") and {"start_time", "end_time", "info"} <= head.names


def _read(source: Source, options: ReadOptions, facts: Facts) -> Iterator[Chunk]:
    rows = read_json(source)
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "info" in row for row in rows):
        raise source.error(None, "expected a list of requests with start_time and info, as inference-perf writes it")
    prompt, output = ([(row["info"] or {}).get(name, 0) for row in rows] for name in ("input_tokens", "output_tokens"))
    line = np.arange(1, len(rows) + 1)
    clock = TimeBase(source, facts, "start_time", "s", options.time_unit)
    yield Chunk(
        line=line,
        num_prompt_tokens=integers(source, "input_tokens", prompt, line),
        num_output_tokens=integers(source, "output_tokens", output, line),
        arrival_time=clock.seconds([row.get("start_time") for row in rows], line),
        failed=np.array([bool(row.get("error")) for row in rows]),
    )


INFERENCE_PERF = Reader("inference-perf requests (JSON)", _detect, _read)
