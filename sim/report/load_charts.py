"""Charts of what the cluster did: arrivals and tokens, queue and KV cache, replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sim.report import text, theme
from sim.report.chart import MAX_POINTS, Chart, label_time, legend, say_empty, share_axis, time_unit

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from sim.measured import BoolArray
    from sim.report.data import RunData
    from sim.units import FloatArray

_BINS = 80
_MAX_BARS = 40  # replicas beyond this are drawn as a curve over their rank
HOW_TO_GET_TIMELINE = "KV cache over time: run again with --timeline"
_BLOCKS = ("used", "cached", "free")


def load(run: RunData) -> Chart:
    """Arrivals and completions, prompt and output tokens per second."""
    figure, (top, bottom) = theme.new_figure(3.9, 2, 1, sharex=True)
    arrival, end = _known(run.column("arrival_time")), _known(run.column("finish_time")[_ended_well(run)])
    edges, factor, unit = _bins(run)
    _rate_line(top, arrival, edges, factor, theme.BLUE, "arrivals")
    _rate_line(top, end, edges, factor, theme.ORANGE, "completions")
    _token_lines(bottom, run, edges, factor)
    bottom.yaxis.set_major_formatter("{x:,.0f}")
    top.set_ylabel("requests per second")
    bottom.set_ylabel("tokens per second")
    for axes in (top, bottom):
        axes.set_ylim(bottom=0)
        legend(axes)
    label_time(bottom, unit)
    summary = run.summary
    alt = f"{text.rate(summary['request_throughput'], 'requests finished per second')}, "
    alt += f"{text.rate(summary['output_token_throughput'], 'output tokens per second')} over the whole run"
    caption = (
        f"Means over {text.seconds(edges[1] - edges[0])}. Prompt tokens count at the first token of their request."
    )
    return Chart("load", "Arrivals and tokens", caption, alt, figure)


def state(run: RunData) -> Chart:
    """Waiting and running requests, and the KV blocks used, cached and free when a timeline was recorded."""
    timeline = _cluster_timeline(run.timeline)
    blocks = all(f"{name}_blocks" in timeline for name in _BLOCKS)
    figure, panels = theme.new_figure(3.9 if blocks else 2.4, 2 if blocks else 1, 1, sharex=True)
    time, waiting, running = _queue(run, timeline)
    factor, unit = time_unit(float(time[-1]) if len(time) else 0.0)
    panels[0].plot(time / factor, running, color=theme.BLUE, label="running")
    panels[0].plot(time / factor, waiting, color=theme.ORANGE, label="waiting")
    panels[0].set_ylabel("requests")
    panels[0].set_ylim(bottom=0)
    legend(panels[0])
    if blocks:
        _block_areas(panels[1], timeline, factor)
    label_time(panels[-1], unit)
    peak = f"at most {text.count(max(waiting, default=0))} waiting and {text.count(max(running, default=0))} running"
    kv = run.summary["kv_cache"]
    alt = (
        f"{peak}; KV blocks in use: {text.percent(kv['mean_usage'])} on average, {text.percent(kv['peak_usage'])} peak"
    )
    source = "Sampled state of all replicas." if blocks else f"From the requests' own times. {HOW_TO_GET_TIMELINE}."
    return Chart("state", "Queue and KV cache", source, alt, figure)


def replicas(run: RunData) -> Chart:
    """Share of time that each replica spent in a step, and its mean KV usage."""
    rows = run.summary["replicas"]
    few = len(rows) <= _MAX_BARS
    figure, (axes,) = theme.new_figure(min(1.1 + 0.34 * len(rows), 7.0) if few else 3.0)
    busy = np.array([row["utilization"] or 0.0 for row in rows], dtype=np.float64)
    if len(rows) == 0:
        say_empty(axes, "the run has no replica")
    elif few:
        _replica_bars(axes, run, busy)
    else:
        _replica_ranks(axes, busy)
    alt = f"{len(rows)} replicas" + (
        f", busy {text.percent(busy.min())} to {text.percent(busy.max())}" if len(rows) else ""
    )
    caption = "Share of the whole run that a replica spent in a step. An uneven picture points at the router."
    return Chart("replicas", "Utilisation by replica", caption, alt, figure)


def prefix_hits(run: RunData) -> Chart | None:
    """Share of prompt tokens found in the prefix cache, by arrival; None where hits are unknown or there are none."""
    if not run.summary["prefix_cache"]["num_hit_tokens"]:
        return None
    edges, factor, unit = _bins(run)
    came = run.counted & ~np.isnan(run.column("first_token_time"))
    arrival, prompt = run.column("arrival_time")[came], run.column("num_prompt_tokens")[came]
    asked = np.histogram(arrival, edges, weights=prompt)[0]
    found = np.histogram(arrival, edges, weights=run.column("num_cached_tokens")[came])[0]
    figure, (axes,) = theme.new_figure(2.4)
    share = np.where(asked > 0, found / np.maximum(asked, 1.0), np.nan)
    axes.stairs(share, edges / factor, color=theme.GREEN, linewidth=1.5, baseline=None)
    share_axis(axes)
    axes.set_ylabel("prompt tokens found cached")
    label_time(axes, unit)
    cache = run.summary["prefix_cache"]
    alt = f"{text.percent(cache['hit_rate'])} of the prompt tokens that were looked up were cached"
    caption = f"By arrival, in bins of {text.seconds(edges[1] - edges[0])}. A cache that starts cold rises."
    return Chart("prefix_hits", "Prefix cache hits", caption, alt, figure)


def _ended_well(run: RunData) -> BoolArray:
    return np.asarray(run.requests["status"] == "finished", dtype=bool)


def _known(values: FloatArray) -> FloatArray:
    return values[~np.isnan(values)]


def _bins(run: RunData) -> tuple[FloatArray, float, str]:
    """Edges of equal bins over the run (seconds), seconds per axis unit, the unit."""
    ends = _known(np.concatenate([run.column("finish_time"), run.column("arrival_time")]))
    end = float(ends.max()) if len(ends) and ends.max() > 0 else 1.0
    return np.linspace(0, end, _BINS + 1), *time_unit(end)


def _rate_line(axes: Axes, times: FloatArray, edges: FloatArray, factor: float, color: str, label: str) -> None:
    rate = np.histogram(times, edges)[0] / np.diff(edges)
    axes.stairs(rate, edges / factor, color=color, label=label, linewidth=1.5, baseline=None)


def _token_lines(axes: Axes, run: RunData, edges: FloatArray, factor: float) -> None:
    first, end = run.column("first_token_time"), run.column("finish_time")
    came = ~np.isnan(first) & ~np.isnan(end)
    prompt, output = run.column("num_prompt_tokens")[came], run.column("num_output_tokens")[came]
    width = np.diff(edges)
    read = np.histogram(first[came], edges, weights=prompt)[0] / width
    written = np.diff(_spread(first[came], end[came], output, edges)) / width
    axes.stairs(read, edges / factor, color=theme.GREEN, label="prompt tokens", linewidth=1.5, baseline=None)
    axes.stairs(written, edges / factor, color=theme.PURPLE, label="output tokens", linewidth=1.5, baseline=None)


def _spread(start: FloatArray, end: FloatArray, amount: FloatArray, at: FloatArray) -> FloatArray:
    """Amount delivered by each instant of `at` when each request's amount flows evenly from its start to its end."""
    instant = end <= start
    flow = amount[~instant] / (end - start)[~instant]
    total = _ramp(start[~instant], flow, at) - _ramp(end[~instant], flow, at)
    order = np.argsort(start[instant], kind="stable")
    steps = np.append(0.0, np.cumsum(amount[instant][order]))
    at_once: FloatArray = steps[np.searchsorted(start[instant][order], at, side="right")]
    return total + at_once


def _ramp(start: FloatArray, slope: FloatArray, at: FloatArray) -> FloatArray:
    """Sum of slope * (at - start) over all starts before each `at`."""
    order = np.argsort(start, kind="stable")
    slopes = np.append(0.0, np.cumsum(slope[order]))
    moments = np.append(0.0, np.cumsum((slope * start)[order]))
    passed = np.searchsorted(start[order], at, side="right")
    amount: FloatArray = slopes[passed] * at - moments[passed]
    return amount


def _cluster_timeline(timeline: pd.DataFrame | None) -> dict[str, FloatArray]:
    """Columns of the timeline summed over replicas by sample time, thinned; empty without one."""
    if timeline is None or "time" not in timeline or len(timeline) == 0:
        return {}
    names = ["waiting", "running", *(f"{name}_blocks" for name in _BLOCKS)]
    sums = timeline.groupby("time", sort=True)[[name for name in names if name in timeline]].sum()
    edges = np.unique(np.linspace(0, len(sums), min(len(sums), MAX_POINTS) + 1).astype(np.int64))[:-1]
    sizes = np.diff(np.append(edges, len(sums)))
    columns = {"time": np.asarray(sums.index, dtype=np.float64)}
    columns |= {str(name): np.asarray(sums[name], dtype=np.float64) for name in sums.columns}
    return {name: np.add.reduceat(values, edges) / sizes for name, values in columns.items()}


def _queue(run: RunData, timeline: dict[str, FloatArray]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Time, waiting and running requests: from the timeline, otherwise from the requests' own instants."""
    if "waiting" in timeline and "running" in timeline:
        return timeline["time"], timeline["waiting"], timeline["running"]
    arrival, end = run.column("arrival_time"), run.column("finish_time")
    begun = run.column("first_scheduled_time")
    left = np.fmin(begun, end)
    ends = _known(np.concatenate([arrival, end]))
    time = np.linspace(0, float(ends.max()) if len(ends) else 0.0, MAX_POINTS)
    done_after_start = end[~np.isnan(begun)]
    waiting = _reached(arrival, time) - _reached(left, time)
    return time, waiting, _reached(begun, time) - _reached(done_after_start, time)


def _reached(instants: FloatArray, time: FloatArray) -> FloatArray:
    return np.searchsorted(np.sort(_known(instants)), time, side="right").astype(np.float64)


def _block_areas(axes: Axes, timeline: dict[str, FloatArray], factor: float) -> None:
    blocks = np.array([timeline[f"{name}_blocks"] for name in _BLOCKS])
    total = np.maximum(blocks.sum(axis=0), 1.0)
    colors = (theme.BLUE, theme.SKY, theme.GRID)
    axes.stackplot(timeline["time"] / factor, blocks / total, labels=_BLOCKS, colors=colors, lw=0)
    share_axis(axes)
    axes.set_ylim(0, 1)
    axes.set_ylabel("share of KV blocks")
    legend(axes)


def _replica_bars(axes: Axes, run: RunData, busy: FloatArray) -> None:
    rows, places = run.summary["replicas"], np.arange(len(busy))[::-1]
    axes.barh(places, busy, color=theme.BLUE, height=0.6, label="busy")
    kv = [row.get("mean_kv_usage") for row in rows]
    if all(usage is not None for usage in kv):
        axes.plot(kv, places, "D", color=theme.ORANGE, markersize=5, linestyle="none", label="mean KV usage")
    for place, share in zip(places, busy, strict=True):
        axes.text(1.01, place, text.percent(float(share)), va="center", fontsize=8)
    axes.set_yticks(places, [str(row["name"]) for row in rows])
    axes.set(xlim=(0, 1), ylim=(-0.6, len(busy) - 0.4))
    axes.grid(True, axis="x")
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)
    _share_on_x(axes)
    legend(axes)


def _replica_ranks(axes: Axes, busy: FloatArray) -> None:
    axes.step(np.arange(1, len(busy) + 1), np.sort(busy)[::-1], color=theme.BLUE, where="mid")
    share_axis(axes)
    axes.set(xlabel="replicas, busiest first", ylabel="share of time busy")


def _share_on_x(axes: Axes) -> None:
    from matplotlib.ticker import PercentFormatter

    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    axes.set_xlabel("share of the run")
