"""Paged KV memory in which a policy says which idle cached content is overwritten next, instead of the engine's LRU.

The unit of a decision is a piece: blocks of one content with one history. A piece is overwritten block by block from
its end, since a prefix is of use only up to its first missing block. Blank blocks always go first, as in the engine.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Protocol

from sim.kv.content import Piece, Run
from sim.kv.paged import Match, PagedKV

if TYPE_CHECKING:
    from sim.request import Sequence

NEVER = float("inf")
Entry = tuple[tuple[float, ...], int, Piece]  # (rank, version, piece)
NextUse = Callable[
    [object, int], float
]  # (content key, row) -> the first row after `row` that has it; infinite if none


class EvictionPolicy(Protocol):
    """Knows the idle pieces and picks the next one to be overwritten. One instance a replica."""

    def begin(self, num_blocks: int) -> None:
        """The memory has so many usable blocks. Called once, first."""
        ...

    def created(self, piece: Piece) -> None:
        """New content is in memory, held by somebody."""
        ...

    def grown(self, piece: Piece, low: int) -> None:
        """A piece that is held got longer: blocks [low, piece.high) are new."""
        ...

    def used(self, piece: Piece) -> None:
        """A look-up hit the piece; it is held now."""
        ...

    def idle(self, piece: Piece) -> None:
        """Nobody holds the piece any more."""
        ...

    def held(self, piece: Piece) -> None:
        """The piece is idle no more: held again, or gone."""
        ...

    def split(self, lower: Piece, upper: Piece) -> None:
        """`upper` was cut off `lower` and shares its history."""
        ...

    def victim(self) -> Piece:
        """The idle piece that loses blocks next. There is one."""
        ...

    def overwritten(self, piece: Piece, low: int, high: int) -> None:
        """Blocks [low, high) of the piece are gone."""
        ...

    def looked_up(self, row: int) -> None:
        """The request of this row has been admitted."""
        ...


class EvictingKV(PagedKV):
    """Paged memory with prefix caching and an eviction policy."""

    keeps_beginnings = False

    def __init__(self, num_blocks: int, block_size: int, policy: EvictionPolicy) -> None:
        super().__init__(num_blocks, block_size, prefix_caching=True)
        self.policy = policy
        policy.begin(self.num_usable)

    def place(self, seq: Sequence, num_blocks: int) -> None:
        self.policy.looked_up(seq.row)
        super().place(seq, num_blocks)

    def hold(self, seq: Sequence, match: Match) -> None:
        before = len(seq.held)
        super().hold(seq, match)
        for piece, _, _ in seq.held[before:]:
            self.policy.used(piece)

    def _add(self, seq: Sequence, run: Run, low: int, high: int) -> None:
        count = len(run.pieces)
        super()._add(seq, run, low, high)
        if len(run.pieces) > count:
            self.policy.created(run.pieces[-1])
        else:
            self.policy.grown(seq.held[-1][0], low)

    def _split(self, piece: Piece, at: int) -> Piece:
        upper = super()._split(piece, at)
        self.policy.split(piece, upper)
        return upper

    def _link(self, piece: Piece, before: Piece) -> None:
        super()._link(piece, before)
        self.policy.idle(piece)

    def _unlink(self, piece: Piece) -> None:
        super()._unlink(piece)
        self.policy.held(piece)

    def _next_victim(self) -> Piece:
        return self.policy.victim()

    def _overwritten(self, piece: Piece, low: int, high: int) -> None:
        super()._overwritten(piece, low, high)
        self.policy.overwritten(piece, low, high)


class History:
    """What a ranking may depend on."""

    __slots__ = ("created", "idle_since", "num_uses", "version")

    def __init__(self, created: int) -> None:
        self.created = created  # counts pieces
        self.num_uses = 1  # by the request that made it, and by look-ups
        self.idle_since = 0  # counts pieces that became idle
        self.version = -1  # of its entry in the heap; -1 while it is not idle


class RankedEviction:
    """The idle piece of the least rank goes first. Subclasses say what the rank is."""

    def __init__(self) -> None:
        self._histories: dict[Piece, History] = {}
        self._heap: list[Entry] = []
        self._clock = 0

    def rank(self, piece: Piece, history: History) -> tuple[float, ...]:
        """Rank of an idle piece, fixed while it is idle; ties: idle for longest."""
        raise NotImplementedError

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def history(self, piece: Piece) -> History:
        """That of a piece; pieces that were never announced (content of sequences that ended) begin now."""
        found = self._histories.get(piece)
        if found is None:
            found = self._histories[piece] = History(self._tick())
        return found

    def begin(self, num_blocks: int) -> None:
        pass

    def created(self, piece: Piece) -> None:
        self._histories[piece] = History(self._tick())

    def grown(self, piece: Piece, low: int) -> None:
        pass

    def used(self, piece: Piece) -> None:
        self.history(piece).num_uses += 1

    def idle(self, piece: Piece) -> None:
        history = self.history(piece)
        history.idle_since = self._tick()
        self._push(piece, history)

    def _push(self, piece: Piece, history: History) -> None:
        history.version = self._tick()
        rank = (*self.rank(piece, history), history.idle_since, -piece.low)  # of what was cut apart, the end goes first
        heappush(self.heap_of(history), (rank, history.version, piece))

    def heap_of(self, history: History) -> list[Entry]:
        """The heap in which an idle piece waits."""
        return self._heap

    def held(self, piece: Piece) -> None:
        self.history(piece).version = -1

    def split(self, lower: Piece, upper: Piece) -> None:
        old, new = self.history(lower), self.history(upper)
        new.created, new.num_uses, new.idle_since = old.created, old.num_uses, old.idle_since
        if new.version >= 0:
            self._push(upper, new)

    def victim(self) -> Piece:
        piece = self.first_of(self._heap)
        assert piece is not None
        return piece

    def first_of(self, heap: list[Entry]) -> Piece | None:
        """The idle piece of the least rank in a heap; None if it has none."""
        while heap:
            _, version, piece = heap[0]
            if self.is_current(piece, version):
                return piece
            heappop(heap)
        return None

    def is_current(self, piece: Piece, version: int) -> bool:
        """Whether an entry still stands for an idle piece."""
        history = self._histories.get(piece)
        return history is not None and history.version == version

    def overwritten(self, piece: Piece, low: int, high: int) -> None:
        if low == piece.low:
            self._histories.pop(piece, None)

    def looked_up(self, row: int) -> None:
        pass


def next_uses(content_spans: Callable[[int], list[tuple[object, int, int]]], prompts: Iterable[int]) -> NextUse:
    """When each content of a workload is looked up next, for oracles. `prompts`: prompt tokens by row.

    Rows stand for time: exact where requests are admitted in the order of their rows on one replica.
    """
    rows: dict[object, array[int]] = {}
    for row, num_prompt_tokens in enumerate(prompts):
        for key, start, _ in content_spans(row):
            if start < num_prompt_tokens:
                rows.setdefault(key, array("q")).append(row)

    def next_use(key: object, row: int) -> float:
        uses = rows.get(key)
        if uses is None:
            return NEVER
        at = bisect_right(uses, row)
        return uses[at] if at < len(uses) else NEVER

    return next_use
