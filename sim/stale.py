"""A router's old picture of the cluster: loads as of the latest snapshot, taken every so many seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sim.clock import Clock
from sim.units import to_grid

if TYPE_CHECKING:
    from collections.abc import Sequence as Ordered

    import simpy

    from sim.replica import Replica
    from sim.units import FloatArray, IntArray
    from sim.views import ClusterView


class Snapshots:
    """The state of every replica at the latest multiple of `interval` seconds, by replica index.

    A request that arrives at the very instant of a snapshot still sees the one before. `count_sent`: what this router
    has sent since is added to the counts, as a router does that is alone and keeps books; without it the router is one
    of many that do not know of each other.
    """

    def __init__(self, clock: Clock, replicas: list[Replica], loads: ClusterView, interval: float, count_sent: bool):
        self.clock = clock
        self.interval = interval
        self.count_sent = count_sent
        self._replicas = replicas
        self._loads = loads
        self._armed = False
        self._views: dict[int, StaleView] = {}
        self._copy()

    def _copy(self) -> None:
        replicas, count = self._replicas, len(self._replicas)
        self.outstanding_requests: IntArray = self._loads.outstanding_requests.copy()
        self.outstanding_tokens: IntArray = self._loads.outstanding_tokens.copy()
        self.num_waiting: IntArray = np.fromiter((each.num_waiting for each in replicas), np.int64, count)
        self.num_running: IntArray = np.fromiter((each.num_running for each in replicas), np.int64, count)
        self.kv_usage: FloatArray = np.fromiter((each.kv_usage for each in replicas), np.float64, count)

    def view(self, cluster: ClusterView) -> StaleView:
        """The old picture of the replicas of a view. Called at every decision: it keeps the snapshots coming."""
        if not self._armed:
            self._arm()
        found = self._views.get(id(cluster))
        if found is None:
            found = self._views[id(cluster)] = StaleView(self, cluster)
        return found

    def sent(self, replica: int, num_tokens: int) -> None:
        """A request with so many expected tokens went to the replica."""
        if self.count_sent:
            self.num_waiting[replica] += 1
            self.outstanding_requests[replica] += 1
            self.outstanding_tokens[replica] += num_tokens

    def _arm(self) -> None:
        """Take the next snapshot at the first multiple of the interval from now on."""
        count = int(self.clock.now / self.interval)
        while to_grid(count * self.interval) < self.clock.now:
            count += 1
        self._take_at(count)

    def _take_at(self, count: int) -> None:
        def take(_: simpy.Event) -> None:
            self._copy()
            if self.clock.has_events:  # else nothing will change until somebody asks again
                self._take_at(count + 1)
            else:
                self._armed = False

        self._armed = True
        self.clock.watch(to_grid(count * self.interval), take)


class StaleReplica:
    """A replica as of the latest snapshot; what never changes is its own."""

    def __init__(self, snapshots: Snapshots, replica: Replica) -> None:
        self._snapshots = snapshots
        self._replica = replica
        self.index = replica.index
        self.num_kv_blocks = replica.num_kv_blocks
        self.kv_block_size = replica.kv_block_size

    @property
    def prefill_speed(self) -> float:
        return self._replica.prefill_speed

    @property
    def decode_speed(self) -> float:
        return self._replica.decode_speed

    @property
    def num_waiting(self) -> int:
        return int(self._snapshots.num_waiting[self.index])

    @property
    def num_running(self) -> int:
        return int(self._snapshots.num_running[self.index])

    @property
    def num_outstanding(self) -> int:
        return self.num_waiting + self.num_running

    @property
    def kv_usage(self) -> float:
        return float(self._snapshots.kv_usage[self.index])


class StaleView:
    """A ClusterView of the same replicas as `live`, with the numbers of the latest snapshot."""

    def __init__(self, snapshots: Snapshots, live: ClusterView) -> None:
        self._snapshots = snapshots
        self._live = live
        self._seen: list[object] = []
        self._replicas: list[StaleReplica] = []
        self._indices: IntArray = np.zeros(0, dtype=np.int64)

    @property
    def replicas(self) -> Ordered[StaleReplica]:
        live = self._live.replicas
        if live != self._seen:
            self._seen = list(live)
            self._indices = np.array([replica.index for replica in live], dtype=np.int64)
            everybody = {replica.index: replica for replica in self._snapshots._replicas}
            self._replicas = [StaleReplica(self._snapshots, everybody[replica.index]) for replica in live]
        return self._replicas

    @property
    def outstanding_requests(self) -> IntArray:
        return self._of_mine(self._snapshots.outstanding_requests)

    @property
    def outstanding_tokens(self) -> IntArray:
        return self._of_mine(self._snapshots.outstanding_tokens)

    def _of_mine(self, numbers: IntArray) -> IntArray:
        if not len(self.replicas):
            return numbers[:0]
        return numbers if len(self._indices) == len(numbers) else numbers[self._indices]
