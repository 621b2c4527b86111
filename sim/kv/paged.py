"""Paged KV memory with the hash-chained prefix cache and the free-list order of vLLM V1 (0.33).

Which physical block a sequence holds never matters; what matters is which *content* the next block taken from the free
list destroys. So blocks are counted, and the free list is: blank blocks at the head (never hashed, or freed unhashed),
then pieces of cached content, least recently freed first. Blank blocks always form the head: unhashed blocks are put
back in front, hashed ones behind, and taking starts in front.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from sim.errors import InputError
from sim.kv.content import Content, Piece, PrivateRun, Run, covering

if TYPE_CHECKING:
    from sim.request import Sequence

Held = tuple[Piece, int, int]  # (piece when taken, low, high): walk the siblings up to `high`


class Match(NamedTuple):
    """Outcome of a prefix look-up; nothing is changed by it."""

    num_tokens: int  # cached tokens, a multiple of the block size
    num_blocks: int
    num_idle: int  # of those blocks, the ones nobody references: using them takes them off the free list
    parts: list[tuple[Piece, int, int]]


NO_MATCH = Match(0, 0, 0, [])


def walk(piece: Piece, high: int) -> Iterator[Piece]:
    """The pieces that now make up blocks [piece.low, high)."""
    current: Piece | None = piece
    while current is not None and current.low < high:
        yield current
        current = current.sibling


class PagedKV:
    """Block memory of one replica: `num_blocks` of `block_size` tokens, one of them reserved as the null block.

    Free means referenced by nobody, cached contents included. `prefix_caching=False` turns all content off.
    """

    reserves = False  # whether every sequence gets all its memory when it enters
    shifts = False  # whether a sequence that fills its memory drops old tokens and goes on
    tells_changes = True  # whether `changes` knows what is cached
    keeps_beginnings = True  # whether a content is cached only with all that comes before it

    def __init__(self, num_blocks: int, block_size: int, prefix_caching: bool) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.num_usable = num_blocks - 1
        self.num_free = self.num_usable
        self.num_idle = 0  # free blocks that hold cached content
        self.num_evicted = 0
        self.num_evicted_dead = 0  # of these, what nobody could have hit any more
        self.num_evicted_preempted = 0  # and what a preempted sequence could have hit when it comes back
        self.min_free = self.num_usable
        self.longest_sequence = 2**62  # tokens at which a sequence is stopped for want of room of its own
        self.runs: dict[object, Run] = {}
        self.growing: dict[int, Sequence] = {}  # sequences whose generated tokens others can hit, by order
        self.num_shared_extra = 0  # references beyond the first, summed over blocks
        self._touched: dict[Run, None] | None = None  # runs that gained or lost blocks; None: nobody wants to know
        self._free = Piece(None, 0, 0, 0)  # sentinel: next is the head of the free list, previous its tail
        self._free.previous = self._free.next = self._free

    # --- content ------------------------------------------------------------------------------------------------------

    def content(self, spans: Iterable[tuple[object, int, int]], num_prompt_tokens: int) -> Content:
        """Content of a sequence from (key, first token, end token) spans that follow each other from token 0."""
        resolved, end_token = [], 0
        for key, start, end_token in spans:
            first = start // self.block_size  # a block belongs to the span that holds its last token
            count = end_token // self.block_size - first
            if count > 0:
                run = self._run(key)
                run.num_blocks = count
                resolved.append((run, first, count))
        return Content(resolved, end_token > num_prompt_tokens)

    def _run(self, key: object) -> Run:
        run = self.runs.get(key)
        if run is None:
            run = self.runs[key] = Run(key)
        return run

    def match(self, content: Content | None, max_tokens: int) -> Match:
        """Longest cached prefix of at most `max_tokens` tokens, whole blocks only."""
        if content is None:
            return NO_MATCH
        limit = max_tokens // self.block_size
        blocks = idle = 0
        parts: list[tuple[Piece, int, int]] = []
        for run, first, count in self._lookup_spans(content, limit):
            want = min(count, limit - first)
            pieces = run.pieces
            if len(pieces) == 1 and pieces[0].low == 0:
                piece = pieces[0]
                got = min(want, piece.high)
                parts.append((piece, 0, got))
                idle += got if piece.references == 0 else 0
            else:
                got = 0
                for part in covering(run, 0, want):
                    parts.append(part)
                    got = part[2]
                    idle += got - part[1] if part[0].references == 0 else 0
            blocks += got
            if got < want:
                break
        return Match(blocks * self.block_size, blocks, idle, parts) if blocks else NO_MATCH

    def _lookup_spans(self, content: Content, limit: int) -> Iterator[tuple[Run, int, int]]:
        for span in content.spans:
            if span[1] >= limit:
                return
            yield span
        if content.private is not None and content.num_shared_blocks < limit:
            yield content.private, content.num_shared_blocks, limit - content.num_shared_blocks

    def could_grow(self, content: Content | None, match: Match) -> bool:
        """Whether the running decodes may lengthen this match: they are about to register the run where it ends."""
        if content is None or not self.growing:
            return False
        run = next((run for run, first, count in content.spans if first <= match.num_blocks < first + count), None)
        if run is None:
            return False
        others = (seq.content for seq in self.growing.values() if seq.content is not None)
        return any(span[0] is run for other in others for span in other.spans[other.cursor :])

    # --- what others are told ----------------------------------------------------------------------------------------

    def watch(self) -> None:
        """From now on `changes` has something to tell, first of all what is cached already."""
        self._touched = dict.fromkeys(self.runs.values())

    def changes(self) -> list[tuple[object, bool]]:
        """(content key, whether all its blocks are in memory) of the contents that changed since the last call."""
        if not self._touched:
            return []
        found = [(run.key, run.is_complete) for run in self._touched if run.key is not None]
        self._touched = {}
        return found

    # --- taking -------------------------------------------------------------------------------------------------------

    def fits(self, num_blocks: int) -> bool:
        """Whether so many blocks could be taken now."""
        return num_blocks <= self.num_free

    def place(self, seq: Sequence, num_blocks: int) -> None:
        """Take the blocks with which a sequence enters (beyond those it shares)."""
        self.take(num_blocks)

    def take(self, num_blocks: int) -> None:
        """Take blocks from the head of the free list; cached content found there is lost."""
        blank = self.num_free - self.num_idle
        self.num_free -= num_blocks
        if self.num_free < self.min_free:
            self.min_free = self.num_free
        if num_blocks > blank:
            self._evict(num_blocks - blank)

    def _evict(self, num_blocks: int) -> None:
        self.num_idle -= num_blocks
        self.num_evicted += num_blocks
        while num_blocks:
            piece = self._next_victim()
            size = piece.high - piece.low
            if size > num_blocks:
                piece.high -= num_blocks
                self._overwritten(piece, piece.high, piece.high + num_blocks)
                return
            num_blocks -= size
            self._unlink(piece)
            if piece.run is not None:
                piece.run.pieces.remove(piece)
            self._overwritten(piece, piece.low, piece.high)

    def _next_victim(self) -> Piece:
        """The idle piece that is overwritten next: the one that has been idle for longest."""
        return self._free.next

    def _overwritten(self, piece: Piece, low: int, high: int) -> None:
        """Blocks [low, high) of an idle piece are gone: count what that means."""
        if self._touched is not None and piece.run is not None:
            self._touched[piece.run] = None
        if piece.run is None:
            self.num_evicted_dead += high - low
        elif isinstance(piece.run, PrivateRun):
            self.num_evicted_preempted += high - low

    def hold(self, seq: Sequence, match: Match) -> None:
        """Give the sequence references to matched blocks."""
        for piece, low, high in reversed(match.parts):  # from the end: a split leaves lower parts where they were
            part = self._cut(piece, low, high)
            if part.references == 0:
                self._unlink(part)
                self.num_free -= high - low
                self.num_idle -= high - low
            else:
                self.num_shared_extra += high - low
            part.references += 1
            seq.held.append((part, low, high))
        seq.held.reverse()
        if self.num_free < self.min_free:
            self.min_free = self.num_free
        if seq.content is not None:
            seq.content.num_registered = min(match.num_blocks, seq.content.num_shared_blocks)
            seq.content.cursor = 0

    def _cut(self, piece: Piece, low: int, high: int) -> Piece:
        """Split `piece` so that [low, high) is a piece of its own; return it."""
        if piece.low < low:
            piece = self._split(piece, low)
        if high < piece.high:
            self._split(piece, high)
        return piece

    def _split(self, piece: Piece, at: int) -> Piece:
        """Cut [at, high) off the upper end of `piece`; the new piece keeps its place in the free list and in
        the run.
        """
        upper = Piece(piece.run, at, piece.high, piece.references)
        piece.high = at
        if piece.references:
            upper.sibling, piece.sibling = piece.sibling, upper
        if piece.run is not None:
            piece.run.pieces.insert(piece.run.pieces.index(piece) + 1, upper)
        if piece.references == 0:
            self._link(upper, before=piece)  # taken from the top: the upper part goes first
        return upper

    def reservation(self, seq: Sequence, max_model_len: int) -> int:
        """Tokens of memory that the sequence gets when it enters, however few it needs then."""
        return 0

    def never_fits(self, seq: Sequence, max_model_len: int) -> str | None:
        """Why the sequence could not enter even an empty memory; None if it could."""
        return None

    def tokens_until_shift(self, num_computed: int) -> int:
        """Where `shifts`: decode steps that a sequence of so many computed tokens can still make."""
        raise NotImplementedError

    def shift(self, seq: Sequence) -> int:
        """Where `shifts`: drop old tokens of a sequence; how many."""
        raise NotImplementedError

    def account(self, now: float, num_wanted: int = 0) -> None:
        """Where `reserves`: called before anything changes, and when a request of `num_wanted` blocks is refused."""

    def finish_pass(self) -> None:
        """The scheduler has decided a step."""

    def ordered(self, waiting: list[Sequence], policy: str) -> list[Sequence]:
        """Waiting sequences in a cache-aware order; block hashes know none but the longest cached prefix first."""
        if policy != "lpm":
            raise InputError(f"queue_policy '{policy}' needs a prefix tree: kv_cache: {{allocator: radix}}")
        return sorted(waiting, key=lambda seq: -self.match(seq.content, seq.num_known - 1).num_tokens)

    def slot_of(self, seq: Sequence) -> int:
        """Rank of a running sequence among running prefills, for allocators whose places are numbered."""
        return seq.order

    def register(self, seq: Sequence, num_tokens: int) -> None:
        """Make the shared blocks filled by the first `num_tokens` tokens visible to look-ups."""
        content = seq.content
        if content is None or not content.spans:
            return
        stop = min(num_tokens // self.block_size, content.num_shared_blocks)
        while content.num_registered < stop:
            run, first, count = content.spans[content.cursor]
            end = min(first + count, stop)
            if end > content.num_registered:
                self._add(seq, run, content.num_registered - first, end - first)
                content.num_registered = end
            if end == first + count:
                content.cursor += 1

    def _add(self, seq: Sequence, run: Run, low: int, high: int) -> None:
        if self._touched is not None:
            self._touched[run] = None
        if seq.held:
            piece, start, stop = seq.held[-1]
            alone = piece.run is run and stop == low == piece.high and piece.references == 1 and piece.sibling is None
            # An older copy of these blocks must stay first: then the new ones are a piece of their own, behind it.
            if alone and not any(low < other.high and other.low < high for other in run.pieces):
                piece.high = high
                seq.held[-1] = (piece, start, high)
                return
        piece = Piece(run, low, high, 1)
        run.pieces.append(piece)
        seq.held.append((piece, low, high))

    # --- giving back --------------------------------------------------------------------------------------------------

    def release(self, seq: Sequence, num_held: int, num_registered_tokens: int, ended: bool) -> None:
        """Drop all `num_held` blocks of a sequence; blocks filled by its first `num_registered_tokens` tokens stay
        cached.

        Blocks go last to first: unhashed ones to the head of the free list, hashed ones to its tail. An ended sequence
        cannot come back to its private content, which then is only something to be overwritten.
        """
        if not self.prefix_caching:
            self.num_free += num_held
            return
        content = seq.content
        assert content is not None
        self.register(seq, num_registered_tokens)
        num_hashed = num_registered_tokens // self.block_size
        private = num_hashed - max(content.num_shared_blocks, sum(high - low for _, low, high in seq.held))
        if private > 0:
            self._add_private(seq, content, num_hashed, private, ended)
        freed = 0
        for piece, low, high in reversed(seq.held):
            freed += self._drop(piece, high)
            num_held -= high - low
        self.num_free += num_held + freed
        self.num_idle += freed
        seq.held = []
        content.num_registered = content.cursor = 0

    def _add_private(self, seq: Sequence, content: Content, num_hashed: int, count: int, ended: bool) -> None:
        stop = num_hashed - content.num_shared_blocks
        if ended:
            seq.held.append((Piece(None, stop - count, stop, 1), stop - count, stop))
            return
        if content.private is None:
            content.private = PrivateRun()
        piece = Piece(content.private, stop - count, stop, 1)
        content.private.pieces.append(piece)
        seq.held.append((piece, piece.low, stop))

    def _drop(self, piece: Piece, high: int) -> int:
        """Take one reference off [piece.low, high), last block first; return how many blocks became idle."""
        pieces = [piece] if piece.sibling is None or piece.high >= high else list(walk(piece, high))
        freed = 0
        for part in reversed(pieces):
            part.references -= 1
            if part.references == 0:
                part.sibling = None
                self._link(part, before=self._free)
                freed += part.high - part.low
            else:
                self.num_shared_extra -= part.high - part.low
        return freed

    # --- the free list ------------------------------------------------------------------------------------------------

    def _link(self, piece: Piece, before: Piece) -> None:
        piece.previous, piece.next = before.previous, before
        before.previous.next = piece
        before.previous = piece

    def _unlink(self, piece: Piece) -> None:
        piece.previous.next, piece.next.previous = piece.next, piece.previous
        del piece.previous, piece.next

    def insert_idle(self, key: object, low: int, high: int) -> None:
        """Let blank blocks hold blocks [low, high) of a content, the last to be overwritten (a warm start)."""
        assert high - low <= self.num_free - self.num_idle
        piece = Piece(self._run(key), low, high, 0)
        self._run(key).num_blocks = max(self._run(key).num_blocks, high)
        self._run(key).pieces.append(piece)
        self._link(piece, before=self._free)
        self.num_idle += high - low

    def idle_pieces(self) -> Iterator[Piece]:
        """Cached pieces of the free list, head first."""
        piece = self._free.next
        while piece is not self._free:
            yield piece
            piece = piece.next

    def check_integrity(self) -> None:
        """Raise AssertionError where the counters and the lists disagree."""
        assert sum(len(piece) for piece in self.idle_pieces()) == self.num_idle
        assert 0 <= self.num_idle <= self.num_free <= self.num_usable
        for run in self.runs.values():
            for piece in run.pieces:
                assert piece.low < piece.high
                assert piece.references >= 0
