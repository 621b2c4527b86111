"""Prompts with more tokens than a threshold that the decoding side has not cached are split."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import TYPE_CHECKING

from policies.disaggregation.candidates import split, together, where_together

if TYPE_CHECKING:
    from sim.decisions import Placement
    from sim.views import PoolView, RequestView


@dataclass
class ByUncachedTokens:
    """Conditional disaggregation as in Dynamo: a remote prefill only where much is left to compute.

    `threshold`: prompt tokens that no replica of the pool has cached in which the request would stay together. The
    router may choose another replica than the one with the longest match.
    """

    threshold: int

    def __post_init__(self) -> None:
        if self.threshold < 0:
            raise ValueError(f"threshold must not be negative (got {self.threshold})")

    def place(self, request: RequestView, pools: Ordered[PoolView], now: float) -> Placement:
        if request.num_prompt_tokens <= self.threshold:
            return together(pools)
        candidate = where_together(pools)
        cached = 0 if candidate is None else candidate.num_cached_tokens(request)
        return split(pools) if request.num_prompt_tokens - cached > self.threshold else together(pools)
