"""KV memory of llama.cpp's server: a fixed number of slots, each with its own context and the tokens of its last
request.

To the builder a slot is one block as long as a context. A new request takes the idle slot whose tokens begin most like
its prompt, if that is a large enough share of it, else the one that was idle longest; what agrees from the start is not
computed again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sim.kv.content import Content
from sim.kv.paged import NO_MATCH, Match, PagedKV
from sim.kv.radix import Key, common_length, key_length, key_slice

if TYPE_CHECKING:
    from sim.request import Sequence

MANY_TOKENS = 2**40  # length of the private span that ends every key: longer than any sequence


class Slot:
    """A place for one sequence."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.key: Key = []  # tokens whose KV it holds while idle
        self.last_used = 0


class SlotContent(Content):
    """The tokens of one sequence, its slot, and how many leading ones still lie where they were computed."""

    __slots__ = ("key", "num_in_place", "slot")

    def __init__(self, key: Key) -> None:
        super().__init__()
        self.key = key
        self.slot: Slot | None = None
        self.num_in_place = MANY_TOKENS


class SlotKV(PagedKV):
    """`num_slots` slots of `context` tokens. `similarity`: share of a prompt that a slot must hold to be chosen
    for it. `keep`: tokens that a shift leaves in front; None: a full slot ends its sequence.
    """

    tells_changes = False

    def __init__(
        self, num_slots: int, context: int, similarity: float, cache_prompt: bool, keep: int | None = None
    ) -> None:
        super().__init__(num_slots + 1, context, prefix_caching=True)
        self.longest_sequence = context
        self.similarity = similarity
        self.cache_prompt = cache_prompt
        self.shifts = keep is not None
        self.keep = keep or 0
        self._idle = [Slot(i) for i in range(num_slots)]
        self._uses = 0

    def content(self, spans: Iterable[tuple[object, int, int]], num_prompt_tokens: int) -> SlotContent:
        """The key of a sequence: its shared spans, then tokens that only it has."""
        key: Key = [(symbol, 0, end - start) for symbol, start, end in spans]
        return SlotContent([*key, (object(), key_length(key), MANY_TOKENS)])

    def match(self, content: Content | None, max_tokens: int) -> Match:
        """Choose a slot; the tokens that it holds of the prompt, all but the last known one at most."""
        assert isinstance(content, SlotContent)
        if not self._idle:
            return NO_MATCH
        prompt = key_slice(content.key, 0, max_tokens + 1)
        content.slot = self._choose(prompt, max_tokens + 1)
        common = min(common_length(content.slot.key, prompt), max_tokens)
        return Match(common, 0, 0, []) if common and self.cache_prompt else NO_MATCH

    def _choose(self, prompt: Key, length: int) -> Slot:
        shares = [common_length(slot.key, prompt) / length for slot in self._idle]
        best = max(range(len(shares)), key=lambda i: shares[i])
        if 0 < self.similarity < shares[best]:
            return self._idle[best]
        return min(reversed(self._idle), key=lambda slot: slot.last_used)  # ties: the later slot

    def place(self, seq: Sequence, num_blocks: int) -> None:
        """Occupy the chosen slot."""
        assert isinstance(seq.content, SlotContent)
        assert seq.content.slot is not None
        self._idle.remove(seq.content.slot)
        self.take(num_blocks)

    def hold(self, seq: Sequence, match: Match) -> None:
        """Nothing is shared: the slot's own tokens stay where they are."""

    def register(self, seq: Sequence, num_tokens: int) -> None:
        """Nothing can be hit before the slot is idle."""

    def release(self, seq: Sequence, num_held: int, num_registered_tokens: int, ended: bool) -> None:
        """Leave the slot, with the tokens computed so far in it."""
        assert isinstance(seq.content, SlotContent)
        assert seq.content.slot is not None
        slot, self._uses = seq.content.slot, self._uses + 1
        num_tokens = min(num_registered_tokens, seq.content.num_in_place)
        slot.key, slot.last_used = key_slice(seq.content.key, 0, num_tokens), self._uses
        self._idle.append(slot)
        self._idle.sort(key=lambda slot: slot.index)
        seq.content.slot = None
        self.num_free += num_held

    def never_fits(self, seq: Sequence, max_model_len: int) -> str | None:
        """A slot must hold the whole sequence, whatever engine it is that would let it grow."""
        length = seq.num_prompt_tokens + (0 if self.shifts else seq._num_output_tokens - 1)
        return None if length <= self.block_size else f"{length} tokens do not fit a slot of {self.block_size}"

    def tokens_until_shift(self, num_computed: int) -> int:
        """A slot shifts before the step that would fill its last token."""
        return max(0, self.block_size - 1 - num_computed)

    def shift(self, seq: Sequence) -> int:
        """Half of what comes after the kept tokens goes; the rest slides down, which later prompts cannot match."""
        assert isinstance(seq.content, SlotContent)
        seq.content.num_in_place = self.keep
        return (seq.num_computed - self.keep) // 2

    def slot_of(self, seq: Sequence) -> int:
        """Index of the slot of a running sequence."""
        assert isinstance(seq.content, SlotContent)
        assert seq.content.slot is not None
        return seq.content.slot.index

    def check_integrity(self) -> None:
        """Raise AssertionError where free slots and free blocks disagree."""
        assert len(self._idle) == self.num_free
