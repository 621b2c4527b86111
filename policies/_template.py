"""The replica with the smallest share of KV blocks in use; ties go to the fewest requests, then to the first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.views import ClusterView, RequestView


@dataclass
class LeastKvUsage:
    """A router to copy: its fields are its YAML parameters, its one method answers the question, and that is all.

    `step`: width of the classes into which shares are rounded down, so that small differences do not decide. Source:
    own example. Ignores: the length of the request. Try it: `servesim policies check policies._template:LeastKvUsage`.
    """

    step: float = 0.05

    def route(self, request: RequestView, cluster: ClusterView, now: float) -> int:
        loads = [(replica.kv_usage // self.step, replica.num_outstanding) for replica in cluster.replicas]
        return loads.index(min(loads))
