"""Our own tables (CSV or Parquet): columns named as in requests.parquet and `Workload`; `columns` renames others.

Needed: num_prompt_tokens, num_output_tokens. Times in seconds. hash_ids and output_hash_ids are integers separated by
blanks in CSV and lists in Parquet; hash_block_size is a column that is the same in every row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.workload.base import Ragged
from sim.workload.prefix import num_blocks, ragged
from sim.workload.raw import Chunk, Facts, Reader, ReadOptions
from sim.workload.textfile import Head, Source, Table, integers, numbers, read_csv
from sim.workload.timebase import TimeBase

if TYPE_CHECKING:
    from sim.units import IntArray

_NEEDED = ("num_prompt_tokens", "num_output_tokens")
TEXT = ("request_id", "session_id", "tenant", "request_class", "adapter", "model")
_OPTIONAL = (
    "arrival_time", *TEXT, "max_output_tokens", "priority", "cancel_after", "delay", "hash_ids", "output_hash_ids",
    "hash_block_size", "status",
)  # fmt: skip
_FAILED = frozenset({"rejected", "failed", "unservable"})


def _detect(head: Head) -> bool:
    return head.kind in ("csv", "parquet") and set(_NEEDED) <= head.names


def _read(source: Source, options: ReadOptions, facts: Facts) -> Iterator[Chunk]:
    renamed = {ours: (options.columns.get(ours, ours).lower(),) for ours in (*_NEEDED, *_OPTIONAL)}
    needed = {ours: renamed[ours] for ours in (*_NEEDED, *options.columns)}
    optional = {ours: renamed[ours] for ours in _OPTIONAL if ours not in needed}
    clock = TimeBase(source, facts, renamed["arrival_time"][0], "s", options.time_unit)
    with source.open_bytes() as file:
        is_parquet = file.read(4) == b"PAR1"
    read = _read_parquet if is_parquet else read_csv
    for table in read(source, needed, optional, options.chunk_rows(), options.where):
        yield _chunk(source, options, facts, clock, table)


def _read_parquet(
    source: Source,
    needed: Mapping[str, Sequence[str]],
    optional: Mapping[str, Sequence[str]],
    chunk_rows: int,
    where: Mapping[str, str] | None = None,
) -> Iterator[Table]:
    import pyarrow.parquet as pq

    if where:
        raise source.error(None, "where works on CSV files only")
    with pq.ParquetFile(source.path) as file:
        yield from _batches(source, file, needed, optional, chunk_rows)


def _batches(
    source: Source,
    file: Any,
    needed: Mapping[str, Sequence[str]],
    optional: Mapping[str, Sequence[str]],
    chunk_rows: int,
) -> Iterator[Table]:
    by_name = {name.lower(): name for name in file.schema_arrow.names}
    missing = [accepted[0] for accepted in needed.values() if accepted[0] not in by_name]
    if missing:
        raise source.error(None, f"missing columns {', '.join(missing)}; found: {', '.join(by_name)}")
    wanted = {ours: by_name[names[0]] for ours, names in {**needed, **optional}.items() if names[0] in by_name}
    first = 1
    for batch in file.iter_batches(batch_size=chunk_rows, columns=sorted(set(wanted.values()))):
        columns = {ours: batch.column(theirs).to_pylist() for ours, theirs in wanted.items()}
        yield Table(np.arange(first, first + len(batch)), columns)
        first += len(batch)


def _chunk(source: Source, options: ReadOptions, facts: Facts, clock: TimeBase, table: Table) -> Chunk:
    columns, line = table.columns, table.line
    prompt = integers(source, "num_prompt_tokens", columns["num_prompt_tokens"], line)
    chunk = Chunk(line, prompt, integers(source, "num_output_tokens", columns["num_output_tokens"], line))
    _add_times(source, clock, chunk, columns)
    if "status" in columns:
        chunk.failed = np.array([value in _FAILED for value in columns["status"]])
    for name in TEXT:
        if name in columns and any(value not in ("", None) for value in columns[name]):
            chunk.columns[name] = list(columns[name])
    _add_numbers(source, chunk, columns)
    _add_hashes(source, options, facts, chunk, columns)
    return chunk


def _add_times(source: Source, clock: TimeBase, chunk: Chunk, columns: Mapping[str, Sequence[Any]]) -> None:
    """Rows with a session, a delay and no arrival time follow the turn before them."""
    if "arrival_time" not in columns:
        return
    given = [i for i, value in enumerate(columns["arrival_time"]) if value not in ("", None)]
    times = np.full(len(chunk), np.nan)
    times[given] = clock.seconds([columns["arrival_time"][i] for i in given], chunk.line[given])
    chunk.arrival_time = times
    if "delay" in columns:
        chunk.delay = numbers(source, "delay", columns["delay"], chunk.line)
        if "session_id" in columns:
            chunk.arrival_time[~np.isnan(chunk.delay)] = np.nan


def _add_numbers(source: Source, chunk: Chunk, columns: Mapping[str, Sequence[Any]]) -> None:
    if "max_output_tokens" in columns:
        values = [0 if value in ("", None) else value for value in columns["max_output_tokens"]]
        chunk.columns["max_output_tokens"] = integers(source, "max_output_tokens", values, chunk.line).tolist()
    if "priority" in columns:
        values = [0 if value in ("", None) else value for value in columns["priority"]]
        chunk.columns["priority"] = integers(source, "priority", values, chunk.line, least=-(2**63)).tolist()
    if "cancel_after" in columns:
        chunk.columns["cancel_after"] = numbers(source, "cancel_after", columns["cancel_after"], chunk.line).tolist()


def _add_hashes(
    source: Source, options: ReadOptions, facts: Facts, chunk: Chunk, columns: Mapping[str, Sequence[Any]]
) -> None:
    if "hash_ids" not in columns:
        return
    sizes = set(columns.get("hash_block_size", []))
    if len(sizes) > 1:
        raise source.error(None, f"hash_block_size: expected one value, got {sorted(map(str, sizes))[:3]}")
    size = options.hash_block_size or (int(integers(source, "hash_block_size", [*sizes], [1], 1)[0]) if sizes else 512)
    facts.hash_block_size = size
    chunk.hash_ids = _ids(source, "hash_ids", columns["hash_ids"], chunk.line)
    wrong = np.flatnonzero(np.diff(chunk.hash_ids.offsets) != num_blocks(chunk.num_prompt_tokens, size))
    if len(wrong):
        raise source.error(
            int(chunk.line[wrong[0]]),
            f"hash_ids: expected ceil(num_prompt_tokens / hash_block_size) = "
            f"{num_blocks(chunk.num_prompt_tokens, size)[wrong[0]]} ids, got {len(chunk.hash_ids.row(int(wrong[0])))}",
        )
    if "output_hash_ids" in columns:
        chunk.output_hash_ids = _ids(source, "output_hash_ids", columns["output_hash_ids"], chunk.line)


def _ids(source: Source, name: str, values: Sequence[Any], line: IntArray) -> Ragged:
    rows = []
    for number, value in zip(line, values, strict=True):
        try:
            ids = [int(x) for x in value.split()] if isinstance(value, str) else list(value or [])
        except ValueError:
            raise source.error(int(number), f"{name}: expected integers and blanks, got {value[:60]!r}") from None
        if not all(type(x) is int and -(2**63) <= x < 2**63 for x in ids):
            raise source.error(int(number), f"{name}: expected 64-bit integers, got {str(value)[:60]!r}")
        rows.append(ids)
    return ragged(rows)


TABLE = Reader("servesim table (CSV or Parquet)", _detect, _read)
