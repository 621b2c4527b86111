"""A smooth correction over several axes: piecewise linear between knots, in the logarithms of axes and value.

A fitted formula misses what is systematic but has no closed form (tile sizes, cache reuse, kernel choice). Such
residuals, `log(measured / formula)`, are described by few coefficients at knots; between knots they are interpolated,
beyond the outermost knots the boundary value holds. Evaluated only when tables are built.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from sim.units import FloatArray, IntArray


@dataclass(frozen=True)
class Surface:
    """`exp(c)` with c interpolated at log2 of the coordinates.

    `knots`: for each axis, increasing values of log2. `values`: coefficients in row-major order of the knots.
    """

    knots: tuple[tuple[float, ...], ...]
    values: tuple[float, ...]

    def factor(self, *coordinates: FloatArray) -> FloatArray:
        """The factor at each point; coordinates are positive arrays of one shape, one per axis."""
        coefficients = np.asarray(self.values)
        total = np.zeros(np.broadcast_shapes(*(c.shape for c in coordinates)))
        for index, weight in corners(self.knots, coordinates):
            total = total + weight * coefficients[index]
        return np.exp(total)


def corners(
    knots: tuple[tuple[float, ...], ...], coordinates: tuple[FloatArray, ...]
) -> list[tuple[IntArray, FloatArray]]:
    """For each corner of the cells that the points lie in: flat index of its coefficient, and its weight."""
    cells = [_cell(np.asarray(axis), values) for axis, values in zip(knots, coordinates, strict=True)]
    result: list[tuple[IntArray, FloatArray]] = []
    for corner in product((0, 1), repeat=len(knots)):
        index: IntArray = np.zeros(1, dtype=np.int64)
        weight: FloatArray = np.ones(1)
        for side, axis, (low, fraction) in zip(corner, knots, cells, strict=True):
            index = index * len(axis) + low + side
            weight = weight * (fraction if side else 1.0 - fraction)
        result.append((index, weight))
    return result


def _cell(axis: FloatArray, values: FloatArray) -> tuple[IntArray, FloatArray]:
    """Lower knot of each value's cell and the fraction of the way to the upper knot."""
    position = np.clip(np.log2(values), axis[0], axis[-1])
    low = np.clip(np.searchsorted(axis, position, side="right") - 1, 0, len(axis) - 2)
    return low, (position - axis[low]) / (axis[low + 1] - axis[low])
