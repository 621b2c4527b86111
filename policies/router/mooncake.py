"""The replica with the least predicted time to first token: prompts queued there, then the uncached rest of this one.

Predicted first token = (prompt tokens sent there without a first token yet + the prompt's tokens that are not cached
there) / prefill speed, as Mooncake's Conductor estimates it for its prefill instances (FAST 2025). Ties: fewest
outstanding requests, then the first. Left out: the fetch of a longer prefix from another instance, which the simulator
does not copy, the early rejection by target (an admission policy's matter), and the predicted load of decoding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from policies.router.candidates import Candidates, least
from policies.router.routed_prefixes import RoutedPrefixes

if TYPE_CHECKING:
    from sim.views import ClusterView, RequestView, RouterSignals


@dataclass
class Mooncake:
    """`prefix_source`: what the replicas' cache events told (precise), or what the router sent."""

    prefix_source: Literal["approximate", "precise"] = "precise"
    scores: npt.NDArray[np.float64] | None = field(default=None, init=False, repr=False)  # predicted TTFT, seconds
    _signals: RouterSignals = field(init=False, repr=False)
    _prefixes: RoutedPrefixes = field(init=False, repr=False)
    _candidates: Candidates = field(default_factory=Candidates, init=False, repr=False)

    def begin(self, signals: RouterSignals) -> None:
        self._signals = signals
        self._prefixes = RoutedPrefixes(signals, None)

    def route(self, request: RequestView, cluster: ClusterView, now: float) -> int:
        self._candidates.of(cluster.replicas)
        pick = self._candidates.pick
        precise = self.prefix_source == "precise"
        cached = pick(self._signals.cached_tokens(request) if precise else self._prefixes.tokens(request))
        tokens = pick(self._signals.prefill_tokens) + request.num_prompt_tokens - cached
        self.scores = tokens / self._candidates.speeds()[0]
        position = least(cluster.outstanding_requests, self.scores == self.scores.min())
        if not precise:
            self._prefixes.sent(request, cluster.replicas[position])
        return position
