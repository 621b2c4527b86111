"""What was hit least often goes first; among equals what nobody has held for longest."""

from __future__ import annotations

from dataclasses import dataclass

from sim.kv.content import Piece
from sim.kv.eviction import History, RankedEviction


@dataclass
class Lfu(RankedEviction):
    """Least frequently used: counts hits since the content entered the memory, and forgets them with it.

    Source: textbook; SGLang (0.5.23) offers it for its tree. Ignores: age; what was popular once stays.
    """

    def __post_init__(self) -> None:
        RankedEviction.__init__(self)

    def rank(self, piece: Piece, history: History) -> tuple[float, ...]:
        return (history.num_uses,)
