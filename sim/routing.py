"""Routing: asks the router, with as old a picture of the cluster as it has, and keeps the log of its decisions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from sim.signals import Signals
from sim.stale import Snapshots

if TYPE_CHECKING:
    from sim.clock import Clock
    from sim.interfaces import Router
    from sim.replica import Replica
    from sim.request import Sequence
    from sim.units import FloatArray
    from sim.views import ClusterView
    from sim.workload.columns import Columns


@dataclass(frozen=True)
class RoutingSettings:
    """How old the router's picture is, and whether its decisions are logged. Seconds."""

    snapshot_interval: float = 0.0  # 0: loads are live
    count_sent: bool = False  # whether a router adds what it sent since the snapshot
    event_delay: float = 0.0  # of the events that tell what a replica caches
    log: bool = False


class Routing:
    """The routers of a cluster, one for all replicas or one a pool, and what they are told.

    `loads`: those of all replicas, by index.
    """

    def __init__(
        self,
        clock: Clock,
        replicas: list[Replica],
        loads: ClusterView,
        columns: Columns,
        settings: RoutingSettings,
    ) -> None:
        interval = settings.snapshot_interval
        self.snapshots = Snapshots(clock, replicas, loads, interval, settings.count_sent) if interval else None
        self.signals: Signals | None = None
        self._make_signals = partial(Signals, clock, replicas, columns, settings.event_delay, self.snapshots)
        self._books: dict[tuple[int, int], Callable[[Sequence, int], None]] = {}  # who keeps one, by row and replica
        self.log = DecisionLog() if settings.log else None

    def enlist(self, router: Router) -> None:
        """A router is going to be asked: let it know where its signals are."""
        begin = getattr(router, "begin", None)
        if begin is not None:
            self.signals = self.signals or self._make_signals()
            begin(self.signals)

    def choose(self, router: Router, seq: Sequence, cluster: ClusterView, now: float) -> int:
        """Position in `cluster.replicas`, as the router answers it (the caller checks it)."""
        view = cluster if self.snapshots is None else self.snapshots.view(cluster)
        position = router.route(seq, view, now)
        if not 0 <= position < len(cluster.replicas):
            return position
        ended = getattr(router, "ended", None)
        if ended is not None:
            self._books[seq.row, cluster.replicas[position].index] = ended
        if self.log is not None:
            scores = getattr(router, "scores", None)
            self.log.add(seq.row, now, [replica.index for replica in cluster.replicas], position, scores)
        return position

    def sent(self, replica: int, num_tokens: int) -> None:
        """A request went to the replica of this index; `num_tokens` it is counted with while outstanding."""
        if self.snapshots is not None:
            self.snapshots.sent(replica, num_tokens)

    def prompt_sent(self, seq: Sequence, replica: int) -> None:
        """The replica is going to compute the prompt."""
        if self.signals is not None:
            self.signals.prefills.sent(seq.row, replica, seq.num_prompt_tokens)

    def left(self, seq: Sequence, replica: int) -> None:
        """A request left a replica, however it did; also one that the replica could not take."""
        if self.signals is not None:
            self.signals.prefills.left(seq.row)
        ended = self._books.pop((seq.row, replica), None) if self._books else None
        if ended is not None:
            ended(seq, replica)


class DecisionLog:
    """One entry a decision: what the router chose among, and the numbers it compared."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.times: list[float] = []
        self.chosen: list[int] = []
        self.candidates: list[list[int]] = []
        self.scores: list[list[float] | None] = []

    def add(self, row: int, time: float, candidates: list[int], position: int, scores: FloatArray | None) -> None:
        """`candidates`: replica indices. `scores`: one a candidate, or None from a router that compares none."""
        self.rows.append(row)
        self.times.append(time)
        self.chosen.append(candidates[position])
        self.candidates.append(candidates)
        self.scores.append(None if scores is None else np.asarray(scores, dtype=np.float64).tolist())

    def columns(self) -> dict[str, np.ndarray]:
        """The columns of routing.parquet but for the request's id; `row` is its row in the workload.

        `candidates` and `scores` hold a list a row; there are no scores from a router that compares none.
        """
        columns: dict[str, np.ndarray] = {
            "row": np.array(self.rows, dtype=np.int64),
            "time": np.array(self.times, dtype=np.float64),
            "replica": np.array(self.chosen, dtype=np.int64),
            "candidates": as_objects(self.candidates),
        }
        if any(scores is not None for scores in self.scores):
            columns["scores"] = as_objects(self.scores)
        return columns


def as_objects(lists: list[list[int]] | list[list[float] | None]) -> np.ndarray:
    """Lists as the elements of a one-dimensional array."""
    column = np.empty(len(lists), dtype=object)
    column[:] = lists
    return column
