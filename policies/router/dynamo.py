"""Dynamo's KV router: the least cost in blocks, prompts still to be computed less the overlap, plus blocks in decode.

cost = prefill_scale * max(0, (prefill tokens there + prompt) / block - overlap_credit * cached blocks)
     + blocks in use there with the request placed (shared ones once) + request_weight * active requests
Source: Dynamo 1.6. At temperature 0 the least cost, ties at random; above it a softmax over -cost / ((max - min) *
temperature). Prompts count until their first token, blocks until the end; output blocks are not counted, as by default.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from policies.router.candidates import Candidates
from policies.router.routed_prefixes import KnownPrefixes, Source, known_prefixes

if TYPE_CHECKING:
    from sim.views import ClusterView, PrefixIndex, RequestView, RouterSignals

Numbers = npt.NDArray[np.float64]


@dataclass
class Dynamo:
    """Dynamo's KV router (1.6): the least prefill and decode blocks, cached ones taken off.

    `block_size`: tokens of the unit of cost. `prefix_source` approximate: without cache events, from its own routing
    (forgotten beyond the replica's KV memory, where Dynamo forgets by age). `prefill_scale`, `overlap_credit`,
    `request_weight`: factors of the cost. `temperature`: of the draw, 0 for the least cost.
    """

    prefill_scale: float = 1.0
    overlap_credit: float = 1.0
    request_weight: float = 0.0
    temperature: float = 0.0
    block_size: int = 128
    prefix_source: Source = "precise"
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0), repr=False)
    scores: Numbers | None = field(default=None, init=False, repr=False)  # costs, blocks
    _signals: RouterSignals = field(init=False, repr=False)
    _prefixes: KnownPrefixes = field(init=False, repr=False)
    _active: ActiveBlocks = field(init=False, repr=False)
    _candidates: Candidates = field(default_factory=Candidates, init=False, repr=False)

    def __post_init__(self) -> None:
        if min(self.prefill_scale, self.overlap_credit, self.request_weight, self.temperature) < 0:
            raise ValueError("prefill_scale, overlap_credit, request_weight and temperature must not be negative")
        if self.block_size < 1:
            raise ValueError(f"block_size must be at least 1 (got {self.block_size})")

    def begin(self, signals: RouterSignals) -> None:
        self._signals = signals
        self._prefixes = known_prefixes(self.prefix_source, signals)
        self._active = ActiveBlocks(signals)

    def route(self, request: RequestView, cluster: ClusterView, now: float) -> int:
        indices = self._candidates.of(cluster.replicas)
        self.scores = self._costs(request, cluster)
        position = self._draw(self.scores)
        self._prefixes.sent(request, cluster.replicas[position])
        self._active.sent(request, int(indices[position]))
        return position

    def ended(self, request: RequestView, replica_index: int) -> None:
        self._active.ended(request, replica_index)

    def _costs(self, request: RequestView, cluster: ClusterView) -> Numbers:
        pick = self._candidates.pick
        cached = self._prefixes.tokens(request)
        prompts = pick(self._signals.prefill_tokens) + request.num_prompt_tokens
        prefill = np.maximum(0.0, (prompts - self.overlap_credit * pick(cached)) / self.block_size)
        decode = pick(self._active.tokens_with(request)) / self.block_size
        costs: Numbers = self.prefill_scale * prefill + decode + self.request_weight * cluster.outstanding_requests
        return costs

    def _draw(self, costs: Numbers) -> int:
        smallest, largest = float(costs.min()), float(costs.max())
        if self.temperature == 0 or smallest == largest:
            best = np.flatnonzero(costs == smallest)
            return int(best[self.rng.integers(len(best))]) if len(best) > 1 else int(best[0])
        weights = softmax((smallest - costs) / ((largest - smallest) * self.temperature))
        return min(int(np.searchsorted(np.cumsum(weights), self.rng.random(), side="right")), len(costs) - 1)


def softmax(logits: Numbers) -> Numbers:
    """Shares in proportion to e^logits."""
    powers = np.exp(logits)
    shares: Numbers = powers / powers.sum()
    return shares


class ActiveBlocks:
    """Prompt tokens in the blocks of outstanding requests by replica; a prefix that several share counts once."""

    def __init__(self, signals: RouterSignals) -> None:
        self._signals = signals
        self._index: PrefixIndex = signals.make_index()
        self._uses: list[Counter[object]] = [Counter() for _ in range(signals.num_replicas)]  # of ids by replica
        self._tokens = np.zeros(signals.num_replicas, dtype=np.int64)
        self._sent: dict[int, tuple[object, ...]] = {}  # ids by row

    def tokens_with(self, request: RequestView) -> npt.NDArray[np.int64]:
        """By replica index, as if the request were there."""
        shared = self._index.leading_closed(self._signals.prefix(request)) * self._signals.block_size
        alone: npt.NDArray[np.int64] = np.maximum(0, request.num_prompt_tokens - shared)
        return self._tokens + alone

    def sent(self, request: RequestView, replica: int) -> None:
        """The request is outstanding there."""
        ids = self._sent[request.row] = tuple(dict.fromkeys(self._signals.prefix(request)))
        uses = self._uses[replica]
        fresh = [key for key in ids if key not in uses]
        uses.update(ids)
        self._index.add(fresh, replica)
        self._tokens[replica] += len(fresh) * self._signals.block_size if ids else request.num_prompt_tokens

    def ended(self, request: RequestView, replica: int) -> None:
        """The request is not outstanding any more."""
        ids = self._sent.pop(request.row, None)
        if ids is None:
            return
        uses = self._uses[replica]
        gone = [key for key in ids if uses[key] == 1]
        uses.subtract(ids)
        for key in gone:
            del uses[key]
        self._index.discard(gone, replica)
        self._tokens[replica] -= len(gone) * self._signals.block_size if ids else request.num_prompt_tokens
