"""A request is split if its prefill would hold up running requests for longer, in sum, than its transfer takes."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import TYPE_CHECKING

from policies.disaggregation.candidates import split, together, where_together

if TYPE_CHECKING:
    from sim.decisions import Placement
    from sim.views import PoolView, RequestView


@dataclass
class ByPredictedInterference:
    """Split if n * d > weight * t.

    n: running requests a replica in the pool where it would stay together; d: seconds of a step that computes its
    uncached prompt alone, by which each of them is held up; t: seconds in which the KV of the prompt would cross the
    network now, by which the split holds up the request itself. `weight`: how much the second counts.
    """

    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.weight < 0:
            raise ValueError(f"weight must not be negative (got {self.weight})")

    def place(self, request: RequestView, pools: Ordered[PoolView], now: float) -> Placement:
        candidate, splitting = where_together(pools), split(pools)
        if candidate is None:
            return splitting
        running = sum(replica.num_running for replica in candidate.replicas) / len(candidate.replicas)
        uncached = request.num_prompt_tokens - candidate.num_cached_tokens(request)
        delay = running * candidate.prefill_duration(uncached)
        transfer = pools[splitting.prefill_pool].transfer_duration(request.num_prompt_tokens)
        return splitting if delay > self.weight * transfer else together(pools)
