"""A quantile of the output lengths seen lately, of all requests or by tenant and class."""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from sim.views import RequestView


class RecentLengths:
    """The latest output lengths of one kind of request, in order of size too."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._latest: deque[int] = deque()
        self._sorted: list[int] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, length: int) -> None:
        """Learn one more; the oldest beyond the window is forgotten."""
        self._latest.append(length)
        insort(self._sorted, length)
        if len(self._latest) > self._window:
            self._sorted.remove(self._latest.popleft())

    def quantile(self, share: float) -> float:
        """The least length that at least `share` of those seen do not exceed."""
        return float(self._sorted[max(0, math.ceil(share * len(self._sorted)) - 1)])


@dataclass
class Quantile:
    """A quantile of the lengths of finished requests; the declared maximum until `min_samples` of a kind have finished.

    `quantile`: which one (0.5: the median). `by`: what makes a kind: all, tenant, request_class or both. `window`:
    how many of the latest are remembered. Never more than the request declares. Source: textbook (empirical
    quantile of a sliding window). Ignores: what a prompt says; that
    requests which are still running tend to be the long ones, so that early predictions are short.
    """

    quantile: float = 0.5
    by: Literal["all", "tenant", "request_class", "both"] = "both"
    window: int = 1000
    min_samples: int = 10
    _kinds: dict[tuple[str | None, ...], RecentLengths] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 < self.quantile <= 1:
            raise ValueError(f"quantile must be above 0 and at most 1 (got {self.quantile})")
        if not 1 <= self.min_samples <= self.window:
            raise ValueError(f"min_samples must be 1 to window (got {self.min_samples}, window {self.window})")

    def _kind(self, request: RequestView) -> tuple[str | None, ...]:
        if self.by == "all":
            return ()
        if self.by == "tenant":
            return (request.tenant,)
        return (request.request_class,) if self.by == "request_class" else (request.tenant, request.request_class)

    def predict(self, request: RequestView, true_output_tokens: int | None) -> float | None:
        seen = self._kinds.get(self._kind(request))
        declared = float(request.max_output_tokens)
        return declared if seen is None or len(seen) < self.min_samples else min(seen.quantile(self.quantile), declared)

    def learn(self, request: RequestView, num_output_tokens: int) -> None:
        self._kinds.setdefault(self._kind(request), RecentLengths(self.window)).add(num_output_tokens)
