"""Vidur's processed traces: arrived_at (seconds, optional), num_prefill_tokens, num_decode_tokens."""

from __future__ import annotations

from collections.abc import Iterator

from sim.workload.raw import Chunk, Facts, Reader, ReadOptions
from sim.workload.readers.columns import Layout, read_columns
from sim.workload.textfile import Head, Source

_LAYOUT = Layout(prompt=("num_prefill_tokens",), output=("num_decode_tokens",), time=("arrived_at",), time_needed=False)


def _detect(head: Head) -> bool:
    return head.kind == "csv" and {"num_prefill_tokens", "num_decode_tokens"} <= head.names


def _read(source: Source, options: ReadOptions, facts: Facts) -> Iterator[Chunk]:
    for _, chunk in read_columns(source, options, facts, _LAYOUT):
        yield chunk


VIDUR = Reader("Vidur processed trace (CSV)", _detect, _read)
