"""What is needed latest, or never again, goes first: an oracle."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from sim.kv.content import Piece, Run
from sim.kv.eviction import NEVER, History, NextUse, RankedEviction


@dataclass
class Belady(RankedEviction):
    """Belady's rule (1966): farthest next use first. Knows all requests to come, in the order of their rows.

    An upper bound to hold others against, not an engine: exact for requests admitted in the order of rows on one
    replica; with several replicas the uses of all count. The rule is optimal for equal blocks that are used one by
    one; for prefixes it is very good. Ignores: which replica a request will be sent to.
    """

    def __post_init__(self) -> None:
        RankedEviction.__init__(self)
        self._next_use: NextUse = lambda key, row: NEVER
        self._row = -1  # latest row admitted
        self._soon: list[
            tuple[float, int, Piece]
        ] = []  # (next use, version, piece): to be ranked anew when it has passed

    def foresee(self, next_use: NextUse) -> None:
        """Learn what is to come."""
        self._next_use = next_use

    def looked_up(self, row: int) -> None:
        self._row = max(self._row, row)

    def rank(self, piece: Piece, history: History) -> tuple[float, ...]:
        run: Run | None = piece.run
        use = NEVER if run is None or run.key is None else self._next_use(run.key, self._row)
        if use < NEVER:
            heappush(self._soon, (use, history.version, piece))
        return (-use,)

    def victim(self) -> Piece:
        while self._soon and self._soon[0][0] <= self._row:
            _, version, piece = heappop(self._soon)
            if self.is_current(piece, version):
                self._push(piece, self.history(piece))
        return super().victim()
