"""Why each preemption happened and what it cost: the rows of preemptions.parquet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.cost.base import BatchShape
from sim.request import NEVER, Phase
from sim.units import to_grid

if TYPE_CHECKING:
    from sim.replica import Replica
    from sim.request import Sequence


class Cause(IntEnum):
    """What made a running sequence lose its memory; the names in lower case are the values of `cause`."""

    DECODE_BLOCK = 0  # a sequence in decode needed a block and none was free
    PREFILL_BLOCK = 1  # a prefill chunk needed blocks
    SCHEDULER = 2  # the scheduler decided so (retraction, a high-water mark, a more urgent request)
    LOST_TRANSFER = 3  # not a preemption: the KV did not arrive from the replica that computed the prompt


def cause_of(asker: Sequence) -> Cause:
    """The cause when `asker` needs blocks."""
    return Cause.PREFILL_BLOCK if asker.phase is Phase.PREFILL else Cause.DECODE_BLOCK


def preemption_columns(replicas: Iterable[Replica], requests: dict[str, np.ndarray]) -> dict[str, np.ndarray] | None:
    """Columns of the table, by time, then replica, then order; None where nobody was preempted.

    `requests`: the columns of `RunResult.requests`. `num_lost_tokens`: KV given up, shared prefixes included.
    `num_recomputed_tokens`: what its next admission had to compute again (0 if it never came back). `stalled_duration`:
    seconds from the preemption (or the return of a token in flight) to its next token, its next preemption or its end.
    `lost_seconds`: what a step with only the recomputed tokens takes, or the copies to host memory and back.
    """
    rows = [row for replica in replicas for row in _rows(replica, requests)]
    if not rows:
        return None
    rows.sort(key=lambda row: (row["time"], row["replica"]))
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    for name in ("cause", "mode"):
        columns[name] = columns[name].astype(object)
    return columns


def _rows(replica: Replica, requests: dict[str, np.ndarray]) -> Iterator[dict[str, Any]]:
    table = replica.evictions
    names = [name for name in table.columns if name not in ("time", "start", "cause")]
    integers = {name: table.column(name).astype(np.int64).tolist() for name in names}
    comebacks = _comebacks(replica)
    stalls = _stalls(replica, requests)
    for i, (time, cause) in enumerate(zip(table.column("time").tolist(), table.column("cause").tolist(), strict=True)):
        recomputed, cached = next(comebacks[integers["row"][i]], (0, 0))
        copied = integers["num_copied_blocks"][i]
        yield {
            "time": time,
            "replica": replica.index,
            "cause": Cause(int(cause)).name.lower(),
            "mode": "swap" if copied else "recompute",
            **{name: values[i] for name, values in integers.items()},
            "num_recomputed_tokens": recomputed,
            "stalled_duration": stalls[i],
            "lost_seconds": _copy_seconds(replica, copied) + prefill_seconds(replica, recomputed, cached),
        }


def _copy_seconds(replica: Replica, num_blocks: int) -> float:
    """Seconds of copies out and back, alone on the link."""
    if replica.host is None:
        return 0.0
    port = replica.host.port
    return to_grid(port.expected_duration(num_blocks, True) + port.expected_duration(num_blocks, False))


def prefill_seconds(replica: Replica, num_tokens: int, num_cached: int) -> float:
    """Seconds of a step that computes nothing but `num_tokens` tokens after `num_cached` that are there already."""
    if not num_tokens:
        return 0.0
    pairs = num_tokens * num_cached + num_tokens * (num_tokens + 1) // 2
    total = num_cached + num_tokens
    return to_grid(replica.cost.step_time(BatchShape(num_tokens, 1, pairs, total, 0, 0, total)))


def _comebacks(replica: Replica) -> dict[int, Iterator[tuple[int, int]]]:
    """(recomputed, cached) tokens of each re-admission of a row, in order: one follows each preemption."""
    table = replica.readmissions
    found: dict[int, list[tuple[int, int]]] = {int(row): [] for row in replica.evictions.column("row")}
    columns = (table.integers(name).tolist() for name in table.columns)
    for row, recomputed, cached in zip(*columns, strict=True):
        found.setdefault(row, []).append((recomputed, cached))
    return {row: iter(entries) for row, entries in found.items()}


def _stalls(replica: Replica, requests: dict[str, np.ndarray]) -> list[float]:
    """Seconds without progress after each eviction."""
    rows = replica.evictions.column("row").astype(np.int64).tolist()
    starts = replica.evictions.column("start").tolist()
    first, finish = requests["first_token_time"], requests["finish_time"]
    progress: dict[int, list[float]] = {row: [float(first[row])] for row in rows}
    for row, time in zip(replica.resumed.column("row").tolist(), replica.resumed.column("time").tolist(), strict=True):
        if int(row) in progress:
            progress[int(row)].append(time)
    following: dict[int, float] = {}
    stalls = [0.0] * len(rows)
    for i in reversed(range(len(rows))):
        row, start = rows[i], starts[i]
        ends = [time for time in progress[row] if time > start] + [following.get(row, NEVER), float(finish[row])]
        stalls[i] = max(0.0, min(ends) - start)
        following[row] = start
    return stalls
