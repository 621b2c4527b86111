"""What a router believes its replicas cache: the prompts that it sent there, least recently sent forgotten first."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from sim.views import PrefixIndex, ReplicaView, RequestView, RouterSignals


class RoutedPrefixes:
    """Prefix ids by replica, at most `capacity` tokens each (None: as many as the replica's KV memory holds).

    A prompt counts from the moment of the decision, before anything is computed; answers and what the engine really
    overwrites are never seen. Of a prompt its end is forgotten first.
    """

    def __init__(self, signals: RouterSignals, capacity: int | None) -> None:
        self._signals = signals
        self._capacity = capacity
        self._index: PrefixIndex = signals.make_index()
        self._recent: dict[int, dict[object, None]] = {}  # ids by replica index, least recently sent first

    def tokens(self, request: RequestView) -> npt.NDArray[np.int64]:
        """Leading prompt tokens that each replica is believed to cache, by replica index."""
        found: npt.NDArray[np.int64] = self._index.leading(self._signals.prefix(request)) * self._signals.block_size
        return found.clip(max=request.num_prompt_tokens)

    def sent(self, request: RequestView, replica: ReplicaView) -> None:
        """The request goes to the replica."""
        ids = self._signals.prefix(request)
        if ids:
            self._remember(ids, replica)

    def _remember(self, ids: Ordered[object], replica: ReplicaView) -> None:
        recent, add, index = self._recent.setdefault(replica.index, {}), self._index.add, replica.index
        for key in reversed(ids):  # so that the beginning is the most recent
            if recent.pop(key, self) is self:
                add(key, index)
            recent[key] = None
        excess = len(recent) - self._num_ids(replica)
        while excess > 0:
            oldest = next(iter(recent))
            del recent[oldest]
            self._index.discard(oldest, index)
            excess -= 1

    def _num_ids(self, replica: ReplicaView) -> int:
        """Ids that fit the capacity."""
        tokens = replica.num_kv_blocks * replica.kv_block_size if self._capacity is None else self._capacity
        return tokens // self._signals.block_size
