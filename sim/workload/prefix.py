"""Prefix-chained block ids: building them for sessions, shared prefixes and token ids, and counting ideal hits.

An id stands for the content of its block and everything before it. The last id of a prompt may name a partial block.
`output_hash_ids` row i names the FULL blocks of prompt + output from block `num_prompt_tokens // hash_block_size` on:
what a later prompt that contains prompt and output can hit after the full blocks of the prompt itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sim.workload.base import Ragged, Workload

if TYPE_CHECKING:
    from sim.units import IntArray

MAX_SESSION_IDS = 20_000_000  # beyond it, sessions get larger hash blocks: 20 M ids are 160 MB


def num_blocks(num_tokens: IntArray, block_size: int) -> IntArray:
    """Blocks that hold `num_tokens`, the last one perhaps partial."""
    return -(-num_tokens // block_size)


def ragged(rows: Sequence[Sequence[int]]) -> Ragged:
    """A Ragged from lists of integers."""
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    values = np.fromiter((x for row in rows for x in row), dtype=np.int64, count=int(offsets[-1]))
    return Ragged(values, offsets)


def concatenate(parts: Iterable[Ragged]) -> Ragged:
    """Rows of all parts, one after the other."""
    parts = list(parts)
    lengths = np.concatenate([np.diff(part.offsets) for part in parts]) if parts else np.zeros(0, dtype=np.int64)
    values = np.concatenate([part.values for part in parts]) if parts else np.zeros(0, dtype=np.int64)
    return Ragged(values, _offsets(lengths))


def take(rows: Ragged, index: IntArray) -> Ragged:
    """The rows `index`, in that order."""
    lengths = np.diff(rows.offsets)[index]
    return Ragged(rows.values[ranges(rows.offsets[:-1][index], lengths)], _offsets(lengths))


def ranges(starts: IntArray, lengths: IntArray) -> IntArray:
    """start, start + 1, ... of each (start, length), concatenated."""
    total = int(lengths.sum())
    ends = np.cumsum(lengths)
    result: IntArray = np.arange(total, dtype=np.int64) + np.repeat(starts - (ends - lengths), lengths)
    return result


def _offsets(lengths: IntArray) -> IntArray:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def shared_prefixes(
    group: IntArray, num_prefix_tokens: int, num_prompt_tokens: IntArray, block_size: int, num_groups: int
) -> Ragged:
    """Ids of prompts that begin with `num_prefix_tokens` tokens of their group and go on alone.

    Only whole blocks are shared: num_prefix_tokens // block_size of them.
    """
    shared = num_prefix_tokens // block_size
    total = num_blocks(num_prompt_tokens, block_size)
    own = total - shared
    offsets = _offsets(total)
    values = np.empty(int(offsets[-1]), dtype=np.int64)
    values[ranges(offsets[:-1], np.full(len(total), shared))] = ranges(group * shared, np.full(len(total), shared))
    values[ranges(offsets[:-1] + shared, own)] = num_groups * shared + np.arange(int(own.sum()))
    return Ragged(values, offsets)


@dataclass(frozen=True)
class SessionIds:
    """Block ids of sessions and the block size that they were made with."""

    hash_ids: Ragged
    output_hash_ids: Ragged
    hash_block_size: int


def session_ids(
    num_prompt_tokens: IntArray, num_output_tokens: IntArray, previous: IntArray, block_size: int
) -> SessionIds:
    """Ids of sessions in which each prompt begins with its previous turn's prompt and output.

    A turn whose prompt is not longer than its predecessor's prompt and output starts a chain of its own (its context
    was compacted). The block size is doubled until there are at most MAX_SESSION_IDS ids.
    """
    while int(num_blocks(num_prompt_tokens + num_output_tokens, block_size).sum()) > MAX_SESSION_IDS:
        block_size *= 2
    chain, extent = _chains(num_prompt_tokens, num_output_tokens, previous)
    starts = _offsets(extent // block_size)
    base = starts[:-1][chain]
    full = num_prompt_tokens // block_size
    total = num_blocks(num_prompt_tokens, block_size)
    offsets = _offsets(total)
    values = ranges(base, total)
    partial = total > full
    values[offsets[1:][partial] - 1] = starts[-1] + np.arange(int(partial.sum()))
    written = (num_prompt_tokens + num_output_tokens) // block_size - full
    return SessionIds(Ragged(values, offsets), Ragged(ranges(base + full, written), _offsets(written)), block_size)


def _chains(prompt: IntArray, output: IntArray, previous: IntArray) -> tuple[IntArray, IntArray]:
    """(chain of each row, tokens of each chain)."""
    chain = np.empty(len(prompt), dtype=np.int64)
    extent: list[int] = []
    end = (prompt + output).tolist()
    for i, (before, length) in enumerate(zip(previous.tolist(), prompt.tolist(), strict=True)):
        if before >= 0 and length > end[before] and extent[chain[before]] == end[before]:
            chain[i] = chain[before]
            extent[chain[i]] = end[i]
        else:
            chain[i] = len(extent)
            extent.append(end[i])
    return chain, np.array(extent, dtype=np.int64)


class TokenChain:
    """Block ids from token ids: equal ids for equal tokens after equal prefixes."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._known: dict[tuple[int, tuple[int, ...]], int] = {}

    def ids(self, tokens: Sequence[int]) -> list[int]:
        """One id per block of `tokens`, the last one perhaps partial."""
        ids, parent = [], -1
        for start in range(0, len(tokens), self._block_size):
            key = (parent, tuple(tokens[start : start + self._block_size]))
            parent = self._known.setdefault(key, len(self._known))
            ids.append(parent)
        return ids

    def prompt_and_output(self, prompt: Sequence[int], output: Sequence[int]) -> tuple[list[int], list[int]]:
        """(ids of the prompt, ids of the full blocks that follow in prompt + output)."""
        both = self.ids([*prompt, *output])[: (len(prompt) + len(output)) // self._block_size]
        return self.ids(prompt), both[len(prompt) // self._block_size :]


@dataclass(frozen=True)
class IdealHits:
    """Prefix hits with an infinite cache, requests in arrival order, each known to all later ones at once."""

    blocks: IntArray  # leading known ids of each request
    tokens: IntArray  # the tokens of those blocks
    whole: IntArray  # 1 where the whole prompt was known


def ideal_hits(workload: Workload) -> IdealHits:
    """Count leading known ids of every request; the workload must have `hash_ids`."""
    ids = workload.hash_ids
    assert ids is not None
    lengths = np.diff(ids.offsets)
    rows = np.repeat(np.arange(len(ids)), lengths)
    unknown = _first_rows(workload)[: len(rows)] >= rows
    place = np.arange(len(rows)) - np.repeat(ids.offsets[:-1], lengths)
    first_unknown = np.where(unknown, place, np.repeat(lengths, lengths))
    blocks = _minimum_by_row(first_unknown, ids.offsets)
    whole = (blocks == lengths) & (lengths > 0)
    tokens = np.where(whole, workload.num_prompt_tokens, blocks * workload.hash_block_size)
    return IdealHits(blocks, tokens, whole.astype(np.int64))


def _first_rows(workload: Workload) -> IntArray:
    """The first row in which each id of the prompts (then of the outputs) is seen."""
    parts = [part for part in (workload.hash_ids, workload.output_hash_ids) if part is not None]
    values = np.concatenate([part.values for part in parts])
    rows = np.concatenate([np.repeat(np.arange(len(part)), np.diff(part.offsets)) for part in parts])
    unique, inverse = np.unique(values, return_inverse=True)
    first = np.full(len(unique), len(workload), dtype=np.int64)
    np.minimum.at(first, inverse, rows)
    return first[inverse]


def _minimum_by_row(values: IntArray, offsets: IntArray) -> IntArray:
    filled = np.flatnonzero(np.diff(offsets) > 0)
    result = np.zeros(len(offsets) - 1, dtype=np.int64)
    if len(filled):
        result[filled] = np.minimum.reduceat(values, offsets[:-1][filled])
    return result


def num_chain_breaks(ids: Ragged) -> int:
    """How many ids follow more than one id: 0 where ids are prefix-chained as they should be."""
    previous = np.empty_like(ids.values)
    previous[1:] = ids.values[:-1]
    previous[ids.offsets[:-1][np.diff(ids.offsets) > 0]] = -1
    order = np.lexsort((previous, ids.values))
    same_id = np.diff(ids.values[order]) == 0
    return int((same_id & (np.diff(previous[order]) != 0)).sum())
