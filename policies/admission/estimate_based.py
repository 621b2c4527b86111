"""A request enters while the KV blocks that it and all before it are expected to need fit into the cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from policies.length_predictor.quantile import RecentLengths
from sim.decisions import ADMIT, Admission, Delay, Reject

if TYPE_CHECKING:
    from sim.views import ClusterView, RequestView


@dataclass
class EstimateBased:
    """Prices each request in blocks, prompt and expected output, and promises at most `overcommit` x the usable blocks.

    `pricing`: declared (the maximum that the client asks for; who asks for too much fills the cluster with promises) or
    learned (the `quantile` of what the tenant's latest `window` requests really used, from `min_samples` on, never
    more than declared: asking for more than one needs is neither rewarded nor harmful to others). `when_full`:
    reject, or delay by `retry_interval` seconds. A request that alone is priced above everything is let in when
    nothing else is promised.

    Source: own, after the textbook rule of admission by reserved memory. Ignores: shared prefixes, on
    which replica a request lands.
    """

    pricing: Literal["declared", "learned"] = "learned"
    overcommit: float = 1.0
    quantile: float = 0.9
    window: int = 500
    min_samples: int = 20
    when_full: Literal["reject", "delay"] = "reject"
    retry_interval: float = 0.5
    num_promised: int = field(default=0, init=False, repr=False)  # blocks
    _prices: dict[int, int] = field(default_factory=dict, init=False, repr=False)  # by row
    _seen: dict[str | None, RecentLengths] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not (self.overcommit > 0 and self.retry_interval > 0 and 0 < self.quantile <= 1):
            raise ValueError("overcommit and retry_interval must be above 0, quantile above 0 and at most 1")
        if not 1 <= self.min_samples <= self.window:
            raise ValueError(f"min_samples must be 1 to window (got {self.min_samples}, window {self.window})")

    def admit(self, request: RequestView, cluster: ClusterView, now: float) -> Admission:
        budget = self.overcommit * sum(replica.num_kv_blocks for replica in cluster.replicas)
        price = self.price(request, cluster.replicas[0].kv_block_size)
        if self.num_promised and self.num_promised + price > budget:
            if self.when_full == "delay":
                return Delay(now + self.retry_interval)
            return Reject(f"estimate_based: {price} blocks on top of {self.num_promised} of {budget:.0f}")
        self._prices[request.row] = price
        self.num_promised += price
        return ADMIT

    def price(self, request: RequestView, block_size: int) -> int:
        """Blocks that the request is expected to need."""
        return -(-int(request.num_prompt_tokens + self.expected_output(request)) // block_size)

    def expected_output(self, request: RequestView) -> float:
        """Output tokens, declared or learned."""
        seen = self._seen.get(request.tenant)
        if self.pricing == "declared" or seen is None or len(seen) < self.min_samples:
            return float(request.max_output_tokens)
        return min(float(request.max_output_tokens), seen.quantile(self.quantile))

    def ended(self, request: RequestView, num_output_tokens: int, finished: bool) -> None:
        """Take back what was promised to a request, and learn what it used."""
        self.num_promised -= self._prices.pop(request.row)
        if finished:
            self._seen.setdefault(request.tenant, RecentLengths(self.window)).add(num_output_tokens)
