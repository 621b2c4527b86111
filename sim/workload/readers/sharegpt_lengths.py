"""Lengths of ShareGPT requests: prompt_len, output_len, arrival_s (optional), source (optional)."""

from __future__ import annotations

from collections.abc import Iterator

from sim.workload.raw import Chunk, Facts, Reader, ReadOptions
from sim.workload.readers.columns import Layout, read_columns
from sim.workload.textfile import Head, Source

_LAYOUT = Layout(
    prompt=("prompt_len",),
    output=("output_len",),
    time=("arrival_s",),
    time_needed=False,
    extra={"tenant": ("source",)},
)


def _detect(head: Head) -> bool:
    return head.kind == "csv" and {"prompt_len", "output_len"} <= head.names


def _read(source: Source, options: ReadOptions, facts: Facts) -> Iterator[Chunk]:
    sources: dict[str, None] = {}
    for _, chunk in read_columns(source, options, facts, _LAYOUT):
        sources.update(dict.fromkeys(chunk.columns.get("tenant", [])))
        yield chunk
    if len(sources) > 1:
        facts.warn(
            f"{len(sources)} sources are laid over each other in time; choose one with where: {{source: NAME}} of: "
            + "; ".join(sources)
        )


SHAREGPT_LENGTHS = Reader("prompt and output lengths (CSV)", _detect, _read)
