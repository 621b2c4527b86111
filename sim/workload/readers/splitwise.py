"""Splitwise-sim traces: request_id, application_id, arrival_timestamp (seconds), prompt_size, token_size."""

from __future__ import annotations

from collections.abc import Iterator

from sim.workload.raw import Chunk, Facts, Reader, ReadOptions
from sim.workload.readers.columns import Layout, read_columns
from sim.workload.textfile import Head, Source, integers

_LAYOUT = Layout(
    prompt=("prompt_size",),
    output=("token_size",),
    time=("arrival_timestamp",),
    extra={"request_id": ("request_id",), "tenant": ("application_id",), "batch_size": ("batch_size",)},
)


def _detect(head: Head) -> bool:
    return head.kind == "csv" and {"prompt_size", "token_size"} <= head.names


def _read(source: Source, options: ReadOptions, facts: Facts) -> Iterator[Chunk]:
    for table, chunk in read_columns(source, options, facts, _LAYOUT):
        if "request_id" in chunk.columns:
            ids = integers(source, "request_id", chunk.columns["request_id"], table.line)
            chunk.columns["request_id"] = ids.tolist()
        if any(size.strip() not in ("", "1") for size in chunk.columns.pop("batch_size", [])):
            facts.warn("batch_size other than 1 is ignored: every row is one request")
        yield chunk


SPLITWISE = Reader("Splitwise-sim trace (CSV)", _detect, _read)
