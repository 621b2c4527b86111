"""Append-only records of a run: flat arrays of doubles and integers, no statistics, no object per token."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from sim.units import FloatArray, IntArray

MIN_CAPACITY = 4096


def as_floats(column: FloatArray) -> memoryview[float]:
    """A view of a column whose items are Python floats."""
    return memoryview(column)  # type: ignore[arg-type]  # the stubs of NumPy arrays lack the buffer protocol of 3.11


def as_integers(column: IntArray) -> memoryview[int]:
    """A view of a column whose items are Python integers."""
    return memoryview(column)  # type: ignore[arg-type]  # as above


class StepTimes:
    """Ends and scheduling instants of the steps in which a decode cohort advanced, indexed by cohort clock.

    Entries beyond the clock are plans: fast-forward writes them and may overwrite them.
    """

    def __init__(self) -> None:
        self.ends = np.zeros(MIN_CAPACITY)
        self.calls = np.zeros(MIN_CAPACITY)
        # A memoryview gives Python floats, several times faster than NumPy scalars.
        self.end_at: memoryview[float] = as_floats(self.ends)
        self.call_at: memoryview[float] = as_floats(self.calls)

    def reserve(self, size: int) -> None:
        """Make room for entries 0 to size - 1."""
        if size > len(self.ends):
            capacity = max(size, 2 * len(self.ends))
            self.ends = np.concatenate([self.ends, np.zeros(capacity - len(self.ends))])
            self.calls = np.concatenate([self.calls, np.zeros(capacity - len(self.calls))])
            self.end_at, self.call_at = as_floats(self.ends), as_floats(self.calls)

    def first_call_from(self, time: float, low: int, high: int) -> int:
        """First index in [low, high) whose call is at or after `time`; high if there is none."""
        return bisect_left(self.call_at, time, low, high)

    def first_end_after(self, time: float, low: int, high: int) -> int:
        """First index in [low, high) whose step ends after `time`; high if there is none."""
        while low < high:
            middle = (low + high) // 2
            if self.end_at[middle] <= time:
                low = middle + 1
            else:
                high = middle
        return low


class Table:
    """Rows of numbers of one width; read back as columns."""

    def __init__(self, columns: tuple[str, ...], typecode: str = "d") -> None:
        self.columns = columns
        self._values: array[float] = array(typecode)
        # One row: a tuple with one number a column.
        self.append: Callable[[tuple[float, ...]], None] = self._values.extend

    def __len__(self) -> int:
        return len(self._values) // len(self.columns)

    def integers(self, name: str) -> IntArray:
        """A copy of one column, as int64."""
        return self.column(name).astype(np.int64, copy=False)

    def column(self, name: str) -> FloatArray:
        """A copy of one column, as float64 (or int64, in a table of integers)."""
        dtype = np.float64 if self._values.typecode == "d" else np.int64
        rows: FloatArray = np.frombuffer(self._values, dtype=dtype) if self._values else np.empty(0, dtype)
        return rows.reshape(-1, len(self.columns))[:, self.columns.index(name)].copy()


REQUEST_COLUMNS = (
    "row",
    "status",
    "admission_time",
    "first_scheduled_time",
    "first_token_time",
    "finish_time",
    "num_output_tokens",
    "num_cached_tokens",
    "num_preemptions",
    "num_recomputed_tokens",
    "prefill_replica",
    "decode_replica",
    "preempted_before_first_token",
    "preempted_duration",
    "num_running_at_first_token",
    "arrival_time",
)
# Clocks, except phase: (computed - clock) modulo block size. Blocks are taken from clock `first_take` on.
SPAN_COLUMNS = ("row", "first", "last", "last_scheduled", "phase", "first_take")
# One row a preemption; `asker` is the row that needed blocks, -1 where the scheduler decided by itself.
EVICTION_COLUMNS = (
    "time",
    "start",
    "cause",
    "asker",
    "row",
    "num_lost_tokens",
    "num_freed_blocks",
    "num_copied_blocks",
)
READMISSION_COLUMNS = ("row", "num_recomputed_tokens", "num_cached_tokens")
STEP_COLUMNS = (
    "start_time",
    "duration",
    "num_prefill_tokens",
    "num_decode_sequences",
    "num_context_tokens",
    "num_preempted",
    "num_free_blocks",
)
