"""What a router believes its replicas cache: the prompts that it sent there, least recently sent forgotten first."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Ordered
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
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
        self._trees: dict[int, PromptTree] = {}  # by replica index

    def tokens(self, request: RequestView) -> npt.NDArray[np.int64]:
        """Leading prompt tokens that each replica is believed to cache, by replica index."""
        found: npt.NDArray[np.int64] = self._index.leading_closed(self._signals.prefix(request))
        found *= self._signals.block_size
        return np.minimum(found, request.num_prompt_tokens, out=found)

    def sent(self, request: RequestView, replica: ReplicaView) -> None:
        """The request goes to the replica."""
        ids = self._signals.prefix(request)
        if not ids:
            return
        tree = self._trees.get(replica.index)
        if tree is None:
            tree = self._trees[replica.index] = PromptTree(self._num_ids(replica))
        self._index.add(tree.remember(ids), replica.index)
        self._index.discard(tree.forget(), replica.index)

    def _num_ids(self, replica: ReplicaView) -> int:
        """Ids that fit the capacity."""
        tokens = replica.num_kv_blocks * replica.kv_block_size if self._capacity is None else self._capacity
        return tokens // self._signals.block_size


class ToldPrefixes:
    """Prefix ids by replica as its cache events told; what the router sends teaches it nothing."""

    def __init__(self, signals: RouterSignals) -> None:
        self.tokens = signals.cached_tokens

    def sent(self, request: RequestView, replica: ReplicaView) -> None:
        """The events will tell."""


Source = Literal["approximate", "precise"]
KnownPrefixes = RoutedPrefixes | ToldPrefixes


def known_prefixes(source: Source, signals: RouterSignals, capacity: int | None = None) -> KnownPrefixes:
    """What a router knows of the replicas' caches: by what it sent (approximate), or by their events (precise)."""
    return ToldPrefixes(signals) if source == "precise" else RoutedPrefixes(signals, capacity)


class Stretch:
    """Ids that follow each other in all prompts that have them, after those of `parent`."""

    __slots__ = ("ids", "parent")

    def __init__(self, ids: list[object], parent: Stretch | None) -> None:
        self.ids = ids
        self.parent = parent


class PromptTree:
    """The ids of prompts, as stretches between branches, in order of their latest use; at most `capacity` ids.

    A prompt of hundreds of ids is a handful of stretches, and using it again costs as many operations.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._stretch_of: dict[object, Stretch] = {}
        self._recent: dict[Stretch, None] = {}  # least recently used first: a parent always after its children

    def __contains__(self, key: object) -> bool:
        return key in self._stretch_of

    def __len__(self) -> int:
        """Ids remembered."""
        return len(self._stretch_of)

    def remember(self, ids: Ordered[object]) -> Ordered[object]:
        """A prompt is used; return those of its ids that are new."""
        of = self._stretch_of
        known = bisect_left(ids, True, key=lambda key: key not in of)  # an id is known only with those before it
        stretch = self._ending_with(ids[known - 1]) if known else None
        new = ids[known:]
        if new:
            stretch = Stretch(list(new), stretch)
            of.update(dict.fromkeys(new, stretch))
        while stretch is not None:
            self._recent.pop(stretch, None)
            self._recent[stretch] = None
            stretch = stretch.parent
        return new

    def _ending_with(self, key: object) -> Stretch:
        """The stretch that ends with this id; it is cut off one that goes on."""
        lower = self._stretch_of[key]
        if lower.ids[-1] == key:
            return lower
        cut = lower.ids.index(key) + 1
        upper = Stretch(lower.ids[:cut], lower.parent)
        lower.ids, lower.parent = lower.ids[cut:], upper
        self._stretch_of.update(dict.fromkeys(upper.ids, upper))
        return upper

    def forget(self) -> list[object]:
        """Drop what exceeds the capacity, and return it: of the stretch used least recently first the end."""
        dropped: list[object] = []
        while len(self._stretch_of) > self.capacity:
            oldest = next(iter(self._recent))
            keep = max(0, len(oldest.ids) - (len(self._stretch_of) - self.capacity))
            for key in oldest.ids[keep:]:
                if self._stretch_of.get(key) is oldest:  # else the ids of the trace are no chain
                    del self._stretch_of[key]
                    dropped.append(key)
            del oldest.ids[keep:]
            if not keep:
                del self._recent[oldest]
        return dropped
