"""vLLM production-stack's prefix-aware router: any of the replicas with the longest match, else the lowest rate.

Source: the router of vLLM's production-stack. It draws among those with the longest match at random; its trie of routed
prompts forgets nothing, and it looks at no load, except that without a match the replica with the fewest requests of
the last `window` seconds is taken.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from policies.router.candidates import Candidates
from policies.router.routed_prefixes import RoutedPrefixes

if TYPE_CHECKING:
    from sim.views import ClusterView, RequestView, RouterSignals

FORGETS_NOTHING = 2**62


@dataclass
class ProductionStack:
    """vLLM production-stack's prefix-aware router: the longest match whatever the load, else the lowest rate.

    `min_match_tokens`: a match must be longer. `window`: seconds. Prefix ids stand for its 128-character chunks.
    """

    min_match_tokens: int = 0
    window: float = 60.0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0), repr=False)
    scores: npt.NDArray[np.int64] | None = field(default=None, init=False, repr=False)  # matched tokens
    _prefixes: RoutedPrefixes = field(init=False, repr=False)
    _sent: deque[tuple[float, int]] = field(default_factory=deque, init=False, repr=False)  # (time, replica index)
    _counts: npt.NDArray[np.int64] = field(init=False, repr=False)
    _candidates: Candidates = field(default_factory=Candidates, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.min_match_tokens < 0 or self.window <= 0:
            raise ValueError("min_match_tokens must not be negative, window must be above 0")

    def begin(self, signals: RouterSignals) -> None:
        self._prefixes = RoutedPrefixes(signals, FORGETS_NOTHING)
        self._counts = np.zeros(signals.num_replicas, dtype=np.int64)

    def route(self, request: RequestView, cluster: ClusterView, now: float) -> int:
        indices = self._candidates.of(cluster.replicas)
        self.scores = self._candidates.pick(self._prefixes.tokens(request))
        best = int(self.scores.max())
        if best > self.min_match_tokens:
            owners = np.flatnonzero(self.scores == best)
            position = int(owners[self.rng.integers(len(owners))])
        else:
            position = int(self._candidates.pick(self._recent(now)).argmin())
        self._sent.append((now, int(indices[position])))
        self._counts[indices[position]] += 1
        self._prefixes.sent(request, cluster.replicas[position])
        return position

    def _recent(self, now: float) -> npt.NDArray[np.int64]:
        """Requests sent to each replica within the window, by replica index."""
        while self._sent and self._sent[0][0] < now - self.window:
            self._counts[self._sent.popleft()[1]] -= 1
        return self._counts
