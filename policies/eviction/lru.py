"""What nobody has held for longest goes first."""

from __future__ import annotations

from dataclasses import dataclass

from sim.kv.content import Piece
from sim.kv.eviction import History, RankedEviction


@dataclass
class Lru(RankedEviction):
    """Least recently used: vLLM V1 (0.33); of what was let go together the end of a prompt before its beginning.

    Ignores: how often content was used, and what computing it again would cost.
    """

    def __post_init__(self) -> None:
        RankedEviction.__init__(self)

    def rank(self, piece: Piece, history: History) -> tuple[float, ...]:
        return ()
