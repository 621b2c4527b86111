"""Mooncake traces (JSONL): timestamp (ms), input_length, output_length, hash_ids; AIPerf adds session_id, delay (ms).

A row without a timestamp but with a session is a later turn: it comes `delay` after the turn before it ended, and its
input_length counts only the tokens that it adds (as AIPerf sends them).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.workload.base import Ragged
from sim.workload.prefix import num_blocks, ragged
from sim.workload.raw import Chunk, Facts, Reader, ReadOptions
from sim.workload.textfile import Head, Records, Source, fields, integers, numbers, read_jsonl
from sim.workload.timebase import TimeBase

if TYPE_CHECKING:
    from sim.units import FloatArray, IntArray

_OPTIONAL = {"request_id": "request_id", "session_id": "session_id", "priority": "priority"}


def _detect(head: Head) -> bool:
    return head.kind == "jsonl" and {"input_length", "output_length"} <= head.names


def _read(source: Source, options: ReadOptions, facts: Facts) -> Iterator[Chunk]:
    clock = TimeBase(source, facts, "timestamp", "ms", options.time_unit)
    facts.hash_block_size = options.hash_block_size or 512
    for records in read_jsonl(source, options.chunk_rows()):
        yield _chunk(source, facts, clock, records)


def _chunk(source: Source, facts: Facts, clock: TimeBase, records: Records) -> Chunk:
    line = np.array(records.line, dtype=np.int64)
    prompt = integers(source, "input_length", fields(source, records, "input_length"), line)
    chunk = Chunk(
        line=line,
        num_prompt_tokens=prompt,
        num_output_tokens=integers(source, "output_length", fields(source, records, "output_length"), line),
        arrival_time=_times(source, clock, records, line),
        hash_ids=_hash_ids(source, facts.hash_block_size, records, prompt),
    )
    _add_turns(source, facts, chunk, records)
    for ours, theirs in _OPTIONAL.items():
        if any(theirs in row for row in records.rows):
            chunk.columns[ours] = [row.get(theirs) for row in records.rows]
    return chunk


def _times(source: Source, clock: TimeBase, records: Records, line: IntArray) -> FloatArray | None:
    has = [i for i, row in enumerate(records.rows) if row.get("timestamp") is not None]
    if len(has) == len(records.rows):
        return clock.seconds([row["timestamp"] for row in records.rows], line)
    times = np.full(len(records.rows), np.nan)
    times[has] = clock.seconds([records.rows[i]["timestamp"] for i in has], line[has])
    return times if has else None


def _add_turns(source: Source, facts: Facts, chunk: Chunk, records: Records) -> None:
    """Rows with a session and a delay come after the turn before them, whatever their timestamp says."""
    if not any("delay" in row or "timestamp" not in row for row in records.rows):
        return
    values = [row.get("delay", row.get("delay_ms")) for row in records.rows]
    chunk.delay = numbers(source, "delay", values, records.line) / 1e3
    if chunk.arrival_time is not None:
        later = np.array([v is not None and "session_id" in r for v, r in zip(values, records.rows, strict=True)])
        chunk.arrival_time[later] = np.nan
        facts.new_tokens_only |= bool(later.any())


def _hash_ids(source: Source, block_size: int, records: Records, prompt: IntArray) -> Ragged | None:
    rows = [row.get("hash_ids") for row in records.rows]
    if not any(rows):
        return None
    lengths = np.array([len(ids) if isinstance(ids, list) else -1 for ids in rows])
    wrong = np.flatnonzero(lengths != num_blocks(prompt, block_size))
    if len(wrong):
        raise _wrong_length(source, block_size, records, prompt, int(wrong[0]))
    return _exact(source, records, rows)


def _wrong_length(source: Source, block_size: int, records: Records, prompt: IntArray, at: int) -> Exception:
    ids, tokens = records.rows[at].get("hash_ids"), int(prompt[at])
    if not isinstance(ids, list):
        return source.error(records.line[at], f"hash_ids: expected a list of integers as in other rows, got {ids!r}")
    fits = [size for size in (16, 32, 64, 128, 256, 512, 1024, 2048) if -(-tokens // size) == len(ids)]
    hint = f"; hash_block_size: {fits[-1]} would fit this row" if fits else ""
    return source.error(
        records.line[at],
        f"hash_ids: expected ceil(input_length / hash_block_size) = ceil({tokens} / {block_size}) = "
        f"{-(-tokens // block_size)} ids, got {len(ids)}{hint}",
    )


def _exact(source: Source, records: Records, rows: list[Any]) -> Ragged:
    """The ids as int64; unsigned ones above 2^63 wrap around, which keeps different ids different."""
    try:
        if all(type(x) is int for ids in rows for x in ids):
            return ragged(rows)
    except OverflowError:
        wrapped = [[(x + 2**63) % 2**64 - 2**63 for x in ids] for ids in rows]
        if all(-(2**63) <= x < 2**64 for ids in rows for x in ids):
            return ragged(wrapped)
    for line, ids in zip(records.line, rows, strict=True):
        bad = [x for x in ids if type(x) is not int or not -(2**63) <= x < 2**64]
        if bad:
            raise source.error(line, f"hash_ids: expected 64-bit integers, got {bad[0]!r}")
    raise AssertionError("a bad id was seen but not found")


MOONCAKE = Reader("Mooncake trace (JSONL)", _detect, _read)
