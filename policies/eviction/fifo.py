"""What was computed first goes first, however often it was hit."""

from __future__ import annotations

from dataclasses import dataclass

from sim.kv.content import Piece
from sim.kv.eviction import History, RankedEviction


@dataclass
class Fifo(RankedEviction):
    """First in, first out, by the moment at which content entered the memory.

    Source: textbook baseline. Ignores: every use after the first.
    """

    def __post_init__(self) -> None:
        RankedEviction.__init__(self)

    def rank(self, piece: Piece, history: History) -> tuple[float, ...]:
        return (history.created,)
