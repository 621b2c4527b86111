"""Among the replicas predicted to give the first token in time the one with the most cached prefix, else the soonest.

In time means within `ttft` seconds of the arrival. Ties: fewest outstanding requests. The rule
packs sessions and prefixes together as far as the target allows; with a target that none can meet it is the least
predicted TTFT of Mooncake's Conductor (FAST 2025) without its transfers. Decode speed is not predicted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from policies.router.candidates import least
from policies.router.first_token import FirstToken
from policies.router.routed_prefixes import Source


@dataclass
class SloAware(FirstToken):
    """The most cached prefix among those predicted to give the first token within `ttft` seconds, else the soonest.

    `prefix_source`: what the router sent, or what the replicas' cache events told.
    """

    prefix_source: Source = "approximate"
    ttft: float = 1.0

    def __post_init__(self) -> None:
        if self.ttft <= 0:
            raise ValueError(f"ttft must be above 0 (got {self.ttft})")

    def choose(
        self,
        outstanding: npt.NDArray[np.int64],
        seconds: npt.NDArray[np.float64],
        cached: npt.NDArray[np.int64],
        waited: float,
    ) -> int:
        in_time = waited + seconds <= self.ttft
        if in_time.any():
            return least(outstanding, in_time & (cached == cached[in_time].max()))
        return least(outstanding, seconds == seconds.min())
