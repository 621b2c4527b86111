"""Reading a trace into a `Workload`: detection, rows in chunks, failed rows, order, time from zero, sessions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.errors import InputError
from sim.seeds import Seeds
from sim.units import array_to_grid
from sim.workload.base import Ragged, Workload
from sim.workload.prefix import concatenate, session_ids, take
from sim.workload.raw import Chunk, Facts, ReadOptions
from sim.workload.readers import find_reader
from sim.workload.rows import ARRAYS, IDS, TEXT, select_rows
from sim.workload.textfile import Source, read_head

if TYPE_CHECKING:
    from sim.units import FloatArray, IntArray
    from sim.workload.config import WorkloadConfig


@dataclass(frozen=True)
class Trace:
    """A trace as read: the workload and what was met on the way."""

    workload: Workload
    format: str
    has_times: bool
    num_rows: int  # rows read, before any was left out
    num_failed_rows: int  # rows without prompt or output tokens, or marked as failed
    was_sorted: bool


def load_trace(path: Path, config: WorkloadConfig, seeds: Seeds) -> Trace:
    """Read the trace at `path` with the trace options of `config`.

    The first arrival becomes 0; rows are in order of arrival, equal stamps in row order. Where the file has no times,
    all arrivals are 0 and `has_times` is False. Raises `InputError` with file and line for anything that does not fit.
    """
    source = Source(path)
    named = "table" if config.columns and config.format == "auto" else config.format
    name, reader = find_reader(named, source, read_head(source))
    facts = Facts([f"format {name}: {reader.title}"])
    rows = _Rows(source, config)
    rows.collect(reader.read(source, _read_options(config, seeds), facts))
    return _Assembly(source, name, config, facts, rows).trace()


def _read_options(config: WorkloadConfig, seeds: Seeds) -> ReadOptions:
    return ReadOptions(
        config.hash_block_size, config.time_unit, config.chars_per_token, config.columns, config.where,
        config.limit, config.start, config.end, seeds,
    )  # fmt: skip


class _Rows:
    """Chunks of a file without the rows that are not wanted, until there are enough."""

    def __init__(self, source: Source, config: WorkloadConfig) -> None:
        self._source, self._config = source, config
        self.chunks: list[Chunk] = []
        self.num_rows = 0
        self.num_failed = 0
        self._num_kept = 0

    def collect(self, chunks: Iterator[Chunk]) -> None:
        limit, end = self._config.limit, self._config.end
        for chunk in chunks:
            self.num_rows += len(chunk)
            kept = self._kept(chunk)
            if limit is not None:
                kept = kept[: limit - self._num_kept]
            self._num_kept += len(kept)
            self.chunks.append(_select(chunk, kept))
            beyond = end is not None and chunk.arrival_time is not None and bool(np.all(chunk.arrival_time >= end))
            if beyond or (limit is not None and self._num_kept >= limit):
                return

    def _kept(self, chunk: Chunk) -> IntArray:
        keep = self._within(chunk)
        failed = (chunk.num_prompt_tokens < 1) | (chunk.num_output_tokens < 1)
        if chunk.failed is not None:
            failed = failed | chunk.failed
        failed &= keep
        self.num_failed += int(failed.sum())
        if self._config.failed_rows == "error" and failed.any():
            line = int(chunk.line[int(np.argmax(failed))])
            raise self._source.error(line, "failed request (no tokens); failed_rows: drop or keep_as_one")
        if self._config.failed_rows == "keep_as_one":
            # a chunk is only ours: its zeros become ones here
            np.maximum(chunk.num_prompt_tokens, 1, out=chunk.num_prompt_tokens)
            np.maximum(chunk.num_output_tokens, 1, out=chunk.num_output_tokens)
            return np.flatnonzero(keep if chunk.hash_ids is None else keep & (np.diff(chunk.hash_ids.offsets) > 0))
        return np.flatnonzero(keep & ~failed)

    def _within(self, chunk: Chunk) -> np.ndarray[Any, np.dtype[np.bool_]]:
        start, end = self._config.start, self._config.end
        keep = np.ones(len(chunk), dtype=bool)
        if start is None and end is None:
            return keep
        if chunk.arrival_time is None:
            raise self._source.error(None, "has no arrival times: start and end cannot be used")
        times = chunk.arrival_time  # later turns (nan) stay: they are dropped below if their first turn is
        return keep & ~(times < (start or 0.0)) & ~(times >= (np.inf if end is None else end))


def _select(chunk: Chunk, index: IntArray) -> Chunk:
    if len(index) == len(chunk):
        return chunk
    return Chunk(
        chunk.line[index],
        chunk.num_prompt_tokens[index],
        chunk.num_output_tokens[index],
        None if chunk.arrival_time is None else chunk.arrival_time[index],
        None if chunk.delay is None else chunk.delay[index],
        None,
        None if chunk.hash_ids is None else take(chunk.hash_ids, index),
        None if chunk.output_hash_ids is None else take(chunk.output_hash_ids, index),
        {name: [values[i] for i in index.tolist()] for name, values in chunk.columns.items()},
    )


class _Assembly:
    """From kept rows to a workload."""

    def __init__(self, source: Source, name: str, config: WorkloadConfig, facts: Facts, rows: _Rows) -> None:
        self._source, self._name, self._config, self._facts, self._rows = source, name, config, facts, rows
        self._chunks = [chunk for chunk in rows.chunks if len(chunk)]
        if not self._chunks:
            raise source.error(None, self._nothing())
        self.line = np.concatenate([chunk.line for chunk in self._chunks])
        self.n = len(self.line)

    def _nothing(self) -> str:
        if not self._rows.num_rows:
            return "has no row with where: " + str(self._config.where) if self._config.where else "holds no requests"
        return f"none of its {self._rows.num_rows} requests is left (failed_rows, start, end or where leave them out)"

    def trace(self) -> Trace:
        times = self._times()
        was_sorted = times is None or bool(np.all(np.diff(times[~np.isnan(times)]) >= 0))
        workload = self._workload(times)
        workload = self._sessions(workload, times)
        workload = order_by_arrival(workload)
        if times is not None:
            workload = self._retimed(workload)
        self._say(was_sorted, times is not None)
        workload = replace(workload, notes=list(self._facts.notes), warnings=list(self._facts.warnings))
        return Trace(workload, self._name, times is not None, self._rows.num_rows, self._rows.num_failed, was_sorted)

    def _times(self) -> FloatArray | None:
        parts = [chunk.arrival_time for chunk in self._chunks]
        if all(part is None for part in parts):
            return None
        times = np.concatenate(
            [np.full(len(c), np.nan) if part is None else part for c, part in zip(self._chunks, parts, strict=True)]
        )
        return None if np.isnan(times).all() else times - np.nanmin(times)

    def _column(self, name: str) -> list[Any] | None:
        if not any(name in chunk.columns for chunk in self._chunks):
            return None
        return [x for chunk in self._chunks for x in chunk.columns.get(name, [None] * len(chunk))]

    def _ids(self, name: str) -> Ragged | None:
        parts: list[Ragged | None] = [getattr(chunk, name) for chunk in self._chunks]
        present = [part for part in parts if part is not None]
        if present and len(present) < len(parts):
            bad = next(c for c, part in zip(self._chunks, parts, strict=True) if part is None)
            raise self._source.error(int(bad.line[0]), f"{name}: missing here, but other rows have them")
        return concatenate(present) if present else None

    def _workload(self, times: FloatArray | None) -> Workload:
        output = np.concatenate([chunk.num_output_tokens for chunk in self._chunks])
        priority = self._column("priority")
        cancel_after = self._column("cancel_after")
        return Workload(
            arrival_time=np.zeros(self.n) if times is None else times,
            num_prompt_tokens=np.concatenate([chunk.num_prompt_tokens for chunk in self._chunks]),
            num_output_tokens=output,
            max_output_tokens=self._declared(output),
            request_id=self._column("request_id"),
            session_id=self._column("session_id"),
            priority=None if priority is None else np.array([p or 0 for p in priority], dtype=np.int64),
            cancel_after=None if cancel_after is None else array_to_grid(np.array(cancel_after, dtype=np.float64)),
            hash_ids=self._ids("hash_ids"),
            output_hash_ids=self._ids("output_hash_ids"),
            hash_block_size=self._facts.hash_block_size,
            name=self._source.path.name,
            tenant=self._text("tenant"),
            request_class=self._text("request_class"),
            adapter=self._text("adapter"),
            model=self._text("model"),
        )

    def _text(self, name: str) -> list[str] | None:
        values = self._column(name)
        return None if values is None else ["" if value is None else str(value) for value in values]

    def _declared(self, output: IntArray) -> IntArray:
        """The declared maximum of the trace (0: not given); an output above it is an error."""
        values = self._column("max_output_tokens")
        if values is None:
            return output
        declared = np.array([value or 0 for value in values], dtype=np.int64)
        declared = np.where(declared < 1, output, declared)
        if (declared < output).any():
            at = int(np.argmax(declared < output))
            raise self._source.error(
                int(self.line[at]), f"max_output_tokens {declared[at]} is below num_output_tokens {output[at]}"
            )
        return declared

    def _sessions(self, workload: Workload, times: FloatArray | None) -> Workload:
        """Link later turns to the turn before them, and let their prompts hold the conversation so far."""
        if workload.session_id is None:
            return workload
        missing = np.ones(self.n, dtype=bool) if times is None else np.isnan(times)
        if not missing.any():
            return workload
        previous = self._previous(workload.session_id, missing, times is not None)
        if not (previous >= 0).any():
            return workload
        workload = replace(workload, previous=previous, delay=self._delays(previous))
        return self._with_context(workload)

    def _previous(self, session: Any, missing: np.ndarray[Any, np.dtype[np.bool_]], timed: bool) -> IntArray:
        last: dict[Any, int] = {}
        previous = np.full(self.n, -1, dtype=np.int64)
        for i, key in enumerate(session):
            if missing[i]:
                previous[i] = last.get(key, -1)
                if timed and previous[i] < 0 and self._config.arrivals is None:
                    raise self._source.error(
                        int(self.line[i]), f"the first turn kept of session {key!r} has no arrival time"
                    )
            last[key] = i
        return previous

    def _delays(self, previous: IntArray) -> FloatArray:
        parts = [np.zeros(len(c)) if c.delay is None else np.nan_to_num(c.delay) for c in self._chunks]
        return np.where(previous >= 0, array_to_grid(np.concatenate(parts)), 0.0)

    def _with_context(self, workload: Workload) -> Workload:
        mode = self._config.session_prompts
        new_tokens = mode == "new_tokens" or (mode == "auto" and self._facts.new_tokens_only)
        if mode == "auto" and not new_tokens:
            return workload
        assert workload.previous is not None
        prompt = workload.num_prompt_tokens
        if new_tokens:
            prompt = _accumulated(prompt, workload.num_output_tokens, workload.previous)
            self._facts.note("later turns of a session: prompt = the conversation so far + the tokens of the turn")
        elif workload.hash_ids is not None:
            return workload
        ids = session_ids(prompt, workload.num_output_tokens, workload.previous, self._config.hash_block_size or 16)
        self._facts.note(
            f"prefixes: each turn contains the turn before it; ids of {ids.hash_block_size} tokens"
            + ("; hash_ids of the file not used" if workload.hash_ids is not None else "")
        )
        return replace(
            workload,
            num_prompt_tokens=prompt,
            hash_ids=ids.hash_ids,
            output_hash_ids=ids.output_hash_ids,
            hash_block_size=ids.hash_block_size,
        )

    def _retimed(self, workload: Workload) -> Workload:
        """Ties spread, copies appended, gaps divided by `rate_scale`; all on the time grid."""
        times, config = workload.arrival_time, self._config
        if config.spread_ties is not None:
            times = spread_ties(times, config.spread_ties)
            self._facts.note(f"equal time stamps spread over {config.spread_ties:g} s")
            order = np.argsort(times, kind="stable")
            workload, times = select_rows(workload, order), times[order]
        workload = replace(workload, arrival_time=times)
        if config.repeat > 1:
            workload = _repeated(workload, config.repeat)
            self._facts.note(f"the trace {config.repeat} times in a row; copies share no prefixes")
        if config.rate_scale != 1.0:
            self._facts.note(f"gaps divided by rate_scale {config.rate_scale:g}")
        return replace(workload, arrival_time=array_to_grid(workload.arrival_time / config.rate_scale))

    def _say(self, was_sorted: bool, has_times: bool) -> None:
        rows, facts = self._rows, self._facts
        facts.note(f"{self.n} requests from {rows.num_rows} rows read")
        if rows.num_failed:
            what = "dropped" if self._config.failed_rows == "drop" else "kept with one token"
            facts.note(f"{rows.num_failed} failed rows (no prompt or output tokens) {what}")
        if not was_sorted:
            facts.warn("rows were not in order of time: sorted; a subsample or a merge is no real arrival process")
        if not has_times:
            facts.note("no arrival times")


def spread_ties(times: FloatArray, interval: float) -> FloatArray:
    """Spread k equal stamps evenly over [stamp, stamp + interval), in row order; `times` must be sorted."""
    starts = np.flatnonzero(np.diff(times, prepend=-np.inf) > 0)
    sizes = np.diff(np.append(starts, len(times)))
    place = np.arange(len(times)) - np.repeat(starts, sizes)
    spread: FloatArray = times + interval * place / np.repeat(sizes, sizes)
    return spread


def order_by_arrival(workload: Workload) -> Workload:
    """Rows in order of arrival (equal ones in row order), links between turns kept.

    A later turn is put at the earliest time at which it could come: its first turn's arrival and the delays since.
    """
    times = workload.arrival_time.copy()
    if workload.previous is not None and workload.delay is not None:
        previous, delay = workload.previous.tolist(), workload.delay.tolist()
        earliest = times.tolist()
        for i, before in enumerate(previous):
            if before >= 0:
                earliest[i] = earliest[before] + delay[i]
        times = np.nan_to_num(np.array(earliest))
    order = np.argsort(times, kind="stable")
    return select_rows(replace(workload, arrival_time=array_to_grid(times)), order)


def _accumulated(new_tokens: IntArray, output: IntArray, previous: IntArray) -> IntArray:
    prompt, answer = new_tokens.tolist(), output.tolist()
    for i, before in enumerate(previous.tolist()):
        if before >= 0:
            prompt[i] += prompt[before] + answer[before]
    return np.array(prompt, dtype=np.int64)


def _repeated(workload: Workload, num: int) -> Workload:
    """`num` copies, each a span and a mean gap after the one before."""
    n = len(workload)
    span = float(workload.arrival_time[-1]) * (1 + 1 / max(1, n - 1))
    if span <= 0:
        raise InputError("workload.repeat: the trace has no duration to repeat")
    changes: dict[str, Any] = {name: _tiled(getattr(workload, name), num) for name in ARRAYS}
    changes["arrival_time"] = np.concatenate([workload.arrival_time + k * span for k in range(num)])
    for name in IDS:
        column = getattr(workload, name)
        changes[name] = None if column is None else [f"{x}#{k}" for k in range(num) for x in column]
    for name in TEXT:
        column = getattr(workload, name)
        changes[name] = None if column is None else list(column) * num
    if workload.previous is not None:
        changes["previous"] = np.concatenate(
            [np.where(workload.previous >= 0, workload.previous + k * n, -1) for k in range(num)]
        )
    changes.update(_repeated_ids(workload, num))
    return replace(workload, **changes)


def _tiled(values: Any, num: int) -> Any:
    return None if values is None else np.tile(values, num)


def _repeated_ids(workload: Workload, num: int) -> dict[str, Ragged | None]:
    """Ids renumbered from 0, then shifted for each copy."""
    parts = {name: getattr(workload, name) for name in ("hash_ids", "output_hash_ids")}
    present = [ids for ids in parts.values() if ids is not None]
    if not present:
        return {}
    known, dense = np.unique(np.concatenate([ids.values for ids in present]), return_inverse=True)
    result: dict[str, Ragged | None] = {}
    start = 0
    for name, ids in parts.items():
        if ids is None:
            result[name] = None
            continue
        mine = Ragged(dense[start : start + len(ids.values)], ids.offsets)
        start += len(ids.values)
        result[name] = concatenate(Ragged(mine.values + k * len(known), mine.offsets) for k in range(num))
    return result
