"""The rule of routers that look for cached prefixes: the best match, unless it is poor or the loads are too unequal.

Source: SGLang's gateway (0.5.23). Loads are too unequal when largest - smallest > `balance_abs` and largest >
`balance_rel` * smallest (outstanding requests). Then, and where no replica has more than `cache_threshold` of the
prompt, the fewest outstanding requests decide. Among equally good matches they decide too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from policies.router.candidates import Candidates, least

if TYPE_CHECKING:
    from sim.views import ClusterView, RequestView, RouterSignals


@dataclass
class CacheAware:
    """Base of the routers; they say what is cached where. `balance_abs`: requests; the others are ratios."""

    cache_threshold: float = 0.3
    balance_abs: float = 64.0
    balance_rel: float = 1.5
    scores: npt.NDArray[np.int64] | None = field(default=None, init=False, repr=False)  # cached tokens
    _candidates: Candidates = field(default_factory=Candidates, init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.cache_threshold <= 1:
            raise ValueError(f"cache_threshold must be from 0 to 1 (got {self.cache_threshold})")
        if self.balance_abs < 0 or self.balance_rel < 0:
            raise ValueError("balance_abs and balance_rel must not be negative")

    def begin(self, signals: RouterSignals) -> None:
        """Learn where to look."""
        raise NotImplementedError

    def cached_tokens(self, request: RequestView) -> npt.NDArray[np.int64]:
        """Leading prompt tokens cached by each replica, by replica index."""
        raise NotImplementedError

    def sent(self, request: RequestView, cluster: ClusterView, position: int) -> None:
        """The request goes there."""

    def route(self, request: RequestView, cluster: ClusterView, now: float) -> int:
        self._candidates.of(cluster.replicas)
        loads = cluster.outstanding_requests
        self.scores = self._candidates.pick(self.cached_tokens(request))
        best = int(self.scores[self.scores.argmax()])  # a third of the time of max()
        if best > self.cache_threshold * request.num_prompt_tokens and not self._is_unequal(loads):
            position = self.owner(request, loads, self.scores == best)
        else:
            position = int(loads.argmin())
        self.sent(request, cluster, position)
        return position

    def owner(self, request: RequestView, loads: npt.NDArray[np.int64], owners: npt.NDArray[np.bool_]) -> int:
        """Position of one of the replicas with the best match."""
        return least(loads, owners)

    def _is_unequal(self, loads: npt.NDArray[np.int64]) -> bool:
        largest = int(loads[loads.argmax()])
        if largest <= self.balance_abs:
            return False
        smallest = int(loads[loads.argmin()])
        return largest - smallest > self.balance_abs and largest > self.balance_rel * smallest
