"""The replica with the least predicted time to first token: prompts queued there, then the uncached rest of this one.

Mooncake's Conductor (FAST 2025) on its prefill instances. Ties: fewest outstanding requests, then the first. Left out:
the fetch of a longer prefix from another instance, which the simulator does not copy, the early rejection by target
(an admission policy's matter), and the predicted load of decoding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from policies.router.candidates import least
from policies.router.first_token import FirstToken


@dataclass
class Mooncake(FirstToken):
    """The parameters of its base."""

    def choose(
        self,
        outstanding: npt.NDArray[np.int64],
        seconds: npt.NDArray[np.float64],
        cached: npt.NDArray[np.int64],
        waited: float,
    ) -> int:
        return least(outstanding, seconds == seconds.min())
