"""KV memory whose prefix cache is SGLang's token-level tree (0.5.23). A block is a page, one token by default.

Tokens of running sequences that are not in the tree are their own slots. What a step computed enters the tree when the
scheduling pass ends, so identical prompts of one pass do not share, those of the next one do. (The engine inserts when
the step has been processed; between the two nobody looks.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sim.kv.content import Content
from sim.kv.paged import NO_MATCH, Match, PagedKV
from sim.kv.prefix_order import LONGEST_QUEUE, depth_first_by_weight, longest_prefix_first
from sim.kv.radix import Key, Node, RadixTree, key_length, key_slice

if TYPE_CHECKING:
    from sim.request import Sequence

MANY_TOKENS = 2**40  # length of the private span that ends every key: longer than any sequence


class RadixContent(Content):
    """The tokens of one sequence as a key, and the node that it holds."""

    __slots__ = ("candidate", "key", "locked", "node")

    def __init__(self, key: Key) -> None:
        super().__init__()
        self.key = key
        self.node: Node | None = None
        self.candidate: Node | None = None  # where the latest look-up ended
        self.locked = 0  # tokens of the tree that the sequence holds


class RadixKV(PagedKV):
    """Pages of `block_size` tokens with the prefix tree. Free means: not held, tree leaves that could be evicted
    included.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size, prefix_caching=True)
        self.tree = RadixTree(block_size)
        self._own = 0  # tokens in slots of running sequences, outside the tree
        self._locked = 0  # tokens of the tree held, summed over sequences
        self._pending: list[tuple[Sequence, int]] = []
        self._lengths: dict[object, int] = {}  # tokens of each content

    def _refresh(self) -> None:
        size = self.block_size
        total = self.num_usable * size
        self.num_idle = self.tree.num_evictable // size
        self.num_free = (total - self._own - self.tree.num_protected) // size
        self.min_free = min(self.min_free, self.num_free)
        self.num_shared_extra = (self._locked - self.tree.num_protected) // size

    def content(self, spans: Iterable[tuple[object, int, int]], num_prompt_tokens: int) -> RadixContent:
        """The key of a sequence: its shared spans, then tokens that only it has."""
        spans = list(spans)
        key: Key = [(symbol, 0, end - start) for symbol, start, end in spans]
        if self.tree.changed is not None:
            for symbol, start, end in spans:
                # What lies in pages that end within the content: the last page of it may differ from prompt to prompt.
                self._lengths[symbol] = end - end % self.block_size - start
                self.tree.stored.setdefault(symbol, 0)
        private = object()
        return RadixContent([*key, (private, key_length(key), MANY_TOKENS)])

    def watch(self) -> None:
        """As in the base class, of requests that are yet to come."""
        self.tree.changed = {}

    def changes(self) -> list[tuple[object, bool]]:
        if not self.tree.changed:
            return []
        stored, lengths = self.tree.stored, self._lengths
        named = (key for key in self.tree.changed if lengths[key] > 0)
        found: list[tuple[object, bool]] = [(key, stored[key] >= lengths[key]) for key in named]
        self.tree.changed = {}
        return found

    def match(self, content: Content | None, max_tokens: int) -> Match:
        """Longest stored prefix of at most `max_tokens` tokens; touches what it finds."""
        assert isinstance(content, RadixContent)
        tokens, content.candidate = self.tree.match(key_slice(content.key, 0, max_tokens))
        if not tokens:
            return NO_MATCH
        idle = self.tree.num_idle_above(content.candidate)
        return Match(tokens, tokens // self.block_size, idle // self.block_size, [])

    def ordered(self, waiting: list[Sequence], policy: str) -> list[Sequence]:
        """Waiting sequences in SGLang's cache-aware orders; a long queue is served in arrival order."""
        if policy == "lpm" and len(waiting) > LONGEST_QUEUE:
            return waiting
        keys, found = [], []
        for seq in waiting:
            assert isinstance(seq.content, RadixContent)
            keys.append(key_slice(seq.content.key, 0, seq.num_known - 1))
            found.append(self.tree.match(keys[-1]))
        if policy == "lpm":
            order = longest_prefix_first(keys, [tokens for tokens, _ in found])
        else:
            order = depth_first_by_weight(self.tree, [node for _, node in found])
        return [waiting[i] for i in order]

    def take(self, num_blocks: int) -> None:
        """Take pages for a sequence's own slots; evicts leaves where free ones do not suffice."""
        tokens = num_blocks * self.block_size
        free = self.num_usable * self.block_size - self._own - self.tree.num_protected - self.tree.num_evictable
        if tokens > free:
            self.num_evicted += self.tree.evict(tokens - free) // self.block_size
        self._own += tokens
        self._refresh()

    def hold(self, seq: Sequence, match: Match) -> None:
        """Lock the path that the look-up found."""
        content = seq.content
        assert isinstance(content, RadixContent)
        assert content.candidate is not None
        self.tree.lock(content.candidate)
        content.node, content.locked = content.candidate, match.num_tokens
        self._locked += match.num_tokens
        self._refresh()

    def register(self, seq: Sequence, num_tokens: int) -> None:
        """Remember that the first `num_tokens` tokens are computed in this step."""
        self._pending.append((seq, num_tokens))

    def finish_pass(self) -> None:
        """Put what the pass computes into the tree."""
        for seq, num_tokens in self._pending:
            self._store(seq, num_tokens)
        self._pending.clear()

    def _store(self, seq: Sequence, num_tokens: int) -> None:
        content = seq.content
        assert isinstance(content, RadixContent)
        key = key_slice(content.key, 0, num_tokens - num_tokens % self.block_size)
        self.tree.insert(key)
        stored, node = self.tree.match(key)
        self.tree.lock(node)
        if content.node is not None:
            self.tree.unlock(content.node)
        self._own -= stored - content.locked  # moved into the tree, or given back where the tree had them
        self._locked += stored - content.locked
        content.node, content.locked = node, stored
        self._refresh()

    def release(self, seq: Sequence, num_held: int, num_registered_tokens: int, ended: bool) -> None:
        """Give the pages back; an ended sequence leaves its tokens in the tree, a retracted one drops its own slots."""
        content = seq.content
        assert isinstance(content, RadixContent)
        self._pending = [entry for entry in self._pending if entry[0] is not seq]
        self._own -= num_held * self.block_size - content.locked
        self._locked -= content.locked
        if ended:
            size = self.block_size
            self.tree.insert(key_slice(content.key, 0, num_registered_tokens - num_registered_tokens % size))
        if content.node is not None:
            self.tree.unlock(content.node)
        content.node, content.candidate, content.locked = None, None, 0
        self._refresh()

    def check_integrity(self) -> None:
        """Raise AssertionError where the counters and the tree disagree."""
        self.tree.check_integrity()
        assert self._own >= 0
        assert self._locked >= 0
        assert 0 <= self.num_idle <= self.num_free <= self.num_usable
