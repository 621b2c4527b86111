"""What routers may know besides loads: the ids of a prompt, who caches them, and prompts that are still computed.

All arrays are by replica index. What a router is not told by its requests' answers is late: cached prefixes by the
delay of the replicas' events, queues and memory by the age of the snapshot, where there is one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from sim.prefix_index import PrefixIndex
from sim.units import to_grid

if TYPE_CHECKING:
    from sim.clock import Clock
    from sim.replica import Replica
    from sim.stale import Snapshots
    from sim.units import FloatArray, IntArray
    from sim.views import RequestView
    from sim.workload.columns import Columns

Changes = list[tuple[object, bool]]  # (id, whether the replica holds all of it now)


class Signals:
    """The `sim.views.RouterSignals` of one run."""

    def __init__(
        self, clock: Clock, replicas: list[Replica], columns: Columns, event_delay: float, snapshots: Snapshots | None
    ) -> None:
        self.clock = clock
        self.num_replicas = len(replicas)
        self.block_size = columns.workload.hash_block_size
        self._replicas = replicas
        self._columns = columns
        # Tenants kept apart have ids of their own; the first replica says whether they are.
        self._isolated = bool(replicas) and replicas[0].content_spans != columns.content_spans
        self._snapshots = snapshots
        self._delay = to_grid(event_delay)
        self._cached: PrefixIndex | None = None  # made when somebody first asks
        caches = [replica.kv for replica in replicas if replica.kv.tells_changes]
        self._kv_block_sizes = sorted({kv.block_size for kv in caches})
        self._uneven = any(self.block_size % size for size in self._kv_block_sizes)
        self._closed = all(kv.keeps_beginnings for kv in caches)
        self._events: deque[tuple[float, int, Changes]] = deque()  # (instant at which it is known, replica, changes)
        self._latest: tuple[int, Sequence[object]] = (-1, ())
        self.prefills = Prefills(clock, replicas)

    # --- prefixes -----------------------------------------------------------------------------------------------------

    def prefix(self, request: RequestView) -> Sequence[object]:
        """The ids of the prompt, `block_size` tokens each but for the last; empty where the workload has none."""
        if self._latest[0] != request.row:
            self._latest = request.row, self._prefix(request)
        return self._latest[1]

    def _prefix(self, request: RequestView) -> Sequence[object]:
        if not self._isolated:
            return self._columns.prompt_ids(request.row)
        spans = self._replicas[0].content_spans(request.row)
        return [key for key, _, end in spans if end <= request.num_prompt_tokens]

    def make_index(self) -> PrefixIndex:
        """An empty index of prefix ids by replica, for a router that keeps its own."""
        return PrefixIndex(self.num_replicas)

    def cached_tokens(self, request: RequestView) -> IntArray:
        """Tokens of the prompt that each replica has cached from the start on, in whole ids, as its events told."""
        if self._cached is None:
            self._cached = PrefixIndex(self.num_replicas)
            self._listen()
        now, events, index = self.clock.now, self._events, self._cached
        while events and events[0][0] <= now:
            _, replica, changes = events.popleft()
            index.add([key for key, held in changes if held], replica)
            index.discard([key for key, held in changes if not held], replica)
        ids, ends = self.prefix(request), None
        if self._uneven:
            ids, ends = self._with_blocks(ids, request.num_prompt_tokens)
        lengths = index.leading_closed(ids) if self._closed else index.leading(ids)
        tokens = lengths * self.block_size if ends is None else ends[lengths]
        return np.minimum(tokens, request.num_prompt_tokens, out=tokens)

    def _with_blocks(self, ids: Sequence[object], num_tokens: int) -> tuple[Sequence[object], IntArray]:
        """The ids in which a block of every replica ends (others name no block), and the tokens up to each number of
        them.
        """
        size, found, ends = self.block_size, [], [0]
        for i, key in enumerate(ids):
            start, end = i * size, min((i + 1) * size, num_tokens)
            if all(end // block > start // block for block in self._kv_block_sizes):
                found.append(key)
                ends.append(end)
        return found, np.array(ends, dtype=np.int64)

    def _listen(self) -> None:
        for replica in self._replicas:
            replica.kv.watch()
            replica.on_cache_change = self._on_cache_change
            replica.publish()

    def _on_cache_change(self, replica: int, changes: Changes) -> None:
        self._events.append((self.clock.now + self._delay, replica, changes))

    # --- load ---------------------------------------------------------------------------------------------------------

    @property
    def prefill_tokens(self) -> IntArray:
        """Prompt tokens of the requests on each replica that have no first token yet; never old."""
        return self.prefills.tokens()

    @property
    def num_waiting(self) -> IntArray:
        """Requests in each waiting queue."""
        if self._snapshots is not None:
            return self._snapshots.num_waiting
        return np.fromiter((replica.num_waiting for replica in self._replicas), np.int64, self.num_replicas)

    @property
    def kv_usage(self) -> FloatArray:
        """Share of each replica's blocks that are referenced, 0 to 1."""
        if self._snapshots is not None:
            return self._snapshots.kv_usage
        return np.fromiter((replica.kv_usage for replica in self._replicas), np.float64, self.num_replicas)


class Prefills:
    """Prompts that were sent to a replica and whose first token has not come back."""

    def __init__(self, clock: Clock, replicas: list[Replica]) -> None:
        self.clock = clock
        self._tokens = np.zeros(len(replicas), dtype=np.int64)
        self._open: dict[int, tuple[int, int]] = {}  # (replica, prompt tokens) by row
        self._ends: list[tuple[float, int]] = []  # heap: (instant of the first token, row)
        for replica in replicas:
            replica.on_first_token = self._on_first_token

    def sent(self, row: int, replica: int, num_tokens: int) -> None:
        """A request went to the replica."""
        self._open[row] = replica, num_tokens
        self._tokens[replica] += num_tokens

    def left(self, row: int) -> None:
        """A request ended; before its first token, perhaps."""
        entry = self._open.pop(row, None)
        if entry is not None:
            self._tokens[entry[0]] -= entry[1]

    def _on_first_token(self, row: int, time: float) -> None:
        heappush(self._ends, (time, row))

    def tokens(self) -> IntArray:
        """By replica index, as of now."""
        while self._ends and self._ends[0][0] <= self.clock.now:
            self.left(heappop(self._ends)[1])
        return self._tokens
