"""What the blocks of a sequence hold, as runs of blocks instead of single blocks.

A *run* is a stretch of blocks with one content key: the blocks of one hash id of a trace, or everything that is private
to one sequence. A *piece* is a set of consecutive blocks of a run that lies in memory and shares one reference count. A
prompt of thousands of blocks is a few dozen runs, so matching, sharing and freeing it costs a few dozen operations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence


class Run:
    """One content: its pieces in the order in which they were registered (a look-up takes the first that covers a
    block).
    """

    __slots__ = ("key", "num_blocks", "pieces")

    def __init__(self, key: object = None) -> None:
        self.key = key  # what names the content
        self.num_blocks = 0  # of the whole content, as far as known
        self.pieces: list[Piece] = []

    @property
    def is_complete(self) -> bool:
        """Whether all of the content is in memory."""
        pieces = self.pieces
        if len(pieces) < 2:  # nearly always, and asked for every content that changes
            return bool(pieces) and pieces[0].low == 0 and pieces[0].high >= self.num_blocks > 0
        ends = [end for _, _, end in covering(self, 0, self.num_blocks)]
        return bool(ends) and ends[-1] >= self.num_blocks


class PrivateRun(Run):
    """What only one sequence can hit: the tokens that it generated, when it comes back from a preemption."""

    __slots__ = ()


class Piece:
    """Blocks [low, high) of a run (counted from the run's first block), all in memory, all with `references` holders.

    With 0 references the piece is a link of the free list, where its blocks are taken from `high` downwards.
    `sibling` is the piece that a split cut off its upper end: holders recorded before the split walk on to it.
    """

    __slots__ = ("high", "low", "next", "previous", "references", "run", "sibling")

    def __init__(self, run: Run | None, low: int, high: int, references: int) -> None:
        self.run = run
        self.low = low
        self.high = high
        self.references = references
        self.sibling: Piece | None = None
        self.previous: Piece  # set while in the free list; a link to itself would keep it alive without the collector
        self.next: Piece

    def __len__(self) -> int:
        return self.high - self.low


class Content:
    """The runs of one sequence on one replica: shared runs first, then one private run for all that follows.

    A block belongs to the run that holds its last token.

    `spans` lists (run, first block, number of blocks) in block order, without gaps from block 0; `num_shared_blocks` is
    where the private run begins. `reaches_outputs` is true where shared runs cover generated tokens.
    """

    __slots__ = ("cursor", "num_registered", "num_shared_blocks", "private", "reaches_outputs", "spans")

    def __init__(self, spans: Sequence[tuple[Run, int, int]] = (), reaches_outputs: bool = False) -> None:
        self.spans = spans
        self.num_shared_blocks = spans[-1][1] + spans[-1][2] if spans else 0
        self.private: Run | None = None  # made when the sequence is first preempted: nobody else can hit it
        self.cursor = 0  # span in which the next block to register lies
        self.num_registered = 0  # shared blocks registered or hit so far
        self.reaches_outputs = reaches_outputs


def covering(run: Run, start: int, stop: int) -> Iterator[tuple[Piece, int, int]]:
    """Pieces that cover blocks [start, stop) of the run from `start` on, without gap, first registered first."""
    while start < stop:
        found, limit = None, stop
        for piece in run.pieces:
            if piece.low <= start < piece.high:
                found = piece
                break
            if start < piece.low < limit:
                limit = piece.low  # from there on an earlier registered piece comes first
        if found is None:
            return
        end = min(found.high, limit)
        yield found, start, end
        start = end
