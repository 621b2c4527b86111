"""Taking rows of a workload: a subset, another order, or rows several times over."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.workload.base import Workload
from sim.workload.prefix import take

if TYPE_CHECKING:
    from sim.units import IntArray

ARRAYS = (
    "arrival_time", "num_prompt_tokens", "num_output_tokens", "max_output_tokens", "priority", "cancel_after", "delay",
)  # fmt: skip
IDS = ("request_id", "session_id")
TEXT = ("tenant", "request_class", "adapter", "model")


def select_rows(workload: Workload, index: IntArray) -> Workload:
    """The rows `index` in that order.

    Links to previous turns follow their rows (a turn whose previous row is left out becomes a first turn). Where rows
    are taken more than once, request and session ids are dropped: they would no longer tell requests apart.
    """
    if np.array_equal(index, np.arange(len(workload))):
        return workload
    repeated = len(np.unique(index)) < len(index)
    changes: dict[str, Any] = {name: _taken(getattr(workload, name), index) for name in ARRAYS}
    for name in (*IDS, *TEXT):
        column = getattr(workload, name)
        drop = column is None or (repeated and name in IDS)
        changes[name] = None if drop else [column[i] for i in index.tolist()]
    for name in ("hash_ids", "output_hash_ids"):
        ids = getattr(workload, name)
        changes[name] = None if ids is None else take(ids, index)
    if workload.previous is not None:
        place = np.full(len(workload) + 1, -1, dtype=np.int64)
        place[index] = np.arange(len(index))
        changes["previous"] = place[workload.previous[index]]
    return replace(workload, **changes)


def _taken(values: Any, index: IntArray) -> Any:
    return None if values is None else values[index]
