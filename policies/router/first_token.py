"""What routers by time to first token predict: prompts queued at a replica, then the uncached rest, at its speed.

Predicted first token = (prompt tokens sent there without a first token yet + the prompt's tokens that are not cached
there) / prefill speed, as Mooncake's Conductor estimates it for its prefill instances (FAST 2025).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from policies.router.candidates import Candidates
from policies.router.routed_prefixes import KnownPrefixes, Source, known_prefixes

if TYPE_CHECKING:
    from sim.views import ClusterView, RequestView, RouterSignals


@dataclass
class FirstToken:
    """Base of the routers. `prefix_source`: what the replicas' cache events told (precise), or what the router sent."""

    prefix_source: Source = "precise"
    scores: npt.NDArray[np.float64] | None = field(default=None, init=False, repr=False)  # predicted TTFT, seconds
    _signals: RouterSignals = field(init=False, repr=False)
    _prefixes: KnownPrefixes = field(init=False, repr=False)
    _candidates: Candidates = field(default_factory=Candidates, init=False, repr=False)

    def begin(self, signals: RouterSignals) -> None:
        self._signals = signals
        self._prefixes = known_prefixes(self.prefix_source, signals)

    def route(self, request: RequestView, cluster: ClusterView, now: float) -> int:
        self._candidates.of(cluster.replicas)
        pick = self._candidates.pick
        cached = pick(self._prefixes.tokens(request))
        tokens = pick(self._signals.prefill_tokens) + request.num_prompt_tokens - cached
        self.scores = seconds = tokens / self._candidates.speeds()[0]
        position = self.choose(cluster.outstanding_requests, seconds, cached, now - request.arrival_time)
        self._prefixes.sent(request, cluster.replicas[position])
        return position

    def choose(
        self,
        outstanding: npt.NDArray[np.int64],
        seconds: npt.NDArray[np.float64],
        cached: npt.NDArray[np.int64],
        waited: float,
    ) -> int:
        """Position of the replica, by its outstanding requests, predicted seconds to the first token and cached tokens;
        `waited`: seconds since the request arrived.
        """
        raise NotImplementedError
