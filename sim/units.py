"""Units: seconds, bytes, tokens and FLOP inside the simulator; the time grid on which all instants lie.

Every arrival and every duration is rounded once to a multiple of `TICK` (2**-30 s, about 1 ns). Sums of such numbers
are exact in float64 for 97 days, in any order, which is what lets fast-forward, stepping and the parts of a latency
agree to the last bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    FloatArray = npt.NDArray[np.float64]
    IntArray = npt.NDArray[np.int64]

TICKS_PER_SECOND = float(2**30)
TICK = 1.0 / TICKS_PER_SECOND

KIB = 1024
MIB = 1024**2
GIB = 1024**3


def to_grid(seconds: float) -> float:
    """Round `seconds` to the time grid (half to even, as `np.rint` does)."""
    return round(seconds * TICKS_PER_SECOND) * TICK


def array_to_grid(seconds: FloatArray) -> FloatArray:
    """Round an array of seconds to the time grid; the same bits as `to_grid` on each element."""
    import numpy as np

    return np.rint(seconds * TICKS_PER_SECOND) * TICK
