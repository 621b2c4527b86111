"""The cost model of a measured table: seconds of whole steps by number of tokens, from a CSV.

Columns `phase,num_tokens,seconds`. Rows of phase `decode` give pure decode steps by number of sequences, rows of phase
`prefill` give steps with prompt tokens by all tokens of the step. Between rows time is linear, below the first row
constant, beyond the last row the last slope goes on (and `extrapolation` says so). Rows of one phase and size are
averaged. What grows with context must be given beside the table: `per_context_token` for the tokens that decodes read,
or a fourth column of that name where it depends on the number of sequences (linear between rows, constant outside);
`per_prefill_pair` for the query-key pairs of prompts. Drafts that a step verifies count as tokens.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sim.cost.base import BatchShape
from sim.cost.constant import decode_contexts
from sim.errors import InputError

if TYPE_CHECKING:
    from sim.units import FloatArray

COLUMNS = ("phase", "num_tokens", "seconds")
PER_CONTEXT = "per_context_token"  # the optional fourth column: seconds, of decode rows
PHASES = ("prefill", "decode")
FIRST_ROWS = 8192


@dataclass
class TabulatedCost:
    """Seconds of a step from a table. `table` is the path of the CSV; the rates in seconds."""

    table: str
    per_context_token: float = 0.0
    per_prefill_pair: float = 0.0
    _curves: dict[str, tuple[FloatArray, FloatArray]] = field(init=False, repr=False)
    _seconds: dict[str, list[float]] = field(init=False, repr=False, default_factory=dict)
    _rates: tuple[FloatArray, FloatArray] | None = field(init=False, repr=False)
    _per_context: list[float] = field(init=False, repr=False, default_factory=list)
    _notes: dict[str, None] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        for name in (PER_CONTEXT, "per_prefill_pair"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise InputError(f"cost_model.{name} must be seconds >= 0 (got {value!r})")
        rows = read_rows(Path(self.table))
        self._curves = _curves(Path(self.table), rows)
        self._rates = _context_rates(rows)
        if self._rates is not None and self.per_context_token:
            raise InputError(f"cost_model.{PER_CONTEXT}: {self.table} has a column of that name; give one of the two")
        for phase in PHASES:
            self._grow(phase, FIRST_ROWS)

    def step_time(self, shape: BatchShape) -> float:
        decodes, context = shape.num_decode_sequences + shape.num_draft_tokens, shape.decode_context
        if shape.num_prefill_tokens == 0:
            return context * self._context_rate(decodes) + self._at("decode", decodes)
        time = self._at("prefill", shape.num_prefill_tokens + decodes) + context * self._context_rate(decodes)
        return time + shape.prefill_pairs * self.per_prefill_pair

    def decode_times(self, num_sequences: int, context: int, max_context: int, num_steps: int) -> FloatArray:
        times = decode_contexts(num_sequences, context, num_steps)
        times *= self._context_rate(num_sequences)
        times += self._at("decode", num_sequences)
        return times

    def breakdown(self, shape: BatchShape) -> dict[str, dict[str, float | str]]:
        """The whole step as one operation; a table knows no parts."""
        return {"step": {"seconds": self.step_time(shape), "flops": 0.0, "bytes": 0.0, "bound": "measured"}}

    def extrapolation(self) -> list[str]:
        """A sentence for each phase that was asked beyond its last row."""
        return list(self._notes)

    def _at(self, phase: str, num_tokens: int) -> float:
        if num_tokens >= len(self._seconds[phase]):
            self._grow(phase, num_tokens)
        last = self._curves[phase][0][-1]
        if num_tokens > last:
            self._notes[f"{self.table}: {phase} steps of more than {last:g} tokens continue its last slope"] = None
        return self._seconds[phase][num_tokens]

    def _context_rate(self, num_sequences: int) -> float:
        if self._rates is None:
            return self.per_context_token
        if num_sequences >= len(self._per_context):
            counts = np.arange(max(2 * num_sequences + 1, FIRST_ROWS), dtype=np.float64)
            self._per_context = np.interp(counts, *self._rates).tolist()
        return self._per_context[num_sequences]

    def _grow(self, phase: str, num_tokens: int) -> None:
        sizes, seconds = self._curves[phase]
        counts = np.arange(2 * num_tokens + 1, dtype=np.float64)
        slope = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2]) if len(sizes) > 1 else 0.0
        beyond = np.maximum(counts - sizes[-1], 0.0) * max(slope, 0.0)
        table = np.interp(counts, sizes, seconds) + beyond
        table[0] = 0.0
        self._seconds[phase] = table.tolist()


class StepRow(NamedTuple):
    """One row of a table; `per_context_token` is None without that column, and of prefill rows."""

    phase: str
    num_tokens: int
    seconds: float
    per_context_token: float | None


def read_rows(path: Path) -> list[StepRow]:
    """The rows of a table in order. `InputError` names the row of what is wrong."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            header = tuple(reader.fieldnames or ())
            if header not in (COLUMNS, (*COLUMNS, PER_CONTEXT)):
                raise InputError(
                    f"{path}: the header must be {','.join(COLUMNS)}, with or without ,{PER_CONTEXT} "
                    f"(got {','.join(header)})"
                )
            return [_row(path, number, row) for number, row in enumerate(reader, start=2)]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None


def _row(path: Path, number: int, row: dict[str, str]) -> StepRow:
    phase = row["phase"]
    try:
        size, seconds = int(row["num_tokens"]), float(row["seconds"])
        rate = float(row[PER_CONTEXT]) if phase == "decode" and PER_CONTEXT in row else None
    except (TypeError, ValueError):
        raise InputError(f"{path}: row {number}: {' and '.join(list(row)[1:])} must be numbers (got {row})") from None
    if phase not in PHASES or size < 1 or not 0 < seconds < float("inf"):
        raise InputError(
            f"{path}: row {number}: phase must be prefill or decode, num_tokens >= 1 and seconds > 0 (got {row})"
        )
    if rate is not None and not 0 <= rate < float("inf"):
        raise InputError(f"{path}: row {number}: {PER_CONTEXT} must be seconds >= 0 (got {row})")
    return StepRow(phase, size, seconds, rate)


def _curves(path: Path, rows: list[StepRow]) -> dict[str, tuple[FloatArray, FloatArray]]:
    points = {phase: [(row.num_tokens, row.seconds) for row in rows if row.phase == phase] for phase in PHASES}
    for phase in PHASES:
        if not points[phase]:
            raise InputError(f"{path}: has no row of phase '{phase}'")
    return {phase: _curve(points[phase]) for phase in PHASES}


def _context_rates(rows: list[StepRow]) -> tuple[FloatArray, FloatArray] | None:
    points = [(row.num_tokens, row.per_context_token) for row in rows if row.per_context_token is not None]
    return _curve(points) if points else None


def _curve(points: Sequence[tuple[int, float]]) -> tuple[FloatArray, FloatArray]:
    """Sizes in order and the means of what was measured at each."""
    sizes = sorted({size for size, _ in points})
    means = [float(np.mean([value for size, value in points if size == wanted])) for wanted in sizes]
    return np.array(sizes, dtype=np.float64), np.array(means)
