"""The run-length KV memory against the plain thing: numbered blocks, a list of free ones, a hash map, a dict of
references.

Random sequences are admitted, extended, preempted and ended on both; after each operation the free blocks, the
cached ones, the evictions and every look-up must agree.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenarios import examples

from sim.kv.paged import PagedKV
from sim.request import Sequence

# content of a block: whose (an id of the trace, or one row alone) and the number of the block
Key = tuple[str, int, int]


@dataclass
class PlainMemory:
    """Paged memory as the engine notes describe it, one block at a time."""

    num_usable: int
    block_size: int
    free: list[int] = field(default_factory=list)  # head first
    key_of: dict[int, Key] = field(default_factory=dict)  # hashed blocks
    cached: dict[Key, list[int]] = field(default_factory=dict)  # first registered first
    references: Counter[int] = field(default_factory=Counter)
    num_evicted: int = 0

    def __post_init__(self) -> None:
        self.free = list(range(1, self.num_usable + 1))

    def match(self, keys: list[Key], max_tokens: int) -> list[int]:
        """Blocks of the longest cached prefix."""
        found = []
        for key in keys[: max_tokens // self.block_size]:
            if not self.cached.get(key):
                break
            found.append(self.cached[key][0])
        return found

    def hold(self, blocks: list[int]) -> None:
        for block in blocks:
            if self.references[block] == 0:
                self.free.remove(block)
            self.references[block] += 1

    def take(self, number: int) -> list[int]:
        taken = [self.free.pop(0) for _ in range(number)]
        for block in taken:
            self.references[block] = 1
            if block in self.key_of:
                self.cached[self.key_of.pop(block)].remove(block)
                self.num_evicted += 1
        return taken

    def register(self, blocks: list[int], keys: list[Key], num_tokens: int) -> None:
        for block, key in zip(blocks, keys[: num_tokens // self.block_size], strict=False):
            if block not in self.key_of:
                self.key_of[block] = key
                self.cached.setdefault(key, []).append(block)

    def release(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            self.references[block] -= 1
            if self.references[block] == 0:
                self.free.insert(len(self.free) if block in self.key_of else 0, block)

    @property
    def num_cached(self) -> int:
        """Free blocks that hold content."""
        return sum(block in self.key_of for block in self.free)


@dataclass
class Twin:
    """One sequence in both memories."""

    seq: Sequence
    tokens: list[int]
    keys: list[Key]  # of all full blocks
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)
    running: bool = False
    ended: bool = False


def block_key(row: int, number: int, last_token: int, spans: list[tuple[int, int, int]]) -> Key:
    """The id whose tokens include the last one of the block; a block that ends behind all ids is private."""
    for key, start, end in spans:
        if start <= last_token < end:
            return ("id", key, number)
    return ("row", row, number)


class Machine:
    """Carries out the same operations on both memories and compares them."""

    def __init__(self, num_usable: int, block_size: int, prompts: list[list[int]], hash_size: int) -> None:
        self.plain = PlainMemory(num_usable, block_size)
        self.kv = PagedKV(num_usable + 1, block_size, prefix_caching=True)
        self.size = block_size
        ids: dict[tuple[int, ...], int] = {}
        self.twins = [self.twin(row, tokens, hash_size, ids) for row, tokens in enumerate(prompts)]

    def twin(self, row: int, tokens: list[int], hash_size: int, ids: dict[tuple[int, ...], int]) -> Twin:
        """The first half of the tokens is the prompt, with ids; the rest is generated and private."""
        prompt = (len(tokens) + 1) // 2
        ends = [min(start + hash_size, prompt) for start in range(0, prompt, hash_size)]
        starts = range(0, prompt, hash_size)
        spans = [
            (ids.setdefault(tuple(tokens[:end]), len(ids)), start, end) for start, end in zip(starts, ends, strict=True)
        ]
        seq = Sequence(row, 0.0, prompt, len(tokens) - prompt + 1, len(tokens) - prompt + 1)
        seq.content = self.kv.content(spans, prompt)
        keys = [
            block_key(row, number, (number + 1) * self.size - 1, spans) for number in range(len(tokens) // self.size)
        ]
        return Twin(seq, tokens, keys)

    def step(self, row: int, amount: int) -> None:
        """What can be done with a sequence now: admit it, give it tokens, or (amount 0) preempt or end it."""
        twin = self.twins[row % len(self.twins)]
        if twin.ended:
            return
        if not twin.running:
            self.admit(twin, amount)
        elif amount == 0:
            self.leave(twin)
        else:
            self.extend(twin, amount)
        self.compare()

    def known(self, twin: Twin) -> int:
        """Tokens to be computed before the next: the prompt, or as many as had been computed at the preemption,
        plus one.
        """
        return min(len(twin.tokens), max(twin.seq.num_prompt_tokens, twin.seq.num_known))

    def admit(self, twin: Twin, amount: int) -> None:
        known = self.known(twin)
        found = self.plain.match(twin.keys, known - 1)
        match = self.kv.match(twin.seq.content, known - 1)
        assert match.num_blocks == len(found)
        assert match.num_tokens == len(found) * self.size
        idle = sum(self.plain.references[block] == 0 for block in found)
        assert match.num_idle == idle
        first = min(len(found) * self.size + max(amount, 1), known)
        needed = -(-first // self.size) - len(found)
        if needed + idle > self.kv.num_free:
            return
        if found:
            self.kv.hold(twin.seq, match)
            self.plain.hold(found)
        twin.blocks, twin.num_computed, twin.running = found, len(found) * self.size, True
        self.give(twin, first)

    def extend(self, twin: Twin, amount: int) -> None:
        target = min(twin.num_computed + amount, len(twin.tokens))
        if -(-target // self.size) - len(twin.blocks) <= self.kv.num_free:
            self.give(twin, target)

    def give(self, twin: Twin, target: int) -> None:
        """Compute up to `target` tokens."""
        needed = -(-target // self.size) - len(twin.blocks)
        if needed:
            self.kv.take(needed)
            twin.blocks = twin.blocks + self.plain.take(needed)
        twin.num_computed = target
        self.kv.register(twin.seq, target)
        self.plain.register(twin.blocks, twin.keys, target)

    def leave(self, twin: Twin) -> None:
        """End if everything is computed, else be preempted."""
        twin.ended = twin.num_computed == len(twin.tokens)
        twin.running = False
        self.kv.release(twin.seq, len(twin.blocks), twin.num_computed, twin.ended)
        self.plain.release(twin.blocks)
        twin.blocks = []
        twin.seq.num_known = min(len(twin.tokens), twin.num_computed + 1)

    def compare(self) -> None:
        """Counts, and what every sequence would hit now."""
        kv, plain = self.kv, self.plain
        kv.check_integrity()
        assert kv.num_free == len(plain.free)
        assert kv.num_idle == plain.num_cached
        assert kv.num_evicted == plain.num_evicted
        assert kv.num_shared_extra == sum(count - 1 for count in plain.references.values() if count > 1)
        for twin in self.twins:
            if not (twin.running or twin.ended):
                limit = self.known(twin) - 1
                assert kv.match(twin.seq.content, limit).num_blocks == len(plain.match(twin.keys, limit))


@st.composite
def prompts(draw: st.DrawFn) -> list[list[int]]:
    """Token lists that share beginnings with each other; no two generate the same tokens."""
    rows = []
    for row in range(draw(st.integers(1, 6))):
        stream, shared, own = draw(st.integers(0, 1)), draw(st.integers(0, 24)), draw(st.integers(1, 12))
        head = [1000 * stream + i for i in range(shared)]
        prompt = head + [10_000 * (row + 1) + i for i in range(own if draw(st.booleans()) else 0)]
        prompt = prompt or [10_000 * (row + 1)]
        rows.append(prompt + [10_000 * (row + 1) + 5000 + i for i in range(len(prompt) - draw(st.integers(0, 1)))])
    return rows


@pytest.mark.parametrize("block_size", [1, 3, 4])
def test_run_length_memory_equals_plain_blocks(block_size: int) -> None:
    """Admissions with hits, chunks, decodes, preemptions and ends in any order."""

    @examples(60)
    @given(
        prompts(),
        st.sampled_from([1, 2, 4, 6]),
        st.integers(3, 20),
        st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0, 0, 1, 1, 2, 5, 9, 30])), max_size=60),
    )
    def check(tokens: list[list[int]], hash_size: int, num_usable: int, operations: list[tuple[int, int]]) -> None:
        machine = Machine(num_usable, block_size, tokens, hash_size)
        for row, amount in operations:
            machine.step(row, amount)
        for twin in machine.twins:
            if twin.running:
                machine.leave(twin)
                machine.compare()
        assert machine.kv.num_free == num_usable

    check()


def test_without_prefix_caching_blocks_are_only_counted() -> None:
    """Nothing is cached, nothing is evicted, whatever order blocks come and go in."""
    kv = PagedKV(11, 4, prefix_caching=False)
    seq = Sequence(0, 0.0, 9, 4, 4)
    kv.take(3)
    kv.register(seq, 9)
    assert kv.match(seq.content, 8).num_blocks == 0
    kv.release(seq, 3, 9, ended=True)
    assert (kv.num_free, kv.num_idle, kv.num_evicted, kv.min_free) == (10, 0, 0, 7)


def test_the_null_block_is_not_usable() -> None:
    """One of the blocks that an engine reports is reserved."""
    assert PagedKV(11, 16, prefix_caching=True).num_free == 10


def test_a_block_belongs_to_the_span_that_holds_its_last_token() -> None:
    """Ids of 6 tokens over blocks of 4: block 1 (tokens 4 to 7) is told apart by the second id, as it must be."""
    kv = PagedKV(11, 4, prefix_caching=True)
    one, other = kv.content([(1, 0, 6), (2, 6, 12)], 12), kv.content([(1, 0, 6), (3, 6, 12)], 12)
    assert [(first, count) for _, first, count in one.spans] == [(0, 1), (1, 2)]
    seq = Sequence(0, 0.0, 12, 1, 1)
    seq.content = one
    kv.take(3)
    kv.register(seq, 12)
    assert kv.match(one, 11).num_blocks == 2
    assert kv.match(other, 11).num_blocks == 1


def test_a_partial_last_id_gives_no_block_of_its_own() -> None:
    """9 tokens, ids of 4 tokens: two full blocks; the ninth token's block is partial and never found."""
    kv = PagedKV(11, 4, prefix_caching=True)
    content = kv.content([(1, 0, 4), (2, 4, 8), (3, 8, 9)], 9)
    assert content.num_shared_blocks == 2
    assert not content.reaches_outputs
