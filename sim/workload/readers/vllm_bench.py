"""Results of `vllm bench serve --save-result --save-detailed` (JSON): input_lens, output_lens, start_times, errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sim.workload.raw import Chunk, Facts, Reader, ReadOptions
from sim.workload.textfile import Head, Source, integers, read_json
from sim.workload.timebase import TimeBase


def _detect(head: Head) -> bool:
    return head.kind in ("json", "jsonl") and (
        "input_lens" in head.names or {"total_input_tokens", "request_throughput"} <= head.names
    )


def _read(source: Source, options: ReadOptions, facts: Facts) -> Iterator[Chunk]:
    result = read_json(source)
    if not isinstance(result, dict) or not isinstance(result.get("input_lens"), list):
        raise source.error(None, "has no input_lens: the result must be saved with --save-detailed")
    num = len(result["input_lens"])
    line = np.arange(1, num + 1)
    starts = _list(source, result, "start_times", num)
    errors = _list(source, result, "errors", num)
    if result.get("max_concurrency"):
        facts.warn(
            f"measured with max_concurrency {result['max_concurrency']}: start times depend on that server's speed"
        )
    clock = TimeBase(source, facts, "start_times", "s", options.time_unit)
    yield Chunk(
        line=line,
        num_prompt_tokens=integers(source, "input_lens", result["input_lens"], line),
        num_output_tokens=integers(source, "output_lens", _list(source, result, "output_lens", num, True), line),
        arrival_time=clock.seconds(starts, line) if starts else None,
        failed=np.array([bool(error) for error in errors]) if errors else None,
    )


def _list(source: Source, result: dict[str, Any], name: str, num: int, needed: bool = False) -> list[Any]:
    values = result.get(name)
    if not values and not needed:
        return []
    if not isinstance(values, list) or len(values) != num:
        got = len(values) if isinstance(values, list) else "none"
        raise source.error(None, f"{name}: expected {num} entries as in input_lens, got {got}")
    return values


VLLM_BENCH = Reader("vllm bench serve result (JSON)", _detect, _read)
