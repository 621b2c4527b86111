"""Waiting queues of a replica: arrival order, or sorted by a scheduler's key."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from sim.request import Sequence

Key = tuple[float, ...]


class WaitingQueue(Protocol):
    """Sequences that wait for a place in the batch, in the order in which they would be served."""

    def push(self, seq: Sequence) -> bool:
        """Add a new arrival; return whether it is now the first."""
        ...

    def push_preempted(self, seq: Sequence) -> None: ...
    def restore(self, skipped: list[Sequence]) -> None:
        """Put sequences that were popped and passed over back in front, in their order."""
        ...

    def peek(self) -> Sequence: ...
    def pop(self) -> Sequence: ...
    def remove(self, seq: Sequence) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Sequence]: ...


class ArrivalQueue:
    """First come, first served; preempted sequences go to the front, or to the end like a new arrival."""

    def __init__(self, preempted_last: bool = False, look_at_all: bool = False) -> None:
        self._queue: deque[Sequence] = deque()
        self._look_at_all = look_at_all
        self.peek = lambda: self._queue[0]
        self.pop = self._queue.popleft
        self.remove = self._queue.remove
        self.push_preempted = self._queue.append if preempted_last else self._queue.appendleft

    def push(self, seq: Sequence) -> bool:
        self._queue.append(seq)
        return self._look_at_all or len(self._queue) == 1

    def sort(self, key: Callable[[Sequence], Key]) -> None:
        """Bring the queue as it stands into the order of a key; later arrivals go to its end again."""
        ordered = sorted(self._queue, key=key)
        self._queue.clear()
        self._queue.extend(ordered)

    def restore(self, skipped: list[Sequence]) -> None:
        self._queue.extendleft(reversed(skipped))

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._queue)


class SortedQueue:
    """Sorted by (key, arrival_time, row), least first."""

    def __init__(self, key: Callable[[Sequence], Key]) -> None:
        self._key = key
        self._entries: list[tuple[Key, float, int, Sequence]] = []

    def _entry(self, seq: Sequence) -> tuple[Key, float, int, Sequence]:
        return self._key(seq), seq.arrival_time, seq.row, seq

    def push(self, seq: Sequence) -> bool:
        insort(self._entries, self._entry(seq))
        return self._entries[0][3] is seq

    def push_preempted(self, seq: Sequence) -> None:
        self.push(seq)

    def restore(self, skipped: list[Sequence]) -> None:
        for seq in skipped:
            self.push(seq)

    def peek(self) -> Sequence:
        return self._entries[0][3]

    def pop(self) -> Sequence:
        return self._entries.pop(0)[3]

    def remove(self, seq: Sequence) -> None:
        self._entries = [entry for entry in self._entries if entry[3] is not seq]

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Sequence]:
        return (entry[3] for entry in self._entries)


class AgeingQueue(SortedQueue):
    """Sorted by a key, but whoever arrived `max_wait` seconds ago or earlier comes first, in order of arrival.

    `now`: tells the instant at which the queue is looked at.
    """

    def __init__(self, key: Callable[[Sequence], Key], max_wait: float, now: Callable[[], float]) -> None:
        super().__init__(key)
        self._max_wait = max_wait
        self._now = now
        self._by_arrival: list[tuple[float, int, Sequence]] = []

    def push(self, seq: Sequence) -> bool:
        insort(self._by_arrival, (seq.arrival_time, seq.row, seq))
        return super().push(seq)

    def oldest(self) -> Sequence | None:
        """The one that arrived first; None if nobody waits."""
        return self._by_arrival[0][2] if self._by_arrival else None

    def peek(self) -> Sequence:
        arrival, _, oldest = self._by_arrival[0]
        return oldest if self._now() - arrival >= self._max_wait else super().peek()

    def pop(self) -> Sequence:
        seq = self.peek()
        self.remove(seq)
        return seq

    def remove(self, seq: Sequence) -> None:
        super().remove(seq)
        del self._by_arrival[bisect_left(self._by_arrival, (seq.arrival_time, seq.row, seq))]


class TenantQueue:
    """One queue a tenant, first come first served; `choose` says whose turn it is, the same as long as nothing changes.

    Preempted sequences go to the front of their tenant's queue.
    """

    def __init__(self, choose: Callable[[list[str]], str]) -> None:
        self._choose = choose
        self._queues: dict[str, deque[Sequence]] = {}  # by tenant, those that began to wait first in front
        self._begun: dict[str, int] = {}
        self._numbers = count()
        self._size = 0

    @property
    def tenants(self) -> dict[str, int]:
        """Tenants with somebody waiting, in the order in which they began to, with the number of that beginning."""
        return {tenant: self._begun[tenant] for tenant in self._queues}

    def _of(self, seq: Sequence) -> deque[Sequence]:
        tenant = seq.tenant or ""
        if tenant not in self._queues:
            self._begun[tenant] = next(self._numbers)
            self._queues[tenant] = deque()
        return self._queues[tenant]

    def push(self, seq: Sequence) -> bool:
        """Add a new arrival; return whether its tenant begins to wait, which may change whose turn it is."""
        queue = self._of(seq)
        queue.append(seq)
        self._size += 1
        return len(queue) == 1

    def push_preempted(self, seq: Sequence) -> None:
        self._of(seq).appendleft(seq)
        self._size += 1

    def restore(self, skipped: list[Sequence]) -> None:
        for seq in reversed(skipped):
            self._queues.setdefault(seq.tenant or "", deque()).appendleft(seq)
        self._size += len(skipped)
        self._queues = dict(sorted(self._queues.items(), key=lambda item: self._begun[item[0]]))

    def peek(self) -> Sequence:
        return self._queues[self._choose(list(self._queues))][0]

    def pop(self) -> Sequence:
        seq = self.peek()
        self.remove(seq)
        return seq

    def remove(self, seq: Sequence) -> None:
        tenant = seq.tenant or ""
        queue = self._queues[tenant]
        queue.remove(seq)
        self._size -= 1
        if not queue:
            del self._queues[tenant]

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Sequence]:
        return (seq for queue in self._queues.values() for seq in queue)
