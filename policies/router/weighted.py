"""The replica with the largest weighted sum of scores for queue, KV memory, load, cached prefix and session.

Source: the scorers of llm-d's and the Gateway API's endpoint picker, each from 0 to 1, higher is better. `queue`:
(max - mine) / (max - min) of waiting requests, 1 where all are equal; `kv`: 1 - usage; `load`: (max - mine) / max of
outstanding requests; `prefix`: cached share of the prompt; `session`: 1 for the replica of its latest request.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from policies.router.candidates import Candidates
from policies.router.routed_prefixes import KnownPrefixes, Source, known_prefixes

if TYPE_CHECKING:
    from sim.views import ClusterView, RequestView, RouterSignals

Scores = npt.NDArray[np.float64]


@dataclass
class Weighted:
    """The largest weighted sum of scores for queue, KV memory, load, cached prefix and session.

    A scorer of weight 0 is not asked. `prefix_source`: what the router sent (forgotten beyond `capacity_tokens` a
    replica; null: its KV memory), or what the replicas' cache events told. `ties`: who wins among equal sums.
    """

    queue: float = 1.0
    kv: float = 1.0
    load: float = 0.0
    prefix: float = 1.0
    session: float = 0.0
    prefix_source: Source = "approximate"
    capacity_tokens: int | None = None
    ties: Literal["random", "first"] = "random"
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0), repr=False)
    scores: Scores | None = field(default=None, init=False, repr=False)
    _signals: RouterSignals = field(init=False, repr=False)
    _prefixes: KnownPrefixes = field(init=False, repr=False)
    _homes: dict[object, int] = field(default_factory=dict, init=False, repr=False)  # replica index by session
    _candidates: Candidates = field(default_factory=Candidates, init=False, repr=False)

    def __post_init__(self) -> None:
        weights = (self.queue, self.kv, self.load, self.prefix, self.session)
        if min(weights) < 0 or not sum(weights):
            raise ValueError("weights must not be negative, and one must be above 0")
        if self.capacity_tokens is not None and self.capacity_tokens < 1:
            raise ValueError(f"capacity_tokens must be at least 1, or null (got {self.capacity_tokens})")

    def begin(self, signals: RouterSignals) -> None:
        self._signals = signals
        self._prefixes = known_prefixes(self.prefix_source, signals, self.capacity_tokens)

    def route(self, request: RequestView, cluster: ClusterView, now: float) -> int:
        indices = self._candidates.of(cluster.replicas)
        self.scores = total = self._total(request, cluster, indices)
        best = np.flatnonzero(total == total.max())
        position = int(best[self.rng.integers(len(best)) if self.ties == "random" and len(best) > 1 else 0])
        if self.prefix:
            self._prefixes.sent(request, cluster.replicas[position])
        if self.session and request.session is not None:
            self._homes[request.session] = int(indices[position])
        return position

    def _total(self, request: RequestView, cluster: ClusterView, indices: npt.NDArray[np.int64]) -> Scores:
        total = np.zeros(len(indices))
        if self.queue:
            total += self.queue * spread(self._candidates.pick(self._signals.num_waiting))
        if self.kv:
            total += self.kv * (1.0 - self._candidates.pick(self._signals.kv_usage))
        if self.load:
            total += self.load * share_below(cluster.outstanding_requests)
        if self.prefix:
            cached = self._candidates.pick(self._prefixes.tokens(request))
            total += self.prefix * (cached / request.num_prompt_tokens)
        if self.session and request.session is not None:
            total += self.session * (indices == self._homes.get(request.session, -1))
        return total


def spread(numbers: npt.NDArray[np.int64]) -> Scores:
    """1 for the least, 0 for the largest, linear in between; 1 for all where they are equal."""
    largest, smallest = int(numbers.max()), int(numbers.min())
    if largest == smallest:
        return np.ones(len(numbers))
    scores: Scores = (largest - numbers) / (largest - smallest)
    return scores


def share_below(numbers: npt.NDArray[np.int64]) -> Scores:
    """1 for none, 0 for the largest, linear in between."""
    scores: Scores = 1.0 - numbers / max(1, int(numbers.max()))
    return scores
