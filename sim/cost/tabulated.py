"""The cost model of a measured table: seconds of whole steps by number of tokens, from a CSV.

Columns `phase,num_tokens,seconds`. Rows of phase `decode` give pure decode steps by number of sequences, rows of phase
`prefill` give steps with prompt tokens by all tokens of the step. Between rows time is linear, below the first row
constant, beyond the last row the last slope goes on (and `extrapolation` says so). Rows of one phase and size are
averaged. What grows with context must be given as `per_context_token`; a table alone does not know it. Drafts that a
step verifies count as tokens.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sim.cost.base import BatchShape
from sim.cost.constant import decode_contexts
from sim.errors import InputError

if TYPE_CHECKING:
    from sim.units import FloatArray

COLUMNS = ("phase", "num_tokens", "seconds")
PHASES = ("prefill", "decode")
FIRST_ROWS = 8192


@dataclass
class TabulatedCost:
    """Seconds of a step from a table. `table` is the path of the CSV; `per_context_token` in seconds."""

    table: str
    per_context_token: float = 0.0
    _curves: dict[str, tuple[FloatArray, FloatArray]] = field(init=False, repr=False)
    _seconds: dict[str, list[float]] = field(init=False, repr=False, default_factory=dict)
    _notes: dict[str, None] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.per_context_token < float("inf"):
            raise InputError(f"cost_model.per_context_token must be seconds >= 0 (got {self.per_context_token!r})")
        self._curves = read_step_table(Path(self.table))
        for phase in PHASES:
            self._grow(phase, FIRST_ROWS)

    def step_time(self, shape: BatchShape) -> float:
        decodes, context = shape.num_decode_sequences + shape.num_draft_tokens, shape.decode_context
        if shape.num_prefill_tokens == 0:
            return context * self.per_context_token + self._at("decode", decodes)
        return self._at("prefill", shape.num_prefill_tokens + decodes) + context * self.per_context_token

    def decode_times(self, num_sequences: int, context: int, max_context: int, num_steps: int) -> FloatArray:
        times = decode_contexts(num_sequences, context, num_steps)
        times *= self.per_context_token
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

    def _grow(self, phase: str, num_tokens: int) -> None:
        sizes, seconds = self._curves[phase]
        counts = np.arange(2 * num_tokens + 1, dtype=np.float64)
        slope = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2]) if len(sizes) > 1 else 0.0
        beyond = np.maximum(counts - sizes[-1], 0.0) * max(slope, 0.0)
        table = np.interp(counts, sizes, seconds) + beyond
        table[0] = 0.0
        self._seconds[phase] = table.tolist()


def read_step_table(path: Path) -> dict[str, tuple[FloatArray, FloatArray]]:
    """Sizes and mean seconds of each phase. `InputError` names the row of what is wrong."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != COLUMNS:
                raise InputError(
                    f"{path}: the header must be {','.join(COLUMNS)} (got {','.join(reader.fieldnames or ())})"
                )
            rows = [_row(path, number, row) for number, row in enumerate(reader, start=2)]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
    return {
        phase: _curve(path, phase, [(size, time) for name, size, time in rows if name == phase]) for phase in PHASES
    }


def _row(path: Path, number: int, row: dict[str, str]) -> tuple[str, int, float]:
    try:
        phase, size, seconds = row["phase"], int(row["num_tokens"]), float(row["seconds"])
    except (TypeError, ValueError):
        raise InputError(f"{path}: row {number}: num_tokens and seconds must be numbers (got {row})") from None
    if phase not in PHASES or size < 1 or not 0 < seconds < float("inf"):
        raise InputError(
            f"{path}: row {number}: phase must be prefill or decode, num_tokens >= 1 and seconds > 0 (got {row})"
        )
    return phase, size, seconds


def _curve(path: Path, phase: str, points: list[tuple[int, float]]) -> tuple[FloatArray, FloatArray]:
    if not points:
        raise InputError(f"{path}: has no row of phase '{phase}'")
    sizes = sorted({size for size, _ in points})
    means = [float(np.mean([time for size, time in points if size == wanted])) for wanted in sizes]
    return np.array(sizes, dtype=np.float64), np.array(means)
