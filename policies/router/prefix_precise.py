"""The replica that caches most of the prompt's beginning, as the cache events of the replicas told.

Sources: the KV-event mode of SGLang's gateway (0.5.23) and llm-d's precise prefix index: ids from the first one on,
without a gap. Events take `cluster.router.event_delay` seconds. With `cache_threshold` 0 any match decides, as there;
the loads' thresholds are those of the gateway.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from policies.router.cache_aware import CacheAware

if TYPE_CHECKING:
    from sim.views import RequestView, RouterSignals


@dataclass
class PrefixPrecise(CacheAware):
    """The best match with what the replicas cache, as their events told, if loads allow.

    What is being computed counts as soon as its step is scheduled and told; a prompt that waits does not count.
    """

    cache_threshold: float = 0.0
    _signals: RouterSignals = field(init=False, repr=False)

    def begin(self, signals: RouterSignals) -> None:
        self._signals = signals

    def cached_tokens(self, request: RequestView) -> npt.NDArray[np.int64]:
        return self._signals.cached_tokens(request)
