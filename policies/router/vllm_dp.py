"""vLLM's data-parallel front end: the least of requests there plus 6 * waiting * (KV usage above one half).

Source: the internal load balancer of vLLM (0.33) with one front end; it looks at its engines every 100 ms and counts
what it sends in between: `cluster.router: {snapshot_interval: 100ms, count_sent: true}`. Ties go in turn.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from policies.router.candidates import Candidates

if TYPE_CHECKING:
    from sim.views import ClusterView, RequestView, RouterSignals

PRESSURE = 6.0
HALF = 0.5


@dataclass
class VllmDp:
    """vLLM's data-parallel front end (0.33): requests there, and waiting ones weighed by memory pressure."""

    scores: npt.NDArray[np.float64] | None = field(default=None, init=False, repr=False)
    _signals: RouterSignals = field(init=False, repr=False)
    _candidates: Candidates = field(default_factory=Candidates, init=False, repr=False)
    _turn: int = field(default=0, init=False, repr=False)

    def begin(self, signals: RouterSignals) -> None:
        self._signals = signals

    def route(self, request: RequestView, cluster: ClusterView, now: float) -> int:
        self._candidates.of(cluster.replicas)
        pick = self._candidates.pick
        pressure = PRESSURE * np.maximum(0.0, pick(self._signals.kv_usage) - HALF)
        self.scores = cluster.outstanding_requests + pick(self._signals.num_waiting) * pressure
        start = self._turn % len(self.scores)
        self._turn = start + 1
        return (start + int(np.roll(self.scores, -start).argmin())) % len(self.scores)
