"""When tokens reach the client: the gaps between successive deliveries, from slices of step ends, vectorised.

A request's deliveries are its first token, the tokens of its decode spans and the first token after each preemption, in
time order and over all replicas. No record per token is made: gaps inside spans are gaps between successive step ends,
counted with multiplicity; only the gaps between pieces (span to span, first token to span) are listed one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sim.quantiles import pack

if TYPE_CHECKING:
    import numpy.typing as npt

    from sim.result import DecodeSpans
    from sim.units import FloatArray, IntArray

    BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Gaps:
    """Inter-token gaps of a run, seconds.

    `max_itl`, `mean_itl`: one entry a request, nan where fewer than two deliveries. `joint_row`, `joint_gap`: the gaps
    between successive pieces of a request's deliveries.
    """

    max_itl: FloatArray
    mean_itl: FloatArray
    joint_row: IntArray
    joint_gap: FloatArray


def request_gaps(first_token_time: FloatArray, spans: Sequence[DecodeSpans]) -> Gaps:
    """Largest and mean gap of every request, and the gaps at the joints of its pieces (see `Gaps`)."""
    row, start, end = _pieces(first_token_time, spans)
    joint = row[1:] == row[:-1]
    joint_row, joint_gap = row[1:][joint], (start[1:] - end[:-1])[joint]
    max_itl = np.full(len(first_token_time), -np.inf)
    np.maximum.at(max_itl, joint_row, joint_gap)
    for replica in spans:
        _raise_to_inner_maximum(max_itl, replica)
    max_itl[np.isneginf(max_itl)] = np.nan
    return Gaps(max_itl, _mean_gap(len(first_token_time), row, start, end, spans), joint_row, joint_gap)


def pooled_gaps(gaps: Gaps, spans: Sequence[DecodeSpans], counted: BoolArray) -> tuple[FloatArray, IntArray]:
    """Gaps of the counted requests as (value, multiplicity), values increasing (see `sim.quantiles.pack`)."""
    joints = gaps.joint_gap[counted[gaps.joint_row]]
    values = [np.diff(replica.ends) for replica in spans]
    multiplicities = [_cover(replica, counted) for replica in spans]
    return pack(
        np.concatenate([*values, joints]), np.concatenate([*multiplicities, np.ones(len(joints), dtype=np.int64)])
    )


def _pieces(first_token_time: FloatArray, spans: Sequence[DecodeSpans]) -> tuple[IntArray, FloatArray, FloatArray]:
    """Row, first and last delivery of every piece, ordered by row and time."""
    began = np.flatnonzero(~np.isnan(first_token_time))
    rows, starts, ends = [began], [first_token_time[began]], [first_token_time[began]]
    for replica in spans:
        rows += [replica.row, replica.resumed_row]
        starts += [replica.ends[replica.first], replica.resumed_time]
        ends += [replica.ends[replica.last], replica.resumed_time]
    row, start, end = np.concatenate(rows), np.concatenate(starts), np.concatenate(ends)
    order = np.lexsort((start, row))
    return row[order], start[order], end[order]


def _raise_to_inner_maximum(max_itl: FloatArray, replica: DecodeSpans) -> None:
    long = np.flatnonzero(replica.last > replica.first)
    if len(long) == 0:
        return
    # reduceat also reduces what lies between two segments; ordered by start that is never more than the array once.
    long = long[np.argsort(replica.first[long], kind="stable")]
    bounds = np.empty(2 * len(long), dtype=np.int64)
    bounds[0::2], bounds[1::2] = replica.first[long], replica.last[long]
    gap = np.append(np.diff(replica.ends), -np.inf)  # gap[j] lies between ends j and j+1; the pad makes `last` an index
    np.maximum.at(max_itl, replica.row[long], np.maximum.reduceat(gap, bounds)[0::2])


def _mean_gap(
    num_requests: int, row: IntArray, start: FloatArray, end: FloatArray, spans: Sequence[DecodeSpans]
) -> FloatArray:
    """(last delivery - first delivery) / number of gaps of every request; nan where there is no gap."""
    deliveries = np.bincount(row, minlength=num_requests)
    for replica in spans:
        inner = np.bincount(replica.row, weights=replica.last - replica.first, minlength=num_requests)
        deliveries += inner.astype(np.int64)
    mean = np.full(num_requests, np.nan)
    head = np.flatnonzero(np.diff(row, prepend=-1))  # pieces at which a new request begins
    if len(head):
        rows, tail = row[head], np.append(head[1:], len(row)) - 1
        several = deliveries[rows] > 1
        mean[rows[several]] = (end[tail] - start[head])[several] / (deliveries[rows] - 1)[several]
    return mean


def _cover(replica: DecodeSpans, counted: BoolArray) -> IntArray:
    """How many counted spans hold both ends j and j+1, for every gap j; shape (len(ends) - 1,)."""
    chosen = counted[replica.row]
    size = max(len(replica.ends), 1)
    opened = np.bincount(replica.first[chosen], minlength=size)
    closed = np.bincount(replica.last[chosen], minlength=size)
    return np.cumsum(opened - closed)[: size - 1]
