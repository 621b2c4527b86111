"""Attention over a paged cache: decodes of equal or uneven contexts, prompt chunks with or without a prefix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sim.calibration.measure.bench import Bench, Work
from sim.calibration.measure.cuda import Launch, integer, number, pointer
from sim.calibration.measure.numbers import from_bits, relative_error

if TYPE_CHECKING:
    import numpy.typing as npt

    from sim.units import FloatArray

BLOCK_SIZE = 16  # tokens
BLOCKS_PER_MULTIPROCESSOR = 4  # thread blocks that the splits of decode attention aim at
MIN_SPLIT_TOKENS = 256
QUERY_TILE = 64


class Heads(NamedTuple):
    """Query heads, key-value heads and elements of each, on one GPU."""

    heads: int
    kv_heads: int
    head_dim: int

    @property
    def scale(self) -> float:
        return float(self.head_dim**-0.5)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the keys (or of the values) of one token."""
        return 2 * self.kv_heads * self.head_dim


class Cache(NamedTuple):
    """The layout of the caches of one operation: shuffled blocks of each sequence, and where its tables are."""

    table: npt.NDArray[np.int32]  # [sequences, max blocks]
    table_address: int
    lengths_address: int
    half_bytes: int  # of all keys; the values follow

    @property
    def max_blocks(self) -> int:
        return int(self.table.shape[1])


def place_cache(bench: Bench, lengths: tuple[int, ...], heads: Heads) -> Cache:
    """Deal the blocks of sequences of these lengths in random order, and upload the tables."""
    counts = [-(-length // BLOCK_SIZE) for length in lengths]
    order = bench.rng.permutation(sum(counts)).astype(np.int32)
    table = np.zeros((len(lengths), max(counts)), dtype=np.int32)
    ends = np.cumsum(counts)
    for row, (end, count) in enumerate(zip(ends, counts, strict=True)):
        table[row, :count] = order[end - count : end]
    lengths_address = bench.hold(np.array(lengths, dtype=np.int32))
    return Cache(table, bench.hold(table), lengths_address, sum(counts) * BLOCK_SIZE * heads.cache_bytes)


@dataclass(frozen=True)
class Decode:
    """Decode attention of one token for each of `contexts`; a context includes the new token."""

    contexts: tuple[int, ...]
    heads: Heads
    table: str = "attention_decode"

    @property
    def is_even(self) -> bool:
        return len(set(self.contexts)) == 1

    @property
    def shape(self) -> dict[str, int | str]:
        """With the mean context as `kv_len`, and the contexts themselves where they differ."""
        mean = round(sum(self.contexts) / len(self.contexts))
        shape = {"batch": len(self.contexts), "kv_len": mean, **self.heads._asdict()}
        return shape if self.is_even else {**shape, "contexts": "+".join(map(str, self.contexts))}

    @property
    def flops(self) -> float:
        return 4.0 * self.heads.heads * self.heads.head_dim * sum(self.contexts)

    @property
    def cold_bytes(self) -> float:
        return 2.0 * self.heads.cache_bytes * sum(self.contexts)

    def prepare(self, bench: Bench) -> Work:
        return self._work(bench, place_cache(bench, self.contexts, self.heads))

    def _work(self, bench: Bench, cache: Cache) -> Work:
        size, splits = 2 * cache.half_bytes, self._num_splits(bench)
        rows = len(self.contexts) * self.heads.heads
        partials = bench.scratch("partials", 4 * rows * splits * (self.heads.head_dim + 2))
        out = bench.scratch("attention", 2 * rows * self.heads.head_dim)
        query = bench.window(0, 2 * rows * self.heads.head_dim)

        def enqueue(index: int) -> None:
            keys = bench.window(index, size)
            self._launch(bench, cache, (query, keys, partials, out), splits)

        return Work(enqueue, bench.windows(size))

    def error(self, bench: Bench) -> float:
        cache = place_cache(bench, self.contexts, self.heads)
        work = self._work(bench, cache)
        work.enqueue(work.num_windows - 1)
        sequences = read_sequences(bench, work.num_windows - 1, cache, self.contexts, self.heads)
        shape = (len(self.contexts), self.heads.heads, self.heads.head_dim)
        query, found = _read(bench, bench.window(0, 1), shape), _read(bench, bench.scratch("attention", 0), shape)
        expected = [attend(row[None], *pair, self.heads)[0] for row, pair in zip(query, sequences, strict=True)]
        bench.clear()
        return relative_error(found, np.array(expected))

    def _num_splits(self, bench: Bench) -> int:
        blocks = len(self.contexts) * self.heads.kv_heads
        wanted = -(-BLOCKS_PER_MULTIPROCESSOR * bench.gpu.num_multiprocessors // blocks)
        return max(1, min(wanted, max(self.contexts) // MIN_SPLIT_TOKENS))

    def _launch(self, bench: Bench, cache: Cache, addresses: tuple[int, int, int, int], splits: int) -> None:
        query, keys, partials, out = addresses
        heads, kv_heads, dim = self.heads
        pointers = (query, keys, keys + cache.half_bytes, cache.table_address, cache.lengths_address, partials)
        sizes = (integer(cache.max_blocks), integer(BLOCK_SIZE), integer(kv_heads), number(self.heads.scale))
        name = f"paged_decode_d{dim}_g{heads // kv_heads}"
        grid = (splits, kv_heads, len(self.contexts))
        bench.gpu.launch(Launch(name, grid, 128, (*map(pointer, pointers), *sizes)))
        merged = (pointer(partials), pointer(out), integer(splits), integer(dim))
        bench.gpu.launch(Launch("paged_decode_combine", (heads, len(self.contexts), 1), dim, merged))


@dataclass(frozen=True)
class Prefill:
    """Causal attention of chunks: (new tokens, tokens before them) of each sequence."""

    chunks: tuple[tuple[int, int], ...]
    heads: Heads
    table: str = "attention_prefill"

    @property
    def shape(self) -> dict[str, int | str]:
        """Of equal chunks, as tables have them."""
        new, prefix = self.chunks[0]
        return {"batch": len(self.chunks), "q_len": new, "prefix_len": prefix, **self.heads._asdict()}

    @property
    def flops(self) -> float:
        pairs = sum(new * prefix + new * (new + 1) // 2 for new, prefix in self.chunks)
        return 4.0 * self.heads.heads * self.heads.head_dim * pairs

    @property
    def cold_bytes(self) -> float:
        return 2.0 * self.heads.cache_bytes * sum(new + prefix for new, prefix in self.chunks)

    @property
    def _lengths(self) -> tuple[int, ...]:
        return tuple(new + prefix for new, prefix in self.chunks)

    @property
    def _starts(self) -> npt.NDArray[np.int32]:
        return np.cumsum([0, *(new for new, _ in self.chunks)]).astype(np.int32)

    def prepare(self, bench: Bench) -> Work:
        return self._work(bench, place_cache(bench, self._lengths, self.heads))

    def _work(self, bench: Bench, cache: Cache) -> Work:
        starts = bench.hold(self._starts)
        tokens = int(self._starts[-1])
        size = 2 * tokens * self.heads.heads * self.heads.head_dim
        query, out = bench.window(0, size), bench.scratch("attention", size)

        def enqueue(index: int) -> None:
            keys = bench.window(index, 2 * cache.half_bytes)
            self._launch(bench, cache, (query, keys, out, starts))

        return Work(enqueue, bench.windows(2 * cache.half_bytes))

    def error(self, bench: Bench) -> float:
        cache = place_cache(bench, self._lengths, self.heads)
        work = self._work(bench, cache)
        work.enqueue(work.num_windows - 1)
        sequences = read_sequences(bench, work.num_windows - 1, cache, self._lengths, self.heads)
        shape = (int(self._starts[-1]), self.heads.heads, self.heads.head_dim)
        query, found = _read(bench, bench.window(0, 1), shape), _read(bench, bench.scratch("attention", 0), shape)
        chunks = np.split(query, self._starts[1:-1])
        parts = [attend(chunk, *pair, self.heads) for chunk, pair in zip(chunks, sequences, strict=True)]
        bench.clear()
        return relative_error(found, np.concatenate(parts))

    def _launch(self, bench: Bench, cache: Cache, addresses: tuple[int, int, int, int]) -> None:
        query, keys, out, starts = addresses
        heads, kv_heads, dim = self.heads
        tables = (cache.table_address, starts, cache.lengths_address)
        pointers = (query, keys, keys + cache.half_bytes, *tables, out)
        sizes = (cache.max_blocks, BLOCK_SIZE, heads, kv_heads)
        arguments = (*map(pointer, pointers), *map(integer, sizes), number(self.heads.scale))
        longest = max(new for new, _ in self.chunks)
        grid = (-(-longest // QUERY_TILE), heads, len(self.chunks))
        bench.gpu.launch(Launch(f"prefill_attention_d{dim}", grid, 128, arguments))


def read_sequences(
    bench: Bench, window: int, cache: Cache, lengths: tuple[int, ...], heads: Heads
) -> list[tuple[FloatArray, FloatArray]]:
    """Keys and values [length, kv_heads, dim] of each sequence of a window, in float64."""
    num_blocks = cache.half_bytes // (BLOCK_SIZE * heads.cache_bytes)
    shape = (num_blocks, BLOCK_SIZE, heads.kv_heads, heads.head_dim)
    start = bench.window(window, 2 * cache.half_bytes)
    both = _read(bench, start, shape), _read(bench, start + cache.half_bytes, shape)
    return [
        (gather(both[0], blocks, length), gather(both[1], blocks, length))
        for blocks, length in zip(cache.table, lengths, strict=True)
    ]


def gather(cache: FloatArray, blocks: npt.NDArray[Any], length: int) -> FloatArray:
    """[length, kv_heads, dim] of one sequence from [block, slot, kv_heads, dim]."""
    used = cache[blocks[: -(-length // BLOCK_SIZE)]]
    return np.asarray(used.reshape(-1, *cache.shape[2:])[:length])


def attend(query: FloatArray, keys: FloatArray, values: FloatArray, heads: Heads) -> FloatArray:
    """Causal attention in float64: the last of `query` [n, heads, dim] sees all of `keys` [context, kv_heads, dim]."""
    group, num_new, context = heads.heads // heads.kv_heads, len(query), len(keys)
    keys, values = np.repeat(keys, group, axis=1), np.repeat(values, group, axis=1)
    scores = np.einsum("qhd,khd->hqk", query, keys) * heads.scale
    hidden = np.arange(context)[None, :] > np.arange(num_new)[:, None] + context - num_new
    scores = np.where(hidden, -np.inf, scores)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.asarray(np.einsum("hqk,khd->qhd", weights, values))


def _read(bench: Bench, address: int, shape: tuple[int, ...]) -> FloatArray:
    return from_bits(bench.read_bits(address, shape))
