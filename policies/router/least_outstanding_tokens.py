"""The replica with the fewest outstanding tokens; ties go to the first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.views import ClusterView, RequestView


@dataclass
class LeastOutstandingTokens:
    """Tokens of a request are its prompt plus its predicted (else declared) output, counted from routing to its end."""

    def route(self, request: RequestView, cluster: ClusterView, now: float) -> int:
        return int(cluster.outstanding_tokens.argmin())
