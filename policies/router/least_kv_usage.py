"""The replica with the smallest share of its KV blocks in use; ties go to the fewest outstanding requests.

Source: the KV-cache utilisation scorer of the Gateway API inference extension and llm-d, alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from policies.router.candidates import least

if TYPE_CHECKING:
    from sim.views import ClusterView, RequestView


@dataclass
class LeastKvUsage:
    """The smallest share of KV blocks in use; what is only cached is not in use."""

    def route(self, request: RequestView, cluster: ClusterView, now: float) -> int:
        usage = np.array([replica.kv_usage for replica in cluster.replicas])
        return least(cluster.outstanding_requests, usage == usage.min())
