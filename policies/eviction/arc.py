"""Balances what was used once lately against what was used more often, by what it misses."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from sim.kv.content import Piece, Run
from sim.kv.eviction import Entry, History, RankedEviction


class Ghosts:
    """Blocks that were overwritten lately: what they held is remembered, not kept."""

    def __init__(self) -> None:
        self.num_blocks = 0
        self._ranges: dict[Run, list[tuple[int, int]]] = {}
        self._order: deque[tuple[Run, tuple[int, int]]] = deque()

    def add(self, run: Run, low: int, high: int) -> None:
        """Remember blocks [low, high) of a run."""
        self._ranges.setdefault(run, []).append((low, high))
        self._order.append((run, (low, high)))
        self.num_blocks += high - low

    def take(self, run: Run, low: int, high: int) -> int:
        """Forget what overlaps [low, high) of the run; how many blocks that were."""
        ranges = self._ranges.get(run)
        if not ranges:
            return 0
        hit = [each for each in ranges if each[0] < high and low < each[1]]
        for each in hit:
            self._forget(run, each)
        return sum(end - start for start, end in hit)

    def trim(self, num_blocks: int) -> None:
        """Forget the oldest until at most so many blocks are left."""
        while self.num_blocks > num_blocks and self._order:
            run, each = self._order.popleft()
            if each in self._ranges.get(run, ()):
                self._forget(run, each)

    def _forget(self, run: Run, each: tuple[int, int]) -> None:
        self._ranges[run].remove(each)
        self.num_blocks -= each[1] - each[0]
        if not self._ranges[run]:
            del self._ranges[run]


@dataclass
class Arc(RankedEviction):
    """Adaptive replacement cache (Megiddo and Modha, FAST 2003), blocks as pages, idle blocks as the candidates.

    Two LRU lists: content used once and content used more often. Blocks that were overwritten leave ghosts; computing
    the content of a ghost again shifts the target share towards the list it fell from. Differs: blocks that are held
    cannot be overwritten and count for neither list. Ignores: how long a prefix is.
    """

    def __post_init__(self) -> None:
        RankedEviction.__init__(self)
        self.target = 0.0  # blocks that the list of once-used content should have
        self._capacity = 0
        self._heaps: tuple[list[Entry], list[Entry]] = ([], [])
        self._ghosts = Ghosts(), Ghosts()
        self._num_idle = [0, 0]  # blocks by list
        self._counted: dict[Piece, tuple[int, int]] = {}  # (list, blocks) of the idle pieces

    def begin(self, num_blocks: int) -> None:
        self._capacity = num_blocks

    def rank(self, piece: Piece, history: History) -> tuple[float, ...]:
        return ()

    def heap_of(self, history: History) -> list[Entry]:
        return self._heaps[history.num_uses > 1]

    def created(self, piece: Piece) -> None:
        super().created(piece)
        self._miss(piece, piece.low)

    def grown(self, piece: Piece, low: int) -> None:
        self._miss(piece, low)

    def _miss(self, piece: Piece, low: int) -> None:
        """Blocks [low, piece.high) were computed: were they here lately?"""
        assert piece.run is not None
        once, often = self._ghosts
        sizes = max(once.num_blocks, 1), max(often.num_blocks, 1)
        fell_once, fell_often = (ghosts.take(piece.run, low, piece.high) for ghosts in self._ghosts)
        self.target += fell_once * max(1.0, sizes[1] / sizes[0]) - fell_often * max(1.0, sizes[0] / sizes[1])
        self.target = min(max(self.target, 0.0), float(self._capacity))
        if fell_once or fell_often:
            self.used(piece)

    def idle(self, piece: Piece) -> None:
        super().idle(piece)
        self._count(piece, int(self.history(piece).num_uses > 1), len(piece))

    def held(self, piece: Piece) -> None:
        super().held(piece)
        self._count(piece, 0, 0)

    def split(self, lower: Piece, upper: Piece) -> None:
        super().split(lower, upper)
        if lower in self._counted:
            which = self._counted[lower][0]
            self._count(lower, which, len(lower))
            self._count(upper, which, len(upper))

    def _count(self, piece: Piece, which: int, num_blocks: int) -> None:
        before, counted = self._counted.pop(piece, (0, 0))
        self._num_idle[before] -= counted
        if num_blocks:
            self._num_idle[which] += num_blocks
            self._counted[piece] = which, num_blocks

    def victim(self) -> Piece:
        once, often = (self.first_of(heap) for heap in self._heaps)
        chosen = once if often is None or (once is not None and self._num_idle[0] > self.target) else often
        assert chosen is not None
        return chosen

    def overwritten(self, piece: Piece, low: int, high: int) -> None:
        which = int(self.history(piece).num_uses > 1)
        if low > piece.low:
            self._count(piece, which, low - piece.low)
        if piece.run is not None:
            self._ghosts[which].add(piece.run, low, high)
            self._ghosts[0].trim(max(0, self._capacity - self._num_idle[0]))
            self._ghosts[1].trim(max(0, 2 * self._capacity - sum(self._num_idle) - self._ghosts[0].num_blocks))
        super().overwritten(piece, low, high)
