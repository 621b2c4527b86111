"""Confidence intervals, tests and how many replications they need, for means of independent (or batched) values.

All intervals are two-sided. A value is one replication's (or one batch's) statistic, or the paired difference of two
systems under the same random numbers. Sources: Law, Simulation Modeling and Analysis (5th ed.), chapters 9 and 10 (t
intervals, batch means, paired t); Willink, Communications in Statistics 34 (2005) 693 (t for skewed values);
Hesterberg, The American Statistician 69 (2015) 371 (expanded percentile bootstrap); Asmussen and Glynn, Stochastic
Simulation (2007), III.5 (sectioning); Holm, Scandinavian Journal of Statistics 6 (1979) 65.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from sim.units import FloatArray

NUM_RESAMPLES = 4000
MAX_REPLICATIONS = 1_000_000  # more than that is not an answer
MIN_BATCHES = 5


@dataclass(frozen=True)
class Interval:
    """A confidence interval in the unit of the values."""

    low: float
    high: float

    def covers(self, value: float) -> bool:
        """Whether `value` lies in the interval, ends included."""
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Spread:
    """A centre with the standard error of it, the degrees of freedom of that, and a term for skewness.

    Waiting times are skewed, and so are means of few of them: a symmetric t interval of 5 exponential values holds 88 %
    of the time, with the correction 93 %. For symmetric values the correction vanishes.
    """

    centre: float
    error: float
    df: int
    skew: float = 0.0  # third moment / (6 sqrt(n))

    def interval(self, confidence: float) -> Interval:
        """Student's t interval, corrected for skewness."""
        if self.error == 0:
            return Interval(self.centre, self.centre)
        t = t_quantile(0.5 + confidence / 2, self.df)
        return Interval(self.centre - self._skewed(t) * self.error, self.centre - self._skewed(-t) * self.error)

    def p_value(self) -> float:
        """Two-sided, of the hypothesis that the true centre is zero; without any spread 0 or 1.

        The larger of the plain and the corrected one: far out, where many metrics are tested, the correction by a
        skewness that few values give is too sure of itself.
        """
        if self.error == 0:
            return 1.0 if self.centre == 0 else 0.0
        from scipy.special import stdtr

        ratio = self.centre / self.error
        return float(2 * stdtr(self.df, -min(abs(ratio), abs(self._symmetric(ratio)))))

    def _skewed(self, t: float) -> float:
        return (
            t if abs(self.skew) < 1e-9 else (float(np.cbrt(1 + 6 * self.skew * (t - self.skew))) - 1) / (2 * self.skew)
        )

    def _symmetric(self, ratio: float) -> float:
        """The inverse of `_skewed`."""
        a = self.skew
        return ratio if abs(a) < 1e-9 else ((2 * a * ratio + 1) ** 3 - 1) / (6 * a) + a


def of_mean(values: FloatArray) -> Spread:
    """Mean of independent values. Raises `ValueError` for fewer than two."""
    if len(values) < 2:
        raise ValueError("a spread needs two values")
    if np.ptp(values) == 0:
        return Spread(float(values[0]), 0.0, len(values) - 1)
    mean, deviation = float(np.mean(values)), float(np.std(values, ddof=1))
    return Spread(mean, deviation / math.sqrt(len(values)), len(values) - 1, _skew(values, mean, deviation))


def _skew(values: FloatArray, mean: float, deviation: float) -> float:
    n = len(values)
    if n < 3:
        return 0.0
    third = n * float(np.sum((values - mean) ** 3)) / ((n - 1) * (n - 2))
    return third / deviation**3 / (6 * math.sqrt(n))


def of_sections(sections: FloatArray, whole: float) -> Spread:
    """A statistic of a whole run, with the spread of the same statistic over its sections about it.

    For a mean this is batch means. For a quantile the bias of short sections widens the interval instead of moving it.
    """
    square = float(np.sum((sections - whole) ** 2)) / (len(sections) - 1)
    return Spread(whole, math.sqrt(square / len(sections)), len(sections) - 1)


def bootstrap(values: FloatArray, confidence: float, generator: np.random.Generator) -> Interval:
    """Percentile bootstrap of the mean, with levels widened to what a t interval of so few values would have."""
    if np.ptp(values) == 0:
        return Interval(float(values[0]), float(values[0]))
    from scipy.special import ndtr

    n = len(values)
    tail = float(ndtr(-math.sqrt(n / (n - 1)) * t_quantile(0.5 + confidence / 2, n - 1)))
    means = values[generator.integers(0, n, size=(NUM_RESAMPLES, n))].mean(axis=1)
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(float(low), float(high))


def t_quantile(probability: float, df: int) -> float:
    """Quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(df, probability))


def holm(p_values: Sequence[float]) -> list[float]:
    """P values adjusted for their number (Holm's step-down), in the given order."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def replications_needed(deviation: float, difference: float, confidence: float, power: float = 0.8) -> int | None:
    """Replications for a paired t test to find a true `difference` with probability `power`; None: over a million.

    `deviation`: standard deviation of one paired difference.
    """
    if deviation == 0:
        return 2
    if difference == 0:
        return None
    from scipy.special import ndtri

    ratio = (deviation / abs(difference)) ** 2
    needed = (ndtri(0.5 + confidence / 2) + ndtri(power)) ** 2 * ratio
    for _ in range(20):  # t in place of normal quantiles: a fixed point in a few turns
        df = max(1, math.ceil(needed) - 1)
        better = (t_quantile(0.5 + confidence / 2, df) + t_quantile(power, df)) ** 2 * ratio
        if abs(better - needed) < 0.5 or better > MAX_REPLICATIONS:
            break
        needed = (needed + better) / 2
    return max(2, math.ceil(better)) if better <= MAX_REPLICATIONS else None


def num_batches(size: int, smallest: int, wanted: int = 20) -> int:
    """Batches into which `size` values in order may be cut, each with at least `smallest`; 0: too few for any."""
    number = min(wanted, size // smallest)
    return number if number >= MIN_BATCHES else 0


def correlated(values: FloatArray) -> bool:
    """Whether successive values are correlated beyond chance (lag 1, about one side of 95 %)."""
    centred = values - values.mean()
    square = float(centred @ centred)
    return square > 0 and float(centred[1:] @ centred[:-1]) / square > 1.645 / math.sqrt(len(values))
