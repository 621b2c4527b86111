"""What a trace reader is given and what it returns: chunks of rows in file order, with row numbers for errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from sim.seeds import Seeds
from sim.workload.base import Ragged
from sim.workload.textfile import Head, Source

if TYPE_CHECKING:
    from sim.units import FloatArray, IntArray

CHUNK_ROWS = 65_536
TimeUnit = Literal["auto", "s", "ms", "us", "ns"]


@dataclass
class Chunk:
    """Rows of a trace in file order; all arrays have one entry a row."""

    line: IntArray  # 1-based, as an editor numbers them
    num_prompt_tokens: IntArray
    num_output_tokens: IntArray  # 0: the request failed
    arrival_time: FloatArray | None = None  # seconds from the first row; nan: comes after the previous turn
    delay: FloatArray | None = None  # seconds after the previous turn of the same session
    failed: npt.NDArray[np.bool_] | None = None  # failed for a reason other than its lengths
    hash_ids: Ragged | None = None
    output_hash_ids: Ragged | None = None
    columns: dict[str, list[Any]] = field(default_factory=dict)  # further columns of Workload, by name

    def __len__(self) -> int:
        return len(self.line)


@dataclass(frozen=True)
class ReadOptions:
    """Options of a trace that readers look at; see `WorkloadConfig` for their meaning."""

    hash_block_size: int | None = None
    time_unit: TimeUnit = "auto"
    chars_per_token: float = 4.0
    columns: dict[str, str] = field(default_factory=dict)
    where: dict[str, str] = field(default_factory=dict)
    limit: int | None = None
    start: float | None = None
    end: float | None = None
    seeds: Seeds = field(default_factory=lambda: Seeds(0))

    def chunk_rows(self) -> int:
        return CHUNK_ROWS if self.limit is None else min(CHUNK_ROWS, max(1000, self.limit // 4))


@dataclass
class Facts:
    """What a reader recognised; filled while it reads."""

    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    hash_block_size: int = 512
    new_tokens_only: bool = False  # prompt lengths of later turns count only what the turn adds

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)


@dataclass(frozen=True)
class Reader:
    """A trace format: how to recognise a file by its content, and how to read it."""

    title: str
    detect: Callable[[Head], bool]
    read: Callable[[Source, ReadOptions, Facts], Iterator[Chunk]]
