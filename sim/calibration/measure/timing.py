"""How an operation is timed: graphs of many launches between two events, warm-up until it settles, repeats.

A region lasts at least a millisecond and passes through more data than three times the second-level cache, so that
nothing is found there that a serving step would not find. The time of an empty region is taken off.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sim.calibration.measure.bench import Work

if TYPE_CHECKING:
    from sim.calibration.measure.cuda import Gpu
    from sim.units import FloatArray

CACHE_FACTOR = 3.0


@dataclass(frozen=True)
class Protocol:
    """How long to warm up and how often to repeat. Durations in seconds."""

    repeats: int = 12
    region_duration: float = 1e-3
    warm_up_duration: float = 0.02
    max_warm_up_duration: float = 0.2
    agreement: float = 0.01  # of two successive medians of three, which ends the warm-up
    max_launches: int = 512


@dataclass(frozen=True)
class Timed:
    """Seconds of one launch in each repeat; how many launches a region had; whether the data was cold."""

    seconds: tuple[float, ...]
    num_launches: int
    cold: bool

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))

    @property
    def spread(self) -> float:
        """(p90 - p10) / median."""
        return spread(np.array(self.seconds))


def spread(values: FloatArray) -> float:
    """(p90 - p10) / median of an array."""
    low, middle, high = np.quantile(values, [0.1, 0.5, 0.9])
    return float((high - low) / middle)


def time_work(gpu: Gpu, work: Work, cold_bytes: float, protocol: Protocol, overhead: float = 0.0) -> Timed:
    """Time an operation. `cold_bytes` of a launch, `overhead` of a region in seconds (`region_overhead`)."""
    work.enqueue(0)
    first = gpu.elapsed(lambda: work.enqueue(0))
    num_launches, cold = plan_launches(first, work.num_windows, cold_bytes, gpu.l2_bytes, protocol)

    def region() -> None:
        for index in range(num_launches):
            work.enqueue(index)

    with gpu.captured(region) as replay:
        warm_up(lambda: gpu.elapsed(replay), protocol)
        raw = [gpu.elapsed(replay) for _ in range(protocol.repeats)]
    return Timed(tuple(max(value - overhead, 1e-9) / num_launches for value in raw), num_launches, cold)


def plan_launches(
    first: float, num_windows: int, cold_bytes: float, l2_bytes: int, protocol: Protocol
) -> tuple[int, bool]:
    """Launches of a region, and whether they pass through enough data to be cold each time."""
    wanted = max(1, int(np.ceil(protocol.region_duration / max(first, 1e-7))))
    if cold_bytes <= 0:
        return min(wanted, protocol.max_launches), False
    needed = int(np.ceil(CACHE_FACTOR * l2_bytes / cold_bytes))
    num_launches = min(max(wanted, needed), protocol.max_launches)
    return num_launches, min(num_launches, num_windows) * cold_bytes >= CACHE_FACTOR * l2_bytes


def warm_up(once: Callable[[], float], protocol: Protocol) -> int:
    """Repeat until two successive medians of three agree, at least the stated time; how often."""
    started, count, last = time.perf_counter(), 0, float("inf")
    while True:
        median = float(np.median([once() for _ in range(3)]))
        count += 3
        spent = time.perf_counter() - started
        settled = abs(median / last - 1.0) <= protocol.agreement if np.isfinite(last) else False
        if spent > protocol.max_warm_up_duration or (settled and spent > protocol.warm_up_duration):
            return count
        last = median


def region_overhead(gpu: Gpu, repeats: int = 50) -> float:
    """Median seconds between two events with nothing between them."""
    return float(np.median([gpu.elapsed(lambda: None) for _ in range(repeats)]))
