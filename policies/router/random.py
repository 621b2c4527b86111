"""A replica drawn uniformly at random."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from sim.views import ClusterView, RequestView


@dataclass
class Random:
    """Uniform over the replicas, from the router's own random stream."""

    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0), repr=False)

    def route(self, request: RequestView, cluster: ClusterView, now: float) -> int:
        return int(self.rng.integers(len(cluster.replicas)))
