"""Where a system gives way as its load grows: three rules, each stated in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from sim.units import FloatArray

RULES = (
    "Held: the largest load at which, and at every smaller one tried, the target share of requests meets the SLO.",
    "Bend: where latency, both axes scaled to 0..1, lies farthest below the straight line from first to last load "
    "(Kneedle, Satopää et al. 2011).",
    "Backlogged: the smallest load at which a run was not stable (work was still queued when arrivals ended).",
)
_FEWEST = 4  # loads of which a bend can be told


@dataclass(frozen=True)
class Knee:
    """Loads by `RULES`, in the unit of the load axis; None where a rule finds nothing."""

    held: float | None
    bend: float | None
    backlogged: float | None


def largest_held(loads: Sequence[float], attained: Sequence[float | None], target: float) -> float | None:
    """The largest of the increasing `loads` up to which all attain `target`; None when the first does not."""
    held = None
    for load, share in zip(loads, attained, strict=True):
        if share is None or share < target:
            break
        held = load
    return held


def bend(loads: Sequence[float], latency: Sequence[float | None]) -> float | None:
    """The load of the largest distance below the chord; None with fewer than four loads, or when nothing bends."""
    known = [(load, value) for load, value in zip(loads, latency, strict=True) if value is not None]
    if len(known) < _FEWEST:
        return None
    x, y = (scaled(np.array(column, dtype=np.float64)) for column in zip(*known, strict=True))
    below = x - y
    best = int(np.argmax(below))
    return float(known[best][0]) if below[best] > 0.05 else None


def first_backlogged(loads: Sequence[float], stable: Sequence[bool]) -> float | None:
    """The smallest load with a run that is not stable."""
    return next((load for load, is_stable in zip(loads, stable, strict=True) if not is_stable), None)


def scaled(values: FloatArray) -> FloatArray:
    """From 0 (the first value) to 1 (the last one)."""
    span = values[-1] - values[0]
    return (values - values[0]) / span if span else np.zeros_like(values)


def pareto_front(x: FloatArray, y: FloatArray, larger_x: bool = True, larger_y: bool = True) -> list[int]:
    """Row numbers of the points that no other one equals or beats in both, by increasing x. Nan is on no front."""
    better_x, better_y = (x if larger_x else -x), (y if larger_y else -y)
    known = np.flatnonzero(~np.isnan(x) & ~np.isnan(y))
    order = known[np.lexsort((-better_y[known], -better_x[known]))]
    front, best = [], -np.inf
    for row in order:
        if better_y[row] > best:
            front.append(int(row))
            best = better_y[row]
    return sorted(front, key=lambda row: float(x[row]))
