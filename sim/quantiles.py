"""Statistics whose bits do not depend on the order or the packing of the values: exact sums, weighted quantiles.

Means and standard deviations use `math.fsum` (the correctly rounded sum, whatever the order); quantiles interpolate
linearly with the arithmetic of `numpy.quantile`, so that values packed as (value, multiplicity) give the bits that the
expanded array would give, without the memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from sim.units import FloatArray, IntArray

STATISTICS = ("mean", "std", "min", "p50", "p90", "p95", "p99", "max")
PERCENTILES = (50, 90, 95, 99)
# Elements turned into Python floats at a time: keeps the list that fsum reads from below 2 MB.
_CHUNK = 65_536


def exact_sum(values: FloatArray) -> float:
    """Correctly rounded sum of the values (0.0 for none)."""
    return math.fsum(_floats(values))


def mean(values: FloatArray) -> float:
    """Mean of at least one value, from the exact sum."""
    return exact_sum(values) / len(values)


def weighted_mean(values: FloatArray, multiplicities: IntArray) -> float:
    """Mean of at least one packed value, from the exact sum of the products."""
    return exact_sum(values * multiplicities) / int(multiplicities.sum())


def pack(values: FloatArray, multiplicities: IntArray) -> tuple[FloatArray, IntArray]:
    """Return the values in increasing order with their multiplicities; those with multiplicity 0 are left out.

    Raises ValueError for a negative multiplicity.
    """
    if (multiplicities < 0).any():
        raise ValueError(f"multiplicities must be >= 0, the smallest is {multiplicities.min()}")
    kept = multiplicities > 0
    values, multiplicities = values[kept], multiplicities[kept]
    order = np.argsort(values, kind="stable")
    return values[order], multiplicities[order]


def weighted_quantile(values: FloatArray, multiplicities: IntArray, q: FloatArray | Sequence[float]) -> FloatArray:
    """Quantiles of integer-weighted values: the bits of `np.quantile(np.repeat(values, multiplicities), q)`.

    `values` in increasing order and multiplicities > 0, as `pack` returns them; `q` in [0, 1]; shape (len(q),).
    Raises ValueError when there is no value.
    """
    if len(values) == 0:
        raise ValueError("a quantile needs at least one value")
    ends = np.cumsum(multiplicities)
    virtual = (int(ends[-1]) - 1) * np.asarray(q, dtype=np.float64)
    below = np.floor(virtual)
    low = values[np.searchsorted(ends, below, side="right")]
    high = values[np.searchsorted(ends, np.minimum(below + 1, ends[-1] - 1), side="right")]
    return _interpolate(low, high, virtual - below)


def describe(values: FloatArray) -> dict[str, float | None]:
    """The eight statistics of contract.md: mean, std (ddof 0), min, p50, p90, p95, p99, max; all None for no value."""
    if len(values) == 0:
        return dict.fromkeys(STATISTICS)
    average = mean(values)
    std = math.sqrt(exact_sum((values - average) ** 2) / len(values))
    percentiles = np.quantile(values, [p / 100 for p in PERCENTILES])
    return _statistics(average, std, float(values.min()), percentiles, float(values.max()))


def describe_weighted(values: FloatArray, multiplicities: IntArray) -> dict[str, float | None]:
    """The same statistics of packed values (see `pack`)."""
    if len(values) == 0:
        return dict.fromkeys(STATISTICS)
    average = weighted_mean(values, multiplicities)
    std = math.sqrt(exact_sum((values - average) ** 2 * multiplicities) / int(multiplicities.sum()))
    percentiles = weighted_quantile(values, multiplicities, [p / 100 for p in PERCENTILES])
    return _statistics(average, std, float(values[0]), percentiles, float(values[-1]))


def jain_index(values: FloatArray) -> float | None:
    """Jain's fairness index (sum x)^2 / (n sum x^2): 1 for equal shares, 1/n when one takes all; None for none."""
    squares = exact_sum(values * values)
    return exact_sum(values) ** 2 / (len(values) * squares) if squares > 0 else None


def _statistics(average: float, std: float, low: float, middle: FloatArray, high: float) -> dict[str, float | None]:
    return dict(zip(STATISTICS, (average, std, low, *(float(p) for p in middle), high), strict=True))


def _interpolate(low: FloatArray, high: FloatArray, share: FloatArray) -> FloatArray:
    # From the nearer side, as NumPy does: monotone in `share`, and equal values give themselves.
    return np.where(share >= 0.5, high - (high - low) * (1 - share), low + (high - low) * share)


def _floats(values: FloatArray) -> Iterator[float]:
    for start in range(0, len(values), _CHUNK):
        yield from values[start : start + _CHUNK].tolist()
