"""Row access to a workload for the event loop: memoryviews instead of NumPy scalars, sequences made on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sim.recorder import as_floats, as_integers
from sim.request import NEVER, Sequence
from sim.units import array_to_grid

if TYPE_CHECKING:
    from sim.units import FloatArray
    from sim.workload.base import Workload


class Columns:
    """The columns of a workload as Python numbers."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.arrival_time = as_floats(np.ascontiguousarray(workload.arrival_time, dtype=np.float64))
        self._prompt = as_integers(np.ascontiguousarray(workload.num_prompt_tokens, dtype=np.int64))
        self._output = as_integers(np.ascontiguousarray(workload.num_output_tokens, dtype=np.int64))
        self._declared = as_integers(np.ascontiguousarray(workload.max_output_tokens, dtype=np.int64))
        self._patience = None if workload.cancel_after is None else as_floats(_patience(workload.cancel_after))
        self._delay = None if workload.delay is None else as_floats(array_to_grid(np.nan_to_num(workload.delay)))
        self._plain = all(
            column is None
            for column in (
                workload.priority,
                workload.tenant,
                workload.request_class,
                workload.adapter,
                workload.session_id,
            )
        )
        self._followers = _followers(workload)
        ids = workload.hash_ids
        offsets = np.zeros(1, dtype=np.int64) if ids is None else np.ascontiguousarray(ids.offsets, dtype=np.int64)
        self._id_offsets = as_integers(offsets)

    def open_rows(self) -> list[int] | range:
        """Rows whose arrival time is known, in arrival order."""
        previous = self.workload.previous
        if previous is None:
            return range(len(self.workload))
        rows = np.flatnonzero(previous < 0)
        order = np.argsort(self.workload.arrival_time[rows], kind="stable")
        return [int(row) for row in rows[order]]

    def sequence(self, row: int, now: float) -> Sequence:
        """A fresh sequence for a row that arrives now."""
        seq = Sequence(row, now, self._prompt[row], self._output[row], self._declared[row])
        if not self._plain:
            self._label(seq, row)
        return seq

    def _label(self, seq: Sequence, row: int) -> None:
        workload = self.workload
        if workload.priority is not None:
            seq.priority = int(workload.priority[row])
        if workload.tenant is not None:
            seq.tenant = workload.tenant[row]
        if workload.request_class is not None:
            seq.request_class = workload.request_class[row]
        if workload.adapter is not None:
            seq.adapter = workload.adapter[row]
        if workload.session_id is not None:
            seq.session = workload.session_id[row]

    def cancel_after(self, row: int) -> float:
        """Seconds from arrival to the client's cancellation; infinite where it never cancels."""
        return NEVER if self._patience is None else self._patience[row]

    def follower(self, row: int) -> int:
        """The row that waits for this one to end, or -1."""
        return -1 if self._followers is None else self._followers.get(row, -1)

    def delay(self, row: int) -> float:
        """Seconds between the end of the previous row and the arrival of this one."""
        return 0.0 if self._delay is None else self._delay[row]

    def prompt_ids(self, row: int) -> list[object]:
        """The keys of `content_spans` that name prompt tokens alone; what they tell of the output is left out."""
        workload = self.workload
        if workload.hash_ids is None:
            return []
        start, end = self._id_offsets[row], self._id_offsets[row + 1]
        if workload.output_hash_ids is not None:
            end = min(end, start + self._prompt[row] // workload.hash_block_size)
        ids: list[object] = workload.hash_ids.values[start:end].tolist()
        adapter = None if workload.adapter is None else workload.adapter[row]
        return ids if adapter is None else [(adapter, key) for key in ids]

    def content_spans(self, row: int) -> list[tuple[object, int, int]]:
        """(key, first token, end token) of a row's hash ids, prompt first; empty without ids. Adapters share no
        content.
        """
        workload = self.workload
        if workload.hash_ids is None:
            return []
        size, prompt = workload.hash_block_size, self._prompt[row]
        spans = [
            (key, i * size, min((i + 1) * size, prompt)) for i, key in enumerate(workload.hash_ids.row(row).tolist())
        ]
        if workload.output_hash_ids is not None:
            spans = spans[: prompt // size]  # the partial block's id gives way to the id of the filled block
            start = len(spans)
            ids = workload.output_hash_ids.row(row).tolist()
            spans += [(key, (start + i) * size, (start + i + 1) * size) for i, key in enumerate(ids)]
        adapter = None if workload.adapter is None else workload.adapter[row]
        if adapter is None:
            return [*spans]
        return [((adapter, key), start, end) for key, start, end in spans]


def _patience(cancel_after: FloatArray) -> FloatArray:
    filled = np.where(np.isnan(cancel_after), np.inf, cancel_after)
    return np.where(np.isinf(filled), np.inf, array_to_grid(np.where(np.isinf(filled), 0.0, filled)))


def _followers(workload: Workload) -> dict[int, int] | None:
    if workload.previous is None:
        return None
    rows = np.flatnonzero(workload.previous >= 0)
    return dict(zip(workload.previous[rows].tolist(), rows.tolist(), strict=True))
