"""Among the replicas predicted to give the first token in time the one with the most cached prefix, else the soonest.

Predicted first token = (prompt tokens sent there without a first token yet + the prompt's tokens that are not cached
there) / prefill speed. In time means within `ttft` seconds of the arrival. Ties: fewest outstanding requests. The rule
packs sessions and prefixes together as far as the target allows; with a target that none can meet it is the least
predicted TTFT of Mooncake's Conductor (FAST 2025) without its transfers. Decode speed is not predicted.
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
class SloAware:
    """The most cached prefix among those predicted to give the first token within `ttft` seconds, else the soonest.

    `prefix_source`: what the router sent, or what the replicas' cache events told.
    """

    ttft: float = 1.0
    prefix_source: Literal["approximate", "precise"] = "approximate"
    scores: npt.NDArray[np.float64] | None = field(default=None, init=False, repr=False)  # predicted TTFT, seconds
    _signals: RouterSignals = field(init=False, repr=False)
    _prefixes: RoutedPrefixes = field(init=False, repr=False)
    _candidates: Candidates = field(default_factory=Candidates, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.ttft <= 0:
            raise ValueError(f"ttft must be above 0 (got {self.ttft})")

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
        in_time = now - request.arrival_time + self.scores <= self.ttft
        if in_time.any():
            position = least(cluster.outstanding_requests, in_time & (cached == cached[in_time].max()))
        else:
            position = least(cluster.outstanding_requests, self.scores == self.scores.min())
        if not precise:
            self._prefixes.sent(request, cluster.replicas[position])
        return position
