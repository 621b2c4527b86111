"""A helper of the CSV readers: time and two lengths by column name, the rest by the reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sim.workload.raw import Chunk, Facts, ReadOptions
from sim.workload.textfile import Source, Table, integers, read_csv
from sim.workload.timebase import TimeBase


@dataclass(frozen=True)
class Layout:
    """Which header names (lower case) hold what, and the unit of bare time stamps."""

    prompt: Sequence[str]
    output: Sequence[str]
    time: Sequence[str]
    unit: str = "s"
    time_needed: bool = True
    extra: Mapping[str, Sequence[str]] | None = None  # optional columns of strings, by Workload name


def read_columns(source: Source, options: ReadOptions, facts: Facts, layout: Layout) -> Iterator[tuple[Table, Chunk]]:
    """Chunks of a CSV file with one request a row."""
    needed = {"prompt": layout.prompt, "output": layout.output}
    optional = dict(layout.extra or {})
    (needed if layout.time_needed else optional)["time"] = layout.time
    clock = TimeBase(source, facts, layout.time[0], layout.unit, options.time_unit)
    for table in read_csv(source, needed, optional, options.chunk_rows(), options.where):
        yield table, _chunk(source, clock, layout, table)


def _chunk(source: Source, clock: TimeBase, layout: Layout, table: Table) -> Chunk:
    return Chunk(
        line=table.line,
        num_prompt_tokens=integers(source, layout.prompt[0], table.columns["prompt"], table.line),
        num_output_tokens=integers(source, layout.output[0], table.columns["output"], table.line),
        arrival_time=clock.seconds(table.columns["time"], table.line) if "time" in table.columns else None,
        columns={name: list(table.columns[name]) for name in (layout.extra or {}) if name in table.columns},
    )
