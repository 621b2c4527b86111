"""Azure LLM inference traces of 2023 and 2024: TIMESTAMP,ContextTokens,GeneratedTokens."""

from __future__ import annotations

from collections.abc import Iterator

from sim.workload.raw import Chunk, Facts, Reader, ReadOptions
from sim.workload.readers.columns import Layout, read_columns
from sim.workload.textfile import Head, Source

_LAYOUT = Layout(prompt=("contexttokens",), output=("generatedtokens",), time=("timestamp",))


def _detect(head: Head) -> bool:
    return head.kind == "csv" and {"contexttokens", "generatedtokens"} <= head.names


def _read(source: Source, options: ReadOptions, facts: Facts) -> Iterator[Chunk]:
    for _, chunk in read_columns(source, options, facts, _LAYOUT):
        yield chunk


AZURE = Reader("Azure LLM inference trace (CSV)", _detect, _read)
