"""Charts of the steps of the replicas: what batches held, when replicas were busy, one replica step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sim.perfetto import lanes
from sim.report import text, theme
from sim.report.chart import (
    MAX_POINTS,
    Chart,
    heat,
    label_time,
    legend,
    rectangles,
    say_empty,
    share_axis,
    time_unit,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from sim.measured import BoolArray
    from sim.report.data import RunData
    from sim.units import FloatArray

_NO_STEPS = "run again with --step-log"
_NO_TIMELINE = "run again with --timeline"
_BINS = MAX_POINTS // 2
_GANTT_STEPS = 120
_INSTANTS = (("arrival", "arrival_time"), ("first batch", "first_scheduled_time"), ("first token", "first_token_time"))
_NEAR = 0.025  # share of the axis below which two instants share a name
_ROWS, _COLUMNS = 24, 80  # of the map of utilisation
_KINDS = (("decode only", theme.BLUE), ("prefill and decode", theme.PURPLE), ("prefill only", theme.ORANGE))


def batches(run: RunData) -> Chart:
    """Tokens in a step by kind and share of step time by kind of step, over time."""
    steps, title = run.steps, "What the batches held"
    if steps is None or len(steps) == 0:
        return _absent("batches", title, _NO_STEPS if steps is None else "no step was made")
    figure, (top, bottom) = theme.new_figure(3.9, 2, 1, sharex=True)
    start, duration = _float(steps, "start_time"), _float(steps, "duration")
    edges = np.linspace(0.0, float((start + duration).max()), _BINS + 1)
    factor, unit = time_unit(float(edges[-1]))
    _token_areas(top, steps, edges, factor)
    _kind_areas(bottom, steps, edges, factor)
    label_time(bottom, unit)
    decode, prefill = _float(steps, "num_decode_sequences"), _float(steps, "num_prefill_tokens")
    shares = ", ".join(
        f"{text.percent(float(duration[of].sum() / duration.sum()))} {name}"
        for (name, _), of in zip(_KINDS, _kinds(steps), strict=True)
    )
    alt = f"a step has {text.digits(decode.mean())} decodes and {text.digits(prefill.mean())} prefill tokens on average"
    caption = f"Means over {text.seconds(edges[1])}, all replicas. Of the time in steps: {shares}."
    return Chart("batches", title, caption, f"{alt}; of the time in steps: {shares}", figure)


def gantt(run: RunData) -> Chart:
    """The steps of one replica around the request that waited longest for its first token."""
    title = "Around the slowest first token, step by step"
    row = _slowest_first_token(run)
    if run.steps is None or row is None or len(run.steps) == 0:
        return _absent("gantt", title, _NO_STEPS if run.steps is None else "no request finished")
    steps, replica = _window(run, row)
    figure, (top, bottom) = theme.new_figure(3.1, 2, 1, sharex=True, height_ratios=(2, 3))
    start = _float(steps, "start_time") - float(run.column("arrival_time")[row])
    _bars(top, steps, start)
    _batch_lines(bottom, steps, start)
    for axes in (top, bottom):
        _instants(axes, run, row, named=axes is bottom)
    bottom.set_xlabel("time since its arrival (s)")
    name = run.summary["replicas"][replica]["name"] if replica < len(run.summary["replicas"]) else replica
    request, ttft = run.requests["request_id"].iloc[row], text.seconds(float(run.column("ttft")[row]))
    caption = f"Replica {name}, {len(steps)} steps. Request {request} had its first token after {ttft}"
    caption += f"; it waited {text.seconds(float(run.column('waiting_duration')[row]))} for its first batch."
    data = {column: list(steps[column]) for column in steps.columns}
    return Chart("gantt", title, caption, caption, figure, data)


def utilization(run: RunData) -> Chart:
    """Share of time in steps, replica by replica over time."""
    title = "Utilisation over time"
    grid, edges = busy_shares(run.timeline)
    if grid.size == 0:
        return _absent("utilization", title, _NO_TIMELINE)
    figure, (axes,) = theme.new_figure(0.9 + 0.22 * len(grid) + 0.3)
    factor, unit = time_unit(float(edges[-1]))
    heat(axes, grid[::-1], 0.0, 1.0, theme.BLUE)
    _replica_ticks(axes, run, len(grid))
    _time_ticks(axes, edges / factor)
    label_time(axes, unit)
    mean = np.nanmean(grid, axis=1)
    alt = f"{len(grid)} rows of replicas, busy {text.percent(mean.min())} to {text.percent(mean.max())} of the time"
    caption = f"Strongest colour: busy all of the time; none: idle. Each cell is {text.seconds(edges[1] - edges[0])}."
    row, column = np.indices(grid.shape)
    data = {"row": list(row.ravel()), "start_time": list(edges[column.ravel()]), "busy_share": list(grid.ravel())}
    return Chart("utilization", title, caption, alt, figure, data)


def busy_shares(timeline: pd.DataFrame | None) -> tuple[FloatArray, FloatArray]:
    """Share of time in steps by replica (row) and bin of time (column), and the edges of the bins in seconds.

    From the cumulative busy_time of the samples. More than 24 replicas are averaged in bands. Empty without a timeline.
    """
    if timeline is None or len(timeline) == 0 or "busy_time" not in timeline:
        return np.empty((0, 0)), np.zeros(1)
    table = timeline.pivot_table(index="time", columns="replica", values="busy_time")
    times, busy = np.asarray(table.index, dtype=np.float64), np.asarray(table, dtype=np.float64)
    if len(times) < 2:
        return np.empty((0, 0)), np.zeros(1)
    edges = np.linspace(times[0], times[-1], min(_COLUMNS, len(times) - 1) + 1)
    at = np.array([np.interp(edges, times, column) for column in busy.T])
    shares = np.diff(at, axis=1) / np.diff(edges)
    if len(shares) > _ROWS:
        shares = np.array([band.mean(axis=0) for band in np.array_split(shares, _ROWS)])
    return np.clip(shares, 0.0, 1.0), edges


def _absent(name: str, title: str, why: str) -> Chart:
    figure, (axes,) = theme.new_figure(0.7)
    say_empty(axes, why)
    return Chart(name, title, f"Not recorded: {why}.", f"no figure: {why}", figure)


def _float(frame: pd.DataFrame, name: str) -> FloatArray:
    return np.asarray(frame[name], dtype=np.float64)


def _kinds(steps: pd.DataFrame) -> tuple[BoolArray, BoolArray, BoolArray]:
    """Masks of the steps by `_KINDS`."""
    prefill, decode = _float(steps, "num_prefill_tokens") > 0, _float(steps, "num_decode_sequences") > 0
    return ~prefill, prefill & decode, prefill & ~decode


def _sums(start: FloatArray, weights: FloatArray, edges: FloatArray) -> FloatArray:
    return np.histogram(start, edges, weights=weights)[0]


def _token_areas(axes: Axes, steps: pd.DataFrame, edges: FloatArray, factor: float) -> None:
    start = _float(steps, "start_time")
    number = np.maximum(np.histogram(start, edges)[0], 1)
    decode = _sums(start, _float(steps, "num_decode_sequences"), edges) / number
    prefill = _sums(start, _float(steps, "num_prefill_tokens"), edges) / number
    middle = (edges[1:] + edges[:-1]) / 2 / factor
    colors = (theme.BLUE, theme.ORANGE)
    axes.stackplot(middle, decode, prefill, labels=("decode", "prefill"), colors=colors, lw=0)
    axes.set_ylabel("tokens in a step")
    axes.set_ylim(bottom=0)
    legend(axes)


def _kind_areas(axes: Axes, steps: pd.DataFrame, edges: FloatArray, factor: float) -> None:
    start, duration = _float(steps, "start_time"), _float(steps, "duration")
    parts = np.array([_sums(start[of], duration[of], edges) for of in _kinds(steps)])
    total = parts.sum(axis=0)
    shares = np.where(total > 0, parts / np.where(total > 0, total, 1.0), 0.0)
    middle = (edges[1:] + edges[:-1]) / 2 / factor
    names, colors = zip(*_KINDS, strict=True)
    axes.stackplot(middle, shares, labels=names, colors=colors, lw=0)
    share_axis(axes)
    axes.set_ylim(0, 1)
    axes.set_ylabel("share of step time")
    legend(axes)


def _slowest_first_token(run: RunData) -> int | None:
    rows = np.flatnonzero(run.finished & ~np.isnan(run.column("ttft")))
    return int(rows[np.argmax(run.column("ttft")[rows])]) if len(rows) else None


def _window(run: RunData, row: int) -> tuple[pd.DataFrame, int]:
    """Steps of the replica that prefilled the request, from before its arrival to after its first token.

    At most `_GANTT_STEPS`: of a longer wait the end.
    """
    assert run.steps is not None
    replica = int(run.column("prefill_replica")[row])
    steps = run.steps[run.steps["replica"] == replica]
    start = _float(steps, "start_time")
    first = int(np.searchsorted(start, run.column("arrival_time")[row])) - 5
    last = int(np.searchsorted(start, run.column("first_token_time")[row])) + 10
    return steps.iloc[max(first, last - _GANTT_STEPS, 0) : last], replica


def _bars(axes: Axes, steps: pd.DataFrame, start: FloatArray) -> None:
    duration = _float(steps, "duration")
    lane = lanes(start, start + duration).astype(np.float64)
    gap = np.minimum(0.0015 * float(np.ptp(start)), 0.3 * duration)  # so that equal neighbours can be told apart
    for (name, color), of in zip(_KINDS, _kinds(steps), strict=True):
        if of.any():
            rectangles(axes, start[of], lane[of] + 0.1, duration[of] - gap[of], 0.8, color, label=name)
    axes.set(ylim=(0, lane.max() + 1), xlim=(start.min(), float((start + duration).max())), yticks=[])
    axes.set_ylabel("steps")
    legend(axes)


def _batch_lines(axes: Axes, steps: pd.DataFrame, start: FloatArray) -> None:
    for name, column, color in (
        ("decodes", "num_decode_sequences", theme.BLUE),
        ("prefill tokens", "num_prefill_tokens", theme.ORANGE),
    ):
        axes.step(start, _float(steps, column), where="post", color=color, label=name, linewidth=1.3)
    axes.set_yscale("symlog", linthresh=10)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylabel("tokens in a step")
    legend(axes)


def _instants(axes: Axes, run: RunData, row: int, named: bool) -> None:
    """Lines at the arrival of a request, its first batch and its first token; names of near ones in one text."""
    arrival = run.column("arrival_time")[row]
    low, high = axes.get_xlim()
    groups: list[tuple[float, list[str]]] = []
    for name, column in _INSTANTS:
        at = float(run.column(column)[row] - arrival)
        if not low <= at <= high:
            continue
        axes.axvline(at, color=theme.INK, linewidth=1.0, linestyle=(0, (3, 2)))
        if groups and at - groups[-1][0] < _NEAR * (high - low):
            groups[-1][1].append(name)
        else:
            groups.append((at, [name]))
    for at, names in groups if named else ():
        place: dict[str, Any] = {"xytext": (3, -2), "textcoords": "offset points", "rotation": 90, "va": "top"}
        axes.annotate(", ".join(names), (at, 1.0), xycoords=("data", "axes fraction"), fontsize=7.5, **place)


def _time_ticks(axes: Axes, edges: FloatArray) -> None:
    """Round instants under the cells between `edges`."""
    from matplotlib.ticker import MaxNLocator

    times = [t for t in MaxNLocator(6).tick_values(edges[0], edges[-1]) if edges[0] <= t <= edges[-1]]
    axes.set_xticks(np.interp(times, edges, np.arange(len(edges))), [f"{time:,g}" for time in times])


def _replica_ticks(axes: Axes, run: RunData, rows: int) -> None:
    names = [str(row["name"]) for row in run.summary["replicas"]]
    if len(names) != rows:  # bands of several replicas
        names = [f"{band[0]} ..." for band in np.array_split(np.array(names), rows)] if len(names) > rows else []
    axes.set_yticks(np.arange(len(names)) + 0.5, names[::-1])
    axes.tick_params(axis="y", length=0)
