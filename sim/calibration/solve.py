"""Least squares as the calibration uses it: positive parameters as logarithms, relative errors, robust to outliers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from sim.cost.surface import Surface, corners

if TYPE_CHECKING:
    from sim.units import FloatArray, IntArray

Parameters = dict[str, float]
Bounds = Mapping[str, tuple[float, float, float]]  # lower, start, upper

SOFT_LIMIT = 0.04  # relative errors beyond this count linearly instead of squared


def fit_parameters(
    model: Callable[[Parameters], FloatArray],
    measured: FloatArray,
    bounds: Bounds,
    weights: FloatArray | float = 1.0,
) -> tuple[Parameters, float]:
    """Parameters that minimise the soft absolute error of log(model / measured), and the cost reached."""
    from scipy.optimize import least_squares

    names = list(bounds)
    lower, start, upper = (np.log([bounds[name][i] for name in names]) for i in range(3))
    target = np.log(measured)

    def residual(point: FloatArray) -> FloatArray:
        values = dict(zip(names, np.exp(point).tolist(), strict=True))
        return np.asarray(weights * (np.log(model(values)) - target))

    result = least_squares(residual, start, bounds=(lower, upper), loss="soft_l1", f_scale=SOFT_LIMIT, max_nfev=200)
    found = dict(zip(names, (significant(value) for value in np.exp(result.x).tolist()), strict=True))
    return found, float(result.cost)


def fit_surface(
    knots: tuple[tuple[float, ...], ...],
    coordinates: tuple[FloatArray, ...],
    residuals: FloatArray,
    damping: float = 0.3,
) -> Surface:
    """The surface closest to `residuals` = log(measured / formula) in absolute error, by reweighted least squares.

    `damping` pulls coefficients without data to zero.
    """
    from scipy import sparse
    from scipy.sparse.linalg import lsqr

    shape = (len(residuals), int(np.prod([len(axis) for axis in knots])))
    matrix = sparse.csr_matrix(_entries(knots, coordinates, len(residuals)), shape=shape)
    weights = np.ones(len(residuals))
    values = np.zeros(shape[1])
    for _ in range(8):
        root = np.sqrt(weights)
        values = lsqr(sparse.diags(root) @ matrix, root * residuals, damp=damping)[0]
        weights = 1.0 / np.maximum(np.abs(residuals - matrix @ values), 0.02)
        weights /= weights.mean()
    return Surface(knots, tuple(round(float(value), 3) + 0.0 for value in values))


def significant(value: float, digits: int = 4) -> float:
    """`value` rounded to significant digits, as profiles store it."""
    return float(f"{value:.{digits - 1}e}")


def _entries(
    knots: tuple[tuple[float, ...], ...], coordinates: tuple[FloatArray, ...], num_rows: int
) -> tuple[FloatArray, tuple[IntArray, IntArray]]:
    """Weights of the coefficients at every point, as (values, (rows, columns)) of a sparse matrix."""
    rows, columns, weights = [], [], []
    for index, weight in corners(knots, coordinates):
        rows.append(np.arange(num_rows))
        columns.append(np.broadcast_to(index, num_rows))
        weights.append(np.broadcast_to(weight, num_rows))
    return np.concatenate(weights), (np.concatenate(rows), np.concatenate(columns))
