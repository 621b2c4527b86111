"""The replica to which most of the prompt's beginning was sent before, as far as the router remembers.

The rule and its thresholds are those of SGLang's gateway (0.5.23, its tree of routed prompts); the memory is that of
llm-d's approximate prefix index: least recently sent first out, by default as large as the replica's KV memory. It
never hears what the engines really keep. The unit is the prefix id of the workload (`hash_block_size` tokens).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from policies.router.cache_aware import CacheAware
from policies.router.routed_prefixes import RoutedPrefixes

if TYPE_CHECKING:
    from sim.views import ClusterView, RequestView, RouterSignals


@dataclass
class PrefixApproximate(CacheAware):
    """The best match with the prompts that were sent there, if loads allow.

    `capacity_tokens`: tokens that the router remembers of each replica; null: as many as its KV memory holds.
    """

    capacity_tokens: int | None = None
    _prefixes: RoutedPrefixes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.capacity_tokens is not None and self.capacity_tokens < 1:
            raise ValueError(f"capacity_tokens must be at least 1, or null (got {self.capacity_tokens})")

    def begin(self, signals: RouterSignals) -> None:
        self._prefixes = RoutedPrefixes(signals, self.capacity_tokens)

    def cached_tokens(self, request: RequestView) -> npt.NDArray[np.int64]:
        return self._prefixes.tokens(request)

    def sent(self, request: RequestView, cluster: ClusterView, position: int) -> None:
        self._prefixes.sent(request, cluster.replicas[position])
