"""The workload of a run: columns of requests, whatever their origin (a trace, a generator, a study).

Columns rather than objects: a million requests are a dozen arrays. The engine reads rows in order; nothing here is
changed by a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.units import FloatArray, IntArray


@dataclass(frozen=True)
class Ragged:
    """A list of integer lists: row i is `values[offsets[i]:offsets[i+1]]`."""

    values: IntArray
    offsets: IntArray  # length rows + 1

    def row(self, i: int) -> IntArray:
        return self.values[self.offsets[i] : self.offsets[i + 1]]

    def __len__(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True)
class ClosedLoop:
    """Closed-loop arrivals: `concurrency` users, each sends its next request `think_time` after its last one ended.

    The user takes the next row of the workload in row order; `arrival_time` of the rows is ignored.
    """

    concurrency: int
    think_times: FloatArray  # seconds, one a row: the pause of the user before it sends this row (0 for its first)


@dataclass(frozen=True)
class Workload:
    """Requests in arrival order. All arrays have one entry a request.

    `arrival_time` is in seconds from the start of the simulation, on the time grid, non-decreasing (except for rows
    with a `previous` row, whose arrival is decided during the run: `previous` row's end + `delay`).
    """

    arrival_time: FloatArray
    num_prompt_tokens: IntArray  # >= 1
    num_output_tokens: IntArray  # the true length, >= 1; hidden from policies
    max_output_tokens: IntArray  # what the client declares; >= 1 (larger than the true length: ends by a stop token)
    request_id: Sequence[Any] | None = None  # None: the row number
    session_id: Sequence[Any] | None = None
    tenant: Sequence[str] | None = None
    request_class: Sequence[str] | None = None
    adapter: Sequence[str] | None = None
    model: Sequence[str] | None = None
    priority: IntArray | None = None  # smaller is more important
    cancel_after: FloatArray | None = None  # seconds from arrival to the client's cancellation; nan or inf: never
    previous: IntArray | None = None  # row of the previous turn, -1 for none: arrives `delay` after that one ended
    delay: FloatArray | None = None  # seconds (think time), used where previous >= 0
    hash_ids: Ragged | None = None  # prefix-chained ids of the prompt, one per hash_block_size tokens, last one partial
    output_hash_ids: Ragged | None = None  # ids of the blocks that follow in prompt + output; see sim/kv
    hash_block_size: int = 512
    closed_loop: ClosedLoop | None = None
    name: str = "workload"
    notes: list[str] = field(default_factory=list)  # what was recognised, converted, dropped
    warnings: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.num_prompt_tokens)
