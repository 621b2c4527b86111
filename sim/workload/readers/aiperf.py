"""aiperf's profile_export.jsonl: a request a line, metadata.request_start_ns and metrics with values and units."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sim.workload.raw import Chunk, Facts, Reader, ReadOptions
from sim.workload.textfile import Head, Source, fields, integers, read_jsonl
from sim.workload.timebase import TimeBase


def _detect(head: Head) -> bool:
    return head.kind == "jsonl" and {"metadata", "metrics"} <= head.names


def _read(source: Source, options: ReadOptions, facts: Facts) -> Iterator[Chunk]:
    clock = TimeBase(source, facts, "request_start_ns", "ns", options.time_unit)
    for records in read_jsonl(source, options.chunk_rows()):
        metadata, metrics = (fields(source, records, name) for name in ("metadata", "metrics"))
        starts = [row.get("request_start_ns") for row in metadata]
        failed = [
            bool(row.get("error")) or bool(meta.get("was_cancelled"))
            for row, meta in zip(records.rows, metadata, strict=True)
        ]
        chunk = Chunk(
            line=np.array(records.line, dtype=np.int64),
            num_prompt_tokens=integers(source, "input_sequence_length", _values(metrics, "input"), records.line),
            num_output_tokens=integers(source, "output_sequence_length", _values(metrics, "output"), records.line),
            arrival_time=clock.seconds(starts, records.line),
            failed=np.array(failed),
        )
        if any("session_num" in row and row.get("turn_index") for row in metadata):
            facts.warn("turns of conversations are replayed at the times at which they were sent")
        yield chunk


def _values(metrics: list[Any], which: str) -> list[Any]:
    """Sequence lengths; 0 for a request that failed before it had one."""
    return [(row.get(f"{which}_sequence_length") or {}).get("value", 0) for row in metrics]


AIPERF = Reader("aiperf profile export (JSONL)", _detect, _read)
