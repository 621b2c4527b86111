"""The less loaded of two replicas drawn at random; ties go to the first drawn.

Source: Mitzenmacher (2001); SGLang's gateway (0.5.23) compares KV usage where it has it, else requests in flight. With
an old picture of the loads not everybody runs to the same replica.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from sim.views import ClusterView, RequestView


@dataclass
class PowerOfTwoChoices:
    """The less loaded of two drawn at random. `compare`: what load is; `choices`: how many are drawn."""

    compare: Literal["outstanding_requests", "outstanding_tokens", "kv_usage"] = "outstanding_requests"
    choices: int = 2
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0), repr=False)

    def __post_init__(self) -> None:
        if self.choices < 1:
            raise ValueError(f"choices must be at least 1 (got {self.choices})")

    def route(self, request: RequestView, cluster: ClusterView, now: float) -> int:
        drawn = self._draw(len(cluster.replicas))
        if self.compare == "kv_usage":
            return min(drawn, key=lambda position: cluster.replicas[position].kv_usage)
        loads = cluster.outstanding_requests
        if self.compare == "outstanding_tokens":
            loads = cluster.outstanding_tokens
        return min(drawn, key=lambda position: int(loads[position]))

    def _draw(self, count: int) -> list[int]:
        """Distinct positions in random order."""
        if self.choices == 2 and count > 1:  # the common case, ten times faster than the general one
            first, step = int(self.rng.integers(count)), int(self.rng.integers(count - 1))
            return [first, (first + 1 + step) % count]
        return [int(i) for i in self.rng.permutation(count)[: self.choices]]
