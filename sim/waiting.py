"""Waiting queues of a replica: arrival order, or sorted by a scheduler's key."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator
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
