"""Distributions of lengths and times, as YAML names them: parameters are checked, means are met.

A mean is the mean of what is drawn, after the limits `min` and `max` have cut it and after rounding to whole tokens:
the location of a distribution is moved until that holds (or an `InputError` says that it cannot).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from statistics import NormalDist
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from sim.errors import InputError

if TYPE_CHECKING:
    from sim.units import FloatArray, IntArray

_GRID = 1 << 14  # points at which a clipped mean is evaluated
_PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


class _Base(BaseModel):
    model_config = ConfigDict(extra="forbid", defer_build=True)

    distribution: str
    min: float | None = Field(default=None, ge=0, description="smallest value: smaller draws become it")
    max: float | None = Field(default=None, gt=0, description="largest value: larger draws become it")

    @model_validator(mode="after")
    def _limits(self) -> _Base:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min:g} is above max {self.max:g}")
        return self

    def draw(self, rng: np.random.Generator, n: int, floor: float) -> FloatArray:
        """`n` values within [max(floor, min), max], real numbers; `floor` is 1 for tokens and 0 for times."""
        values = self._draw(rng, n, self._location(floor))
        return np.clip(values, self._low(floor), self._high())

    def tokens(self, rng: np.random.Generator, n: int) -> IntArray:
        """`n` whole numbers of tokens, each >= 1."""
        return np.rint(self.draw(rng, n, 1.0)).astype(np.int64)

    def times(self, rng: np.random.Generator, n: int) -> FloatArray:
        """`n` durations in seconds, each >= 0."""
        return self.draw(rng, n, 0.0)

    def _low(self, floor: float) -> float:
        return floor if self.min is None else max(self.min, floor)

    def _high(self) -> float:
        return math.inf if self.max is None else self.max

    def _location(self, floor: float) -> float:
        """The mean of the distribution before its limits, such that the mean within them is the one asked for."""
        return math.nan

    def _draw(self, rng: np.random.Generator, n: int, mean: float) -> FloatArray:
        raise NotImplementedError


class _WithMean(_Base):
    """A distribution given by its mean, whose limits may shift it."""

    def _target(self) -> float:
        raise NotImplementedError

    def _quantiles(self, mean: float) -> FloatArray:
        """Quantiles at `_probabilities()` of the distribution with this mean, before limits."""
        raise NotImplementedError

    def _location(self, floor: float) -> float:
        target, low, high = self._target(), self._low(floor), self._high()
        if low <= 0 and math.isinf(high):
            return target
        if not low <= target <= high:
            raise InputError(f"distribution {self.distribution}: mean {target:g} is outside [{low:g}, {high:g}]")
        return _solve(lambda mean: _clipped_mean(self._quantiles(mean), low, high), target)


class Fixed(_Base):
    """Always the same value."""

    distribution: Literal["fixed"]
    value: float = Field(ge=0)

    def _draw(self, rng: np.random.Generator, n: int, mean: float) -> FloatArray:
        return np.full(n, self.value)


class Uniform(_Base):
    """Uniform between min and max, both included."""

    distribution: Literal["uniform"]
    min: float = Field(ge=0)
    max: float = Field(gt=0)

    def tokens(self, rng: np.random.Generator, n: int) -> IntArray:
        return rng.integers(max(1, math.ceil(self.min)), math.floor(self.max), size=n, endpoint=True)

    def _draw(self, rng: np.random.Generator, n: int, mean: float) -> FloatArray:
        return rng.uniform(self.min, self.max, n)


class Exponential(_WithMean):
    """Exponential with the given mean."""

    distribution: Literal["exponential"]
    mean: float = Field(gt=0)

    def _target(self) -> float:
        return self.mean

    def _quantiles(self, mean: float) -> FloatArray:
        return -mean * np.log1p(-_probabilities())

    def _draw(self, rng: np.random.Generator, n: int, mean: float) -> FloatArray:
        return rng.exponential(mean, n)


class Geometric(_WithMean):
    """Geometric on 1, 2, ... with the given mean (>= 1)."""

    distribution: Literal["geometric"]
    mean: float = Field(ge=1)

    def _target(self) -> float:
        return self.mean

    def _location(self, floor: float) -> float:
        # a geometric draw is >= 1 already: the floor of tokens does not move its mean
        return self.mean if self.min is None and self.max is None else super()._location(floor)

    def _quantiles(self, mean: float) -> FloatArray:
        if mean <= 1:
            return np.ones(_GRID)
        return np.maximum(1.0, np.ceil(np.log1p(-_probabilities()) / math.log1p(-1.0 / mean)))

    def _draw(self, rng: np.random.Generator, n: int, mean: float) -> FloatArray:
        return rng.geometric(min(1.0, 1.0 / mean), n).astype(np.float64)


class Normal(_WithMean):
    """Normal with mean and standard deviation; draws below the floor become it."""

    distribution: Literal["normal"]
    mean: float = Field(gt=0)
    std: float = Field(ge=0)

    def _target(self) -> float:
        return self.mean

    def _location(self, floor: float) -> float:
        low = self._low(floor)
        if self.mean - 6 * self.std > low and self.mean + 6 * self.std < self._high():
            return self.mean
        if not low <= self.mean <= self._high():
            raise InputError(f"distribution normal: mean {self.mean:g} is outside [{low:g}, {self._high():g}]")
        return _solve(lambda mean: _clipped_mean(self._quantiles(mean), low, self._high()), self.mean, signed=True)

    def _quantiles(self, mean: float) -> FloatArray:
        return mean + self.std * _normal_scores()

    def _draw(self, rng: np.random.Generator, n: int, mean: float) -> FloatArray:
        return rng.normal(mean, self.std, n)


class Gamma(_WithMean):
    """Gamma with the given mean and coefficient of variation."""

    distribution: Literal["gamma"]
    mean: float = Field(gt=0)
    cv: float = Field(gt=0)

    def _target(self) -> float:
        return self.mean

    @cached_property
    def _shape(self) -> float:
        return 1.0 / self.cv**2

    @cached_property
    def _unit_quantiles(self) -> FloatArray:
        from scipy.special import gammaincinv

        return np.asarray(gammaincinv(self._shape, _probabilities()) / self._shape, dtype=np.float64)

    def _quantiles(self, mean: float) -> FloatArray:
        return mean * self._unit_quantiles

    def _draw(self, rng: np.random.Generator, n: int, mean: float) -> FloatArray:
        return rng.gamma(self._shape, mean / self._shape, n)


class Lognormal(_WithMean):
    """Lognormal from two of: mean, cv, sigma, p50, p90, p95, p99 (mean with one more, or p50 with one more)."""

    distribution: Literal["lognormal"]
    mean: float | None = Field(default=None, gt=0)
    cv: float | None = Field(default=None, gt=0, description="standard deviation / mean")
    sigma: float | None = Field(default=None, gt=0, description="standard deviation of the logarithm")
    p50: float | None = Field(default=None, gt=0)
    p90: float | None = Field(default=None, gt=0)
    p95: float | None = Field(default=None, gt=0)
    p99: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _two_of(self) -> Lognormal:
        given = [name for name in ("mean", "cv", "sigma", *_PERCENTILES) if getattr(self, name) is not None]
        located = [name for name in given if name not in ("cv", "sigma")]
        if len(given) != 2 or not located:
            raise ValueError(
                f"lognormal takes two of mean, cv, sigma, p50, p90, p95, p99 (not just cv and sigma); got {given}"
            )
        self._parameters(self._unclipped_mean())
        return self

    def _shape_from_cv(self) -> float | None:
        return self.sigma if self.cv is None else math.sqrt(math.log1p(self.cv**2))

    def _percentiles(self) -> list[tuple[float, float]]:
        """(z, value) of each percentile given, in order of z."""
        return [
            (0.0 if p == 0.5 else NormalDist().inv_cdf(p), value)
            for name, p in _PERCENTILES.items()
            if (value := getattr(self, name)) is not None
        ]

    def _unclipped_mean(self) -> float:
        return self.mean if self.mean is not None else self._mean_from_percentiles()

    def _mean_from_percentiles(self) -> float:
        points, sigma = self._percentiles(), self._shape_from_cv()
        (z0, q0) = points[0]
        if sigma is None:
            (z1, q1) = points[1]
            if q1 <= q0:
                raise ValueError(f"the larger percentile must have the larger value, got {q0:g} then {q1:g}")
            sigma = math.log(q1 / q0) / (z1 - z0)
        return math.exp(math.log(q0) - z0 * sigma + sigma**2 / 2)

    def _parameters(self, mean: float) -> tuple[float, float]:
        """(mu, sigma) for this mean, keeping cv, sigma or the percentile that was given."""
        sigma, points = self._shape_from_cv(), self._percentiles()
        if len(points) == 2:
            sigma = math.log(points[1][1] / points[0][1]) / (points[1][0] - points[0][0])
        if sigma is None:
            sigma = _sigma_from_percentile(mean, *points[0])
        return math.log(mean) - sigma**2 / 2, sigma

    def _target(self) -> float:
        return self._unclipped_mean()

    def _location(self, floor: float) -> float:
        # what was not given as a mean keeps its percentiles, which limits do not move
        return self._unclipped_mean() if self.mean is None else super()._location(floor)

    def _quantiles(self, mean: float) -> FloatArray:
        try:
            mu, sigma = self._parameters(mean)
        except ValueError:
            return np.full(_GRID, mean)
        return np.exp(mu + sigma * _normal_scores())

    def _draw(self, rng: np.random.Generator, n: int, mean: float) -> FloatArray:
        try:
            mu, sigma = self._parameters(mean)
        except ValueError as error:
            raise InputError(f"distribution lognormal: mean, percentile and limits do not fit: {error}") from None
        return rng.lognormal(mu, sigma, n)


class Empirical(_Base):
    """Given values with weights, or a table of quantiles {probability: value} read linearly in between."""

    distribution: Literal["empirical"]
    values: list[float] | None = None
    weights: list[float] | None = None
    quantiles: dict[float, float] | None = Field(default=None, description="probability from 0 to 1 -> value")

    @model_validator(mode="after")
    def _shape(self) -> Empirical:
        if (self.values is None) == (self.quantiles is None):
            raise ValueError("empirical takes either values (with optional weights) or quantiles")
        if self.quantiles is not None:
            _check_quantiles(self.quantiles)
        elif not self.values or (self.weights is not None and len(self.weights) != len(self.values)):
            raise ValueError("empirical needs values, and as many weights as values where weights are given")
        if self.weights is not None and (min(self.weights) < 0 or sum(self.weights) <= 0):
            raise ValueError("weights must be >= 0 and not all zero")
        return self

    def _draw(self, rng: np.random.Generator, n: int, mean: float) -> FloatArray:
        if self.quantiles is not None:
            p = sorted(self.quantiles)
            return np.interp(rng.random(n), p, [self.quantiles[x] for x in p])
        assert self.values is not None
        weights = None if self.weights is None else np.array(self.weights) / math.fsum(self.weights)
        return rng.choice(np.array(self.values, dtype=np.float64), size=n, p=weights)


def _number_as_fixed(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"distribution": "fixed", "value": value}
    return value


Distribution = Annotated[
    Annotated[
        Fixed | Uniform | Exponential | Geometric | Normal | Gamma | Lognormal | Empirical,
        Field(discriminator="distribution"),
    ],
    BeforeValidator(_number_as_fixed),
]


def _check_quantiles(quantiles: dict[float, float]) -> None:
    p = sorted(quantiles)
    values = [quantiles[x] for x in p]
    if len(p) < 2 or p[0] != 0 or p[-1] != 1:
        raise ValueError("quantiles must begin at probability 0 and end at 1")
    if values != sorted(values) or values[0] < 0:
        raise ValueError("quantiles must not decrease nor be negative")


def _probabilities() -> FloatArray:
    return (np.arange(_GRID) + 0.5) / _GRID


_SCORES: list[FloatArray] = []


def _normal_scores() -> FloatArray:
    """Standard normal quantiles at `_probabilities()`; made once, scaled to variance 1 (the grid cuts the tails)."""
    if not _SCORES:
        half = [NormalDist().inv_cdf((i + 0.5) / _GRID) for i in range(_GRID // 2)]
        scores = np.array(half + [-x for x in reversed(half)])
        _SCORES.append(scores / scores.std())
    return _SCORES[0]


def _clipped_mean(quantiles: FloatArray, low: float, high: float) -> float:
    return float(np.clip(quantiles, low, high).mean())


def _sigma_from_percentile(mean: float, z: float, value: float) -> float:
    """sigma of the lognormal with this mean and the quantile `value` at standard score z.

    log(value / mean) = z sigma - sigma^2 / 2; the smaller root is the one that grows from 0 with the ratio.
    """
    ratio = math.log(value / mean)
    root = z * z - 2 * ratio
    sigma = -1.0 if root < 0 else (z - math.sqrt(root) if z > 0 else math.sqrt(root))
    if sigma <= 0:
        most = math.exp(z * z / 2)
        allowed = f"above the mean and at most {most:.4g} times it" if z > 0 else "below the mean"
        raise ValueError(f"no lognormal has mean {mean:g} and this percentile {value:g}: it must be {allowed}")
    return sigma


def _solve(mean_of: Callable[[float], float], target: float, signed: bool = False) -> float:
    """The location whose clipped mean is `target`, by bisection (the clipped mean grows with the location)."""
    low, high = (-target, target) if signed else (target * 1e-3, target)
    for _ in range(60):
        if mean_of(high) >= target * (1 - 1e-9):
            break
        high *= 1.5
    while signed and mean_of(low) > target and low > -1e12:
        low *= 4
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_of(middle) < target else (low, middle)
    return (low + high) / 2
