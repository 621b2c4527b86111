"""Arrival processes, as YAML names them: when requests come, in seconds from the start of the simulation.

Every process makes either a number of requests or those of a duration. Gaps are independent with the coefficient of
variation `cv` (1 is Poisson); a rate that changes with time stretches them so that the expected number follows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from sim.errors import InputError
from sim.workload.distributions import Distribution, Fixed

if TYPE_CHECKING:
    from sim.units import FloatArray

_GRID = 4096  # points a cycle at which a cumulative rate is tabulated


class _Base(BaseModel):
    model_config = ConfigDict(extra="forbid", defer_build=True)

    def times(self, rng: np.random.Generator, num: int | None, duration: float | None) -> FloatArray:
        """Arrival times in seconds, non-decreasing: `num` of them, or all before `duration` where `num` is None."""
        raise NotImplementedError


class _Renewal(_Base):
    """Independent gaps with mean 1 / rate."""

    rate: float = Field(gt=0, description="requests per second")
    exact_rate: bool = Field(
        default=False,
        description="stretch the gaps so that num_requests end at num_requests / rate, as `vllm bench serve` does",
    )

    def _gaps(self, rng: np.random.Generator, n: int) -> FloatArray:
        """`n` gaps with mean 1."""
        raise NotImplementedError

    def times(self, rng: np.random.Generator, num: int | None, duration: float | None) -> FloatArray:
        if num is None:
            assert duration is not None
            return _until(lambda n: self._gaps(rng, n), self.rate * duration) / self.rate
        return _counted(self._gaps(rng, num), self.exact_rate) / self.rate


class Poisson(_Renewal):
    """Exponential gaps."""

    process: Literal["poisson"]

    def _gaps(self, rng: np.random.Generator, n: int) -> FloatArray:
        return rng.standard_exponential(n)


class GammaArrivals(_Renewal):
    """Gamma gaps, given by cv or by burstiness = 1 / cv^2 (the name that `vllm bench serve` uses)."""

    process: Literal["gamma"]
    cv: float | None = Field(default=None, gt=0)
    burstiness: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _one_of(self) -> GammaArrivals:
        if (self.cv is None) == (self.burstiness is None):
            raise ValueError("gamma arrivals take either cv or burstiness (= 1 / cv^2)")
        return self

    def _gaps(self, rng: np.random.Generator, n: int) -> FloatArray:
        shape = self.burstiness if self.cv is None else 1.0 / self.cv**2
        assert shape is not None
        return rng.gamma(shape, 1.0 / shape, n)


class WeibullArrivals(_Renewal):
    """Weibull gaps, given by cv or by the shape parameter."""

    process: Literal["weibull"]
    cv: float | None = Field(default=None, gt=0)
    shape: float | None = Field(default=None, ge=0.05)

    @model_validator(mode="after")
    def _one_of(self) -> WeibullArrivals:
        if (self.cv is None) == (self.shape is None):
            raise ValueError("weibull arrivals take either cv or shape")
        return self

    def _gaps(self, rng: np.random.Generator, n: int) -> FloatArray:
        shape = self.shape if self.shape is not None else weibull_shape(self.cv or 1.0)
        return rng.weibull(shape, n) / math.gamma(1 + 1 / shape)


class Constant(_Renewal):
    """Equal gaps; the first request comes at 0."""

    process: Literal["constant"]

    def times(self, rng: np.random.Generator, num: int | None, duration: float | None) -> FloatArray:
        n = num if num is not None else math.ceil(self.rate * (duration or 0.0) * (1 - 1e-12))
        return np.arange(n, dtype=np.float64) / self.rate


class ClosedLoopArrivals(_Base):
    """A fixed number of users; each sends its next request `think_time` after its last one ended."""

    process: Literal["closed_loop"]
    concurrency: int = Field(ge=1)
    think_time: Distribution = Field(default=Fixed(distribution="fixed", value=0.0), description="seconds")

    def times(self, rng: np.random.Generator, num: int | None, duration: float | None) -> FloatArray:
        if num is None:
            raise InputError(
                "workload.arrivals: closed_loop needs num_requests (how many come in a duration depends on the cluster)"
            )
        return np.zeros(num)


class Stage(BaseModel):
    """One stage: a rate (or a ramp to `end_rate`) for a duration, or an exact number of requests."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    rate: float = Field(ge=0, description="requests per second at the start of the stage")
    end_rate: float | None = Field(default=None, ge=0, description="requests per second at its end (linear ramp)")
    duration: float | None = Field(default=None, gt=0, description="seconds")
    num_requests: int | None = Field(default=None, ge=1, description="exactly so many requests")
    cv: float = Field(default=1.0, gt=0, description="coefficient of variation of the gaps")
    exact_rate: bool | None = Field(default=None, description="overrides the option of the process for this stage")

    @model_validator(mode="after")
    def _one_of(self) -> Stage:
        if (self.duration is None) == (self.num_requests is None):
            raise ValueError("a stage takes either duration or num_requests")
        if self.num_requests is not None and self._mean_rate() <= 0:
            raise ValueError("a stage with num_requests needs a rate above 0")
        return self

    def _mean_rate(self) -> float:
        return self.rate if self.end_rate is None else (self.rate + self.end_rate) / 2

    def times(self, rng: np.random.Generator, exact_rate: bool) -> tuple[FloatArray, float]:
        """(arrival times from the start of the stage, its length in seconds)."""
        exact = exact_rate if self.exact_rate is None else self.exact_rate
        if self.num_requests is not None:
            count = _counted(gamma_gaps(rng, self.num_requests, self.cv), exact)
            length = float(count[-1]) / self._mean_rate()
        else:
            assert self.duration is not None
            length, expected = self.duration, self.duration * self._mean_rate()
            count = self._in_duration(rng, expected, exact)
        return self._ramp(count, length), length

    def _in_duration(self, rng: np.random.Generator, expected: float, exact: bool) -> FloatArray:
        if not exact:
            return _until(lambda n: gamma_gaps(rng, n, self.cv), expected)
        num = round(expected)
        return _counted(gamma_gaps(rng, num, self.cv), True) * (expected / num) if num else np.zeros(0)

    def _ramp(self, count: FloatArray, length: float) -> FloatArray:
        """The times at which the cumulative rate reaches `count`; closed form of a linear ramp."""
        slope = 0.0 if self.end_rate is None else (self.end_rate - self.rate) / length
        if slope == 0:
            return count / self.rate if self.rate else count
        root = np.sqrt(np.maximum(0.0, self.rate**2 + 2 * slope * count))
        return np.minimum(length, 2 * count / (self.rate + root)) if self.rate or slope > 0 else np.zeros(0)


class Stages(_Base):
    """Stages one after the other; together they say how many requests there are."""

    process: Literal["stages"]
    stages: list[Stage] = Field(min_length=1)
    exact_rate: bool = Field(
        default=False, description="stretch each stage's gaps so that its requests end exactly where its rate says"
    )

    def times(self, rng: np.random.Generator, num: int | None, duration: float | None) -> FloatArray:
        parts, start = [], 0.0
        for stage in self.stages:
            times, length = stage.times(rng, self.exact_rate)
            parts.append(start + times)
            start += length
        everything = np.concatenate(parts)
        return everything if duration is None else everything[everything < duration]


class Diurnal(_Base):
    """A sinusoidal rate: rate x (1 + amplitude cos(2 pi (t - peak_time) / period))."""

    process: Literal["diurnal"]
    rate: float = Field(gt=0, description="mean requests per second")
    amplitude: float = Field(default=0.5, ge=0, le=1)
    period: float = Field(default=86400.0, gt=0, description="seconds")
    peak_time: float = Field(default=50400.0, description="seconds from the start at which the rate is highest")
    cv: float = Field(default=1.0, gt=0)

    def times(self, rng: np.random.Generator, num: int | None, duration: float | None) -> FloatArray:
        if num is not None:
            return self._at(np.cumsum(gamma_gaps(rng, num, self.cv)))
        assert duration is not None
        expected = float(self._expected(np.array([duration]))[0])
        return self._at(_until(lambda n: gamma_gaps(rng, n, self.cv), expected))

    def _expected(self, time: FloatArray) -> FloatArray:
        """Expected number of arrivals by `time`."""
        turn = 2 * math.pi / self.period
        wave = np.sin(turn * (time - self.peak_time)) + math.sin(turn * self.peak_time)
        return self.rate * (time + self.amplitude / turn * wave)

    def _at(self, count: FloatArray) -> FloatArray:
        cycle = np.linspace(0.0, self.period, _GRID + 1)
        whole, rest = np.divmod(count, self.rate * self.period)
        return whole * self.period + np.interp(rest, self._expected(cycle), cycle)


class Burst(_Base):
    """Bursts of `size` requests every `interval` seconds, each spread over `spread` seconds, on top of a Poisson rate.

    Without `interval` there is one burst, at 0: with num_requests and no size, all requests come at once.
    """

    process: Literal["burst"]
    size: int | None = Field(default=None, ge=1)
    interval: float | None = Field(default=None, gt=0, description="seconds from burst to burst")
    spread: float = Field(default=0.0, ge=0, description="seconds over which a burst is spread evenly at random")
    rate: float = Field(default=0.0, ge=0, description="requests per second between and during bursts")

    def times(self, rng: np.random.Generator, num: int | None, duration: float | None) -> FloatArray:
        size = self.size if self.size is not None else num
        if size is None:
            raise InputError("workload.arrivals: burst needs size where num_requests is not given")
        if num is None:
            assert duration is not None
            return self._before(rng, duration, size)
        return self._before(rng, self._horizon(num, size), size, at_least=num)[:num]

    def _horizon(self, num: int, size: int) -> float:
        if self.interval is None:
            return self.spread if not self.rate else max(0, num - size) / self.rate * 2 + 100 / self.rate + self.spread
        return math.ceil(num / size) * self.interval + self.spread

    def _before(self, rng: np.random.Generator, horizon: float, size: int, at_least: int = 0) -> FloatArray:
        num_bursts = 1 if self.interval is None else max(1, math.ceil(horizon / self.interval))
        starts = np.repeat(np.arange(num_bursts) * (self.interval or 0.0), size)
        background = _until(rng.standard_exponential, self.rate * horizon) / self.rate if self.rate else np.zeros(0)
        times = np.sort(np.concatenate([starts + self.spread * rng.random(len(starts)), background]), kind="stable")
        if not at_least:
            return times[times < horizon]
        if len(times) < at_least:
            raise InputError(
                f"workload.arrivals: one burst of {size} does not make num_requests {at_least}: give interval or rate"
            )
        return times


Arrivals = Annotated[
    Poisson | GammaArrivals | WeibullArrivals | Constant | ClosedLoopArrivals | Stages | Diurnal | Burst,
    Field(discriminator="process"),
]


def gamma_gaps(rng: np.random.Generator, n: int, cv: float) -> FloatArray:
    """`n` gamma gaps with mean 1 and coefficient of variation `cv` (exponential for 1)."""
    if cv == 1.0:
        return rng.standard_exponential(n)
    shape = 1.0 / cv**2
    return rng.gamma(shape, 1.0 / shape, n)


def weibull_shape(cv: float) -> float:
    """The Weibull shape whose coefficient of variation is `cv`, by bisection (cv falls with the shape)."""
    low, high = 0.05, 1000.0
    for _ in range(80):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _weibull_cv(middle) > cv else (low, middle)
    return math.sqrt(low * high)


def _weibull_cv(shape: float) -> float:
    log_ratio = math.lgamma(1 + 2 / shape) - 2 * math.lgamma(1 + 1 / shape)
    return math.sqrt(math.expm1(log_ratio)) if log_ratio < 700 else math.inf


def _counted(gaps: FloatArray, exact: bool) -> FloatArray:
    """Cumulative gaps; `exact` scales them so that the last one is at the number of gaps."""
    count = np.cumsum(gaps)
    if exact and len(count) and count[-1] > 0:
        count *= len(count) / count[-1]
    return count


def _until(gaps: Callable[[int], FloatArray], end: float) -> FloatArray:
    """Cumulative gaps (mean 1) below `end`, drawn in batches."""
    parts, start, size = [], 0.0, int(end + 4 * math.sqrt(end) + 16)
    while start < end:
        count = start + np.cumsum(gaps(size))
        parts.append(count)
        start = float(count[-1])
    everything = np.concatenate(parts) if parts else np.zeros(0)
    return everything[everything < end]
