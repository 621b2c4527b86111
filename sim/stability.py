"""Did the cluster keep up with its arrivals? A verdict from how the queue grew while requests were arriving.

stable: the queue did not grow. backlogged: requests piled up (bursts, an offline batch, or slow growth that a longer
run would have to confirm). overloaded: arrivals outran service throughout, or the cluster lost requests for want of
capacity; latencies of such a run grow with its length and describe no steady state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from sim.quantiles import exact_sum

if TYPE_CHECKING:
    from sim.units import FloatArray

# Queue growth over the second half of the arrivals, as a share of those arrivals (about utilisation - 1).
OVERLOAD_GROWTH = 0.05
BACKLOG_GROWTH = 0.01
# A queue at the last arrival below this is chance, whatever its share.
MIN_QUEUE = 10
# The longest mean queue of a quarter of the arrivals over the shortest, from which on the queue came in bursts.
BURST_RATIO = 4.0
# Share of offered requests rejected or timed out from which on the cluster counts as overloaded.
LOST_SHARE = 0.05


@dataclass(frozen=True)
class Stability:
    """The verdict with its reasons and the figures behind it (requests, requests a second, seconds)."""

    verdict: str
    reasons: list[str] = field(default_factory=list)
    queue_by_quarter: list[float] | None = None  # mean number of waiting requests in each quarter of the arrivals
    waiting_at_last_arrival: int | None = None
    queue_growth_per_second: float | None = None  # over the second half of the arrivals
    drain_duration: float | None = None  # from the last arrival until nobody waits


@dataclass(frozen=True)
class _Queue:
    arrival: FloatArray  # sorted
    left: FloatArray  # sorted: first batch or end, whichever came first; inf for who still waits
    quarters: list[float]

    def waiting(self, time: float) -> int:
        """Requests that have arrived by `time` and not left the queue by it."""
        arrived, left = (int(np.searchsorted(a, time, side="right")) for a in (self.arrival, self.left))
        return arrived - left


def judge(arrival: FloatArray, left_queue: FloatArray, num_rejected: int, num_timed_out: int) -> Stability:
    """Verdict for requests that arrived at `arrival` and left the queue at `left_queue` (inf: never), in seconds."""
    if len(arrival) == 0:
        return Stability("stable", ["no request was counted"])
    start, end = float(arrival.min()), float(arrival.max())
    lost = _lost(len(arrival), num_rejected, num_timed_out)
    if end <= start:
        return _all_at_once(arrival, lost)
    queue = _Queue(np.sort(arrival), np.sort(left_queue), _quarter_means(arrival, left_queue, start, end))
    return _judge_growth(queue, start, end, lost)


def _judge_growth(queue: _Queue, start: float, end: float, lost: list[str]) -> Stability:
    middle, at_end, drained = (start + end) / 2, queue.waiting(end), float(queue.left[-1])
    grown, late = at_end - queue.waiting(middle), int((queue.arrival > middle).sum())
    verdict, reasons = _verdict(queue, at_end, grown, grown / max(late, 1), lost)
    return Stability(
        verdict,
        reasons,
        queue.quarters,
        at_end,
        grown / (end - middle),
        max(drained - end, 0.0) if np.isfinite(drained) else None,
    )


def _verdict(queue: _Queue, at_end: int, grown: int, share: float, lost: list[str]) -> tuple[str, list[str]]:
    """`grown`: requests that the queue gained over the second half of the arrivals; `share`: of those arrivals."""
    low, high = min(queue.quarters), max(queue.quarters)
    rising = at_end >= MIN_QUEUE and queue.quarters[1] < queue.quarters[2] < queue.quarters[3]
    waited = f"{at_end:,} of {len(queue.arrival):,} requests waited at the last arrival"
    grew = f"the queue grew by {grown:,} requests ({share:.1%} of the arrivals) over the second half of the arrivals"
    if lost or (rising and share > OVERLOAD_GROWTH):
        return "overloaded", [*lost, *([grew] if share > BACKLOG_GROWTH else [])]
    if rising and share > BACKLOG_GROWTH:
        return "backlogged", [f"{grew}; a longer run would tell whether it goes on"]
    if at_end >= MIN_QUEUE and at_end > OVERLOAD_GROWTH * len(queue.arrival):
        return "backlogged", [waited]
    if high >= MIN_QUEUE and high > BURST_RATIO * low:
        worst = queue.quarters.index(high) + 1
        return "backlogged", [
            f"on average {high:,.0f} requests waited in quarter {worst} of the arrivals, {low:,.0f} in another"
        ]
    return "stable", [waited]


def _all_at_once(arrival: FloatArray, lost: list[str]) -> Stability:
    if lost:
        return Stability("overloaded", lost)
    if len(arrival) == 1:
        return Stability("stable", ["a single request"])
    return Stability(
        "backlogged", [f"all {len(arrival):,} requests arrived at once: an offline batch has no steady state"]
    )


def _lost(count: int, num_rejected: int, num_timed_out: int) -> list[str]:
    named = (("were rejected", num_rejected), ("timed out", num_timed_out))
    return [f"{n:,} of {count:,} requests ({n / count:.1%}) {what}" for what, n in named if n > LOST_SHARE * count]


def _quarter_means(arrival: FloatArray, left: FloatArray, start: float, end: float) -> list[float]:
    """Time-average of the number of waiting requests in each quarter of [start, end]."""
    edges = [start + (end - start) * i / 4 for i in range(5)]
    return [_mean_waiting(arrival, left, low, high) for low, high in pairwise(edges)]


def _mean_waiting(arrival: FloatArray, left: FloatArray, low: float, high: float) -> float:
    inside = np.minimum(left, high) - np.maximum(arrival, low)
    return exact_sum(inside[inside > 0]) / (high - low)
