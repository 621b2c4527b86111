"""Long prompts go to the last replica, the others to the rest in turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.views import ClusterView, RequestView


@dataclass
class LengthSplit:
    """Long prompts go to the last replica, the others to the rest in turn.

    `threshold`: tokens of a prompt from which on it is long. Source: own example. Ignores: load.
    """

    threshold: int = 1000
    _next: int = field(default=0, init=False, repr=False)

    def route(self, request: RequestView, cluster: ClusterView, now: float) -> int:
        last = len(cluster.replicas) - 1
        if last == 0 or request.num_prompt_tokens >= self.threshold:
            return last
        self._next += 1
        return self._next % last
