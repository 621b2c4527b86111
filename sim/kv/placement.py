"""Where a stretch of slots goes in one address range: buddy system, or first fit."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import Protocol


class Placement(Protocol):
    """Free slots of an address range that starts at 0."""

    def largest(self) -> int:
        """Slots of the longest stretch that could be placed now; 0 if none."""
        ...

    def cost(self, size: int) -> int:
        """Slots that a stretch of `size` takes away, rounding included."""
        ...

    def place(self, size: int) -> int:
        """Start of the place of `size` slots, now taken. The caller has seen that `size` <= `largest()`."""
        ...

    def free(self, start: int, size: int) -> None:
        """Give back what `place(size)` gave."""
        ...


class Buddy:
    """Blocks of powers of two, split and merged with their buddies; always the lowest address of the least size."""

    def __init__(self, num_slots: int) -> None:
        self._free: list[list[int]] = [[] for _ in range(num_slots.bit_length() + 1)]  # sorted starts by order
        start = 0
        for order in range(num_slots.bit_length(), -1, -1):  # the range as aligned blocks, the largest first
            if num_slots >> order & 1:
                self._free[order].append(start)
                start += 1 << order

    def largest(self) -> int:
        return max((1 << order for order, starts in enumerate(self._free) if starts), default=0)

    def cost(self, size: int) -> int:
        return 1 << order_of(size)

    def place(self, size: int) -> int:
        wanted = order_of(size)
        order = next(order for order in range(wanted, len(self._free)) if self._free[order])
        start = self._free[order].pop(0)
        while order > wanted:
            order -= 1
            insort(self._free[order], start + (1 << order))
        return start

    def free(self, start: int, size: int) -> None:
        order = order_of(size)
        while self._take(order, start ^ (1 << order)):
            start &= ~(1 << order)
            order += 1
        insort(self._free[order], start)

    def _take(self, order: int, start: int) -> bool:
        """Remove a free block if it is there."""
        starts = self._free[order]
        at = bisect_left(starts, start)
        if at == len(starts) or starts[at] != start:
            return False
        del starts[at]
        return True


def order_of(size: int) -> int:
    """The least order whose blocks hold `size` slots."""
    return (size - 1).bit_length()


class FirstFit:
    """Holes in order of address; the first that is long enough."""

    def __init__(self, num_slots: int) -> None:
        self._starts = [0] if num_slots else []
        self._ends = [num_slots] if num_slots else []

    def largest(self) -> int:
        return max((end - start for start, end in zip(self._starts, self._ends, strict=True)), default=0)

    def cost(self, size: int) -> int:
        return size

    def place(self, size: int) -> int:
        at = next(i for i, start in enumerate(self._starts) if self._ends[i] - start >= size)
        start = self._starts[at]
        if start + size == self._ends[at]:
            del self._starts[at], self._ends[at]
        else:
            self._starts[at] += size
        return start

    def free(self, start: int, size: int) -> None:
        end, at = start + size, bisect_right(self._starts, start)
        if at < len(self._starts) and self._starts[at] == end:
            end = self._ends[at]
            del self._starts[at], self._ends[at]
        if at and self._ends[at - 1] == start:
            self._ends[at - 1] = end
        else:
            self._starts.insert(at, start)
            self._ends.insert(at, end)
