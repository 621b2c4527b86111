"""bfloat16 as 16-bit integers on the host, and relative errors of kernels against float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from sim.units import FloatArray

    Bits = npt.NDArray[np.uint16]


def to_bits(values: npt.NDArray[Any]) -> Bits:
    """Round to bfloat16 (to nearest, ties to even), as raw bits; finite values only."""
    words = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((words + np.uint32(0x7FFF) + ((words >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def from_bits(bits: npt.NDArray[Any]) -> FloatArray:
    """The float64 values of bfloat16 bits."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def relative_error(found: FloatArray, expected: FloatArray) -> float:
    """Root mean square of the difference over that of `expected`; infinite where `found` is not finite."""
    if not np.isfinite(found).all():
        return float("inf")
    return float(np.sqrt(np.mean((found - expected) ** 2) / max(float(np.mean(expected**2)), 1e-300)))
