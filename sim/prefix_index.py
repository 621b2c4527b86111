"""Which replicas hold which prefix: an integer with one bit a replica for every id of a prefix chain.

A prompt is a chain of ids (one per block of the workload, each standing for everything before it). How far each of
hundreds of replicas holds a chain is then one dictionary look-up and one `&` an id, however many replicas there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from sim.units import IntArray

FEW = 8  # bits up to which a loop is faster than unpacking all of them


class PrefixIndex:
    """Ids and their holders, for `num_replicas` replicas."""

    def __init__(self, num_replicas: int) -> None:
        self.num_replicas = num_replicas
        self._num_bytes = -(-num_replicas // 8)
        self._holders: dict[object, int] = {}

    def __len__(self) -> int:
        """Ids that anybody holds."""
        return len(self._holders)

    def add(self, keys: Iterable[object], replica: int) -> None:
        """The replica holds these ids."""
        bit, holders = 1 << replica, self._holders
        for key in keys:
            holders[key] = holders.get(key, 0) | bit

    def discard(self, keys: Iterable[object], replica: int) -> None:
        """The replica does not hold these ids (any more)."""
        others, holders = ~(1 << replica), self._holders
        for key in keys:
            left = holders.get(key, 0) & others
            if left:
                holders[key] = left
            else:
                holders.pop(key, None)

    def holds(self, key: object, replica: int) -> bool:
        """Whether the replica holds this id."""
        return bool(self._holders.get(key, 0) >> replica & 1)

    def leading(self, keys: Sequence[object]) -> IntArray:
        """How many ids each replica holds from the first one on without a gap; shape (num_replicas,)."""
        lengths = np.zeros(self.num_replicas, dtype=np.int64)
        holders, length = -1, 0  # all
        for found, stretch in groupby(map(self._holders.get, keys)):
            still = holders & (found or 0)
            if still != holders:
                if length:
                    self._assign(lengths, holders & ~still, length)
                if not still:
                    return lengths
                holders = still
            length += len(list(stretch))
        if length:
            self._assign(lengths, holders, length)
        return lengths

    def leading_closed(self, keys: Sequence[object]) -> IntArray:
        """The same, where whoever holds an id holds those before it: equal ends of a stretch mean an equal stretch."""
        lengths = np.zeros(self.num_replicas, dtype=np.int64)
        find, last = self._holders.get, len(keys) - 1
        holders, position = find(keys[0], 0) if keys else 0, 0
        while holders:
            low, high, step = position, last + 1, 1  # held at low; at high not by all of them any more
            while low + step < high:
                if find(keys[low + step], 0) & holders != holders:
                    high = low + step
                    break
                low, step = low + step, 2 * step
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if find(keys[middle], 0) & holders == holders else (low, middle)
            still = holders & find(keys[high], 0) if high <= last else 0
            self._assign(lengths, holders & ~still, high)
            holders, position = still, high
        return lengths

    def _assign(self, lengths: IntArray, replicas: int, length: int) -> None:
        """Write `length` for the replicas whose bits are set."""
        if replicas.bit_count() > FEW:
            packed = np.frombuffer(replicas.to_bytes(self._num_bytes, "little"), dtype=np.uint8)
            bits = np.unpackbits(packed, bitorder="little", count=self.num_replicas)
            lengths[bits.view(np.bool_)] = length
            return
        while replicas:
            low = replicas & -replicas
            lengths[low.bit_length() - 1] = length
            replicas ^= low
