"""A prefix-tree model: how much of a prompt was seen before, and how long ago; fitted to hash_ids and drawn from.

For each class of prompt length it knows how many prompts hit nothing, exactly one block, or are repeated whole, and
how the share of known blocks is spread among the others; over all, how many requests lie between a prompt and the last
one that shares its known prefix. Drawing builds a tree: a prompt takes its known blocks from an earlier prompt at about
that distance and goes on with new ids. What cannot be hit yet (an empty tree) is made up for later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel, ConfigDict

from sim.workload.base import Ragged, Workload
from sim.workload.prefix import ideal_hits, num_blocks, ragged

if TYPE_CHECKING:
    from sim.units import FloatArray, IntArray

_NUM_CLASSES = 12
_SHARE_POINTS = np.linspace(0.0, 1.0, 21)
_DISTANCE_POINTS = np.linspace(0.0, 1.0, 41)
_WINDOW = 20_000  # requests back that a prefix is looked for


class LengthClass(BaseModel):
    """Prompts of up to `max_blocks` blocks (and more than the class before)."""

    model_config = ConfigDict(extra="forbid")
    max_blocks: int
    none: float  # share of prompts that hit nothing
    one: float  # share that hits exactly one block (and has more)
    whole: float  # share that was seen before as a whole
    known_share: list[float]  # quantiles of (known - 1) / (blocks - 1) of the others


class PrefixModel(BaseModel):
    """Statistics of prefixes; block counts are in blocks of `hash_block_size` tokens."""

    model_config = ConfigDict(extra="forbid")
    hash_block_size: int
    classes: list[LengthClass]
    distance: list[float]  # quantiles of the number of requests back to the last one with the same known prefix
    block_hit_rate: float  # of the fitted trace, infinite cache


def fit_prefixes(workload: Workload) -> PrefixModel:
    """Fit the model to a workload with hash_ids."""
    hits = ideal_hits(workload)
    total = num_blocks(workload.num_prompt_tokens, workload.hash_block_size)
    distance = _distances(workload, hits.blocks)
    return PrefixModel(
        hash_block_size=workload.hash_block_size,
        classes=_classes(total, hits.blocks, hits.whole == 1),
        distance=_rounded(np.quantile(distance, _DISTANCE_POINTS)) if len(distance) else [1.0] * len(_DISTANCE_POINTS),
        block_hit_rate=round(float(hits.blocks.sum() / total.sum()), 6),
    )


def _classes(total: IntArray, known: IntArray, whole: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> list[LengthClass]:
    edges = np.unique(np.quantile(total, np.linspace(0, 1, _NUM_CLASSES + 1)[1:], method="higher"))
    index = np.searchsorted(edges, total)
    result = []
    for i, edge in enumerate(edges.tolist()):
        mine = index == i
        n = max(1, int(mine.sum()))
        none, one = mine & (known == 0), mine & (known == 1) & (total > 1) & ~whole
        rest = mine & ~none & ~one & ~whole & (total > 1)
        share = (known[rest] - 1) / (total[rest] - 1)
        quantiles = _rounded(np.quantile(share, _SHARE_POINTS)) if rest.any() else [0.0] * len(_SHARE_POINTS)
        result.append(
            LengthClass(
                max_blocks=int(edge),
                none=round(int(none.sum()) / n, 6),
                one=round(int(one.sum()) / n, 6),
                whole=round(int((mine & whole).sum()) / n, 6),
                known_share=quantiles,
            )
        )
    return result


def _distances(workload: Workload, known: IntArray) -> FloatArray:
    """Requests back to the last one that holds the last known block, where more than one block is known."""
    assert workload.hash_ids is not None
    last: dict[int, int] = {}
    result = []
    for i, count in enumerate(known.tolist()):
        ids = workload.hash_ids.row(i).tolist()
        if count > 1 and ids[count - 1] in last:
            result.append(i - last[ids[count - 1]])
        last.update(dict.fromkeys(ids, i))
    return np.array(result, dtype=np.float64)


def _rounded(values: FloatArray) -> list[float]:
    return [round(float(value), 5) for value in values]


def draw_prefixes(model: PrefixModel, num_prompt_tokens: IntArray, rng: np.random.Generator) -> tuple[IntArray, Ragged]:
    """(prompt lengths, ids). A prompt that repeats an earlier one takes its length, one with as many blocks."""
    prompt = num_prompt_tokens.copy()
    wanted, whole = _wanted_blocks(model, num_blocks(prompt, model.hash_block_size), rng)
    distance = np.interp(rng.random(len(prompt)), _DISTANCE_POINTS, model.distance)
    tree = _Tree(prompt, model.hash_block_size)
    for i in range(len(prompt)):
        if not (whole[i] and tree.repeat(i, float(distance[i]))):
            tree.grow(i, int(wanted[i]), float(distance[i]))
    return prompt, ragged(tree.paths)


def _wanted_blocks(
    model: PrefixModel, total: IntArray, rng: np.random.Generator
) -> tuple[IntArray, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """(known blocks of each prompt, whether it repeats an earlier one as a whole)."""
    edges = np.array([c.max_blocks for c in model.classes])
    index = np.minimum(np.searchsorted(edges, total), len(edges) - 1)
    known = np.zeros(len(total), dtype=np.int64)
    whole = np.zeros(len(total), dtype=bool)
    for i, part in enumerate(model.classes):
        mine = index == i
        blocks = total[mine]
        x, y = _even(len(blocks), rng), _even(len(blocks), rng)
        share = np.interp(y, _SHARE_POINTS, part.known_share)
        more = 1 + np.rint(share * (blocks - 1)).astype(np.int64)
        known[mine] = np.where(x < part.none, 0, np.where(x < part.none + part.one, 1, more))
        whole[mine] = x >= 1 - part.whole
    return known, whole


def _even(n: int, rng: np.random.Generator) -> FloatArray:
    """`n` uniform numbers in random order, one from each of n equal strata: small classes keep their shares."""
    return (rng.permutation(n) + rng.random(n)) / max(n, 1)


class _Tree:
    """Prompts drawn so far, as paths of block ids."""

    def __init__(self, prompt: IntArray, block_size: int) -> None:
        self._prompt = prompt
        self._block_size = block_size
        self._full = np.zeros(len(prompt), dtype=np.int64)  # full blocks of each path drawn so far
        self._total = np.zeros(len(prompt), dtype=np.int64)
        self._next_id = 0
        self._owed = 0  # known blocks that could not be given yet
        self.paths: list[list[int]] = []

    def repeat(self, i: int, distance: float) -> bool:
        """Give row i the whole prompt of an earlier row with as many blocks; False where there is none."""
        blocks = -(-int(self._prompt[i]) // self._block_size)
        at = self._nearest(i, distance, self._total, blocks, exact=True)
        if at is None:
            return False
        self._prompt[i] = self._prompt[at]
        self._add(i, self.paths[at])
        return True

    def grow(self, i: int, wanted: int, distance: float) -> None:
        """Give row i `wanted` known blocks (and some that are owed), then new ids."""
        tokens = int(self._prompt[i])
        blocks = -(-tokens // self._block_size)
        most = blocks - 1
        wanted = min(most, wanted)
        asked = min(most, wanted + self._owed) if wanted > 1 else wanted
        known: list[int] = []
        if asked:
            at = self._nearest(i, distance, self._full, asked)
            at = int(np.argmax(self._full[:i])) if at is None and i else at
            known = [] if at is None else self.paths[at][: min(asked, int(self._full[at]))]
        self._owed += wanted - len(known)
        new = blocks - len(known)
        self._add(i, [*known, *range(self._next_id, self._next_id + new)])
        self._next_id += new

    def _add(self, i: int, path: list[int]) -> None:
        self._full[i] = int(self._prompt[i]) // self._block_size
        self._total[i] = len(path)
        self.paths.append(path)

    def _nearest(self, i: int, distance: float, sizes: IntArray, least: int, exact: bool = False) -> int | None:
        """The row nearest to i - distance whose size is at least (or exactly) `least`."""
        first = max(0, i - _WINDOW)
        target = max(first, i - round(distance))
        for reach in (256, _WINDOW):  # the near rows nearly always hold one: the whole window is seldom looked at
            low = max(first, target - reach)
            window = sizes[low : min(i, target + reach + 1)]
            found = np.flatnonzero(window == least if exact else window >= least)
            if len(found):
                return low + int(found[np.argmin(np.abs(found - (target - low)))])
        return None
