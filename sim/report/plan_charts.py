"""Charts of a plan: cost against latency and goodput with their fronts, headroom, what each resource asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.report import text, theme
from sim.report.chart import Chart, duration_axis, from_zero, is_wide, share_axis
from sim.report.knee import pareto_front
from sim.report.sweep_charts import look
from sim.report.sweep_data import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from sim.units import FloatArray

_PANELS = (("ttft.p99", False), ("tpot.p99", False), ("goodput", True))
_RESOURCES = (("load_compute", "time on the GPU"), ("load_kv_memory", "KV cache"), ("load_slots", "sequence slots"))
_MOST_BARS = 20
_SHOWN = 0.03  # room beside the loads that were tried


def varied_keys(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys of candidates that differ between them; the first key when none does."""
    keys = list(rows[0])[: list(rows[0]).index("status")]
    return [key for key in keys if len({str(row[key]) for row in rows}) > 1] or keys[:1]


def candidate_name(row: Mapping[str, Any], keys: Sequence[str]) -> str:
    """The values of a candidate that tell it from others: `h100-sxm, tensor_parallel=2`."""
    return ", ".join(short(row[k]) if k in ("gpu", "model") else f"{k.split('.')[-1]}={short(row[k])}" for k in keys)


def fronts(found: Mapping[str, Any]) -> Chart | None:
    """Every simulated deployment by cost: TTFT p99, TPOT p99 and goodput with their fronts. None before any."""
    trials = [trial for trial in found["trials"] if trial["ttft.p99"] is not None]
    if not trials:
        return None
    figure, panels = theme.new_figure(3.5, 1, 3)
    cost = np.array([trial["cost_per_hour"] for trial in trials], dtype=np.float64)
    ends = []
    for axes, (metric, larger) in zip(panels, _PANELS, strict=True):
        values = _column(trials, metric)
        _front_panel(axes, found, trials, cost, values, metric)
        row = pareto_front(cost, values, larger_x=False, larger_y=larger)
        axes.plot(cost[row], values[row], color=theme.INK, linewidth=2.2, alpha=0.35, zorder=1, label="front")
        ends.append(f"{text.metric_title(metric)}: {len(row)} of {len(trials)} on the front")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 5))
    caption = (
        "Filled: meets the SLO; hollow: does not. On a front nothing else that was simulated is better and cheaper. "
    )
    caption += "Only what the search had to ask was simulated."
    names = ("candidate", "replicas", "cost_per_hour", "met", "ttft.p99", "tpot.p99", "goodput", "slo_attainment")
    data = {name: [trial[name] for trial in trials] for name in names}
    return Chart("fronts", "Cost against latency and goodput", caption, "; ".join(ends), figure, data)


def headroom(found: Mapping[str, Any]) -> Chart | None:
    """SLO attainment and TTFT p99 of the winner at other loads, with the knee and the error of step times about it."""
    winner = found["winner"]
    rows = winner["loads"]
    if len(rows) < 2 or winner["headroom"] is None:
        return None
    figure, (left, right) = theme.new_figure(2.8, 1, 2)
    load = _column(rows, "load")
    edge = 1 + winner["headroom"]
    for axes, metric in ((left, "slo_attainment"), (right, "ttft.p99")):
        values = _column(rows, metric)
        _error_band(axes, edge, winner["step_time_error"])
        axes.plot(load, values, color=theme.BLUE, marker="o", markersize=4, label=text.metric_title(metric))
        axes.axvline(1.0, color=theme.MUTED, linewidth=1.0, linestyle=(0, (3, 2)))
        axes.set(title=text.metric_title(metric), xlabel="load, in multiples of the plan's")
        axes.set_xlim(load.min() - _SHOWN, load.max() + _SHOWN)
    share_axis(left)
    duration_axis(right, "y", _column(rows, "ttft.p99"))
    attainment = found["slo"].get("attainment")
    if attainment is not None:
        left.axhline(attainment, color=theme.RED, linestyle=(0, (4, 3)), linewidth=1.2)
    caption = f"The solid line is the largest load found to meet the SLO ({edge:.3g}); the dashed one the plan's own."
    if winner["step_time_error"] is not None:
        caption += (
            " The bands are where that line would stand with step times off by their median error (darker) and by "
        )
        caption += "the error that nine in ten stay below."
    tried = "; ".join(f"{row['load']:.3g}: {text.percent(row['slo_attainment'])}" for row in rows)
    return Chart("headroom", "Headroom to the knee", caption, f"SLO attainment by load: {tried}", figure)


def demands(found: Mapping[str, Any]) -> Chart | None:
    """Replicas that each resource alone asks for, by candidate. None where bounds say nothing."""
    known = [row for row in found["candidates"] if row.get("load_compute") is not None][:_MOST_BARS]
    if not known:
        return None
    keys = varied_keys(found["candidates"])
    figure, (axes,) = theme.new_figure(1.0 + 0.24 * len(known))
    places = np.arange(len(known))[::-1]
    for (name, title), color, mark in zip(_RESOURCES, (theme.BLUE, theme.ORANGE, theme.GREEN), "osD", strict=True):
        axes.plot(_column(known, name), places, mark, color=color, label=title, markersize=5.5)
    axes.set_yticks(places, [candidate_name(row, keys) for row in known])
    axes.set_xlim(left=0)
    axes.grid(True, axis="both")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("replicas")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    caption = (
        "Lower bounds from the work to be done, before any simulation: the resource farthest right limits a candidate."
    )
    alt = "; ".join(f"{candidate_name(row, keys)}: {_most(row)}" for row in known)
    return Chart("demands", "What each resource asks for", caption, alt, figure)


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> FloatArray:
    return np.array([np.nan if row.get(name) is None else row[name] for row in rows], dtype=np.float64)


def _front_panel(
    axes: Axes, found: Mapping[str, Any], trials: Sequence[Mapping[str, Any]], cost: FloatArray, values: FloatArray,
    metric: str,
) -> None:  # fmt: skip
    candidates = found["candidates"]
    group = "gpu" if "gpu" in varied_keys(candidates) else varied_keys(candidates)[0]
    names = list(dict.fromkeys(short(row[group]) for row in candidates))
    own = [names.index(short(candidates[trial["candidate"]][group])) for trial in trials]
    for index, name in enumerate(names):
        marks = {**look(index), "linestyle": "none", "markersize": 5.5}
        rows = [row for row, of in enumerate(own) if of == index]
        met = [row for row in rows if trials[row]["met"]]
        axes.plot(cost[met], values[met], label=name if rows else None, **marks)
        missed = [row for row in rows if not trials[row]["met"]]
        axes.plot(cost[missed], values[missed], fillstyle="none", **marks)
    _winner_mark(axes, found, metric)
    axes.set(title=text.metric_title(metric), xlabel="USD per hour")
    axes.set_xlim(left=0)
    if text.is_duration(metric):
        duration_axis(axes, "y", values[~np.isnan(values)])
    if not is_wide(values[~np.isnan(values)]):
        from_zero(axes, values)


def _winner_mark(axes: Axes, found: Mapping[str, Any], metric: str) -> None:
    winner = found["winner"]
    if winner is not None and winner.get(metric) is not None:
        axes.plot(winner["cost_per_hour"], winner[metric], "o", fillstyle="none", color=theme.INK, markersize=11,
                  label="winner")  # fmt: skip


def _error_band(axes: Axes, edge: float, error: Mapping[str, float] | None) -> None:
    for name, alpha in (("p90", 0.12), ("median", 0.2)):
        if error is not None:
            axes.axvspan(edge / (1 + error[name]), edge * (1 + error[name]), color=theme.BLUE, alpha=alpha, linewidth=0)
    axes.axvline(edge, color=theme.INK, linewidth=1.2)


def _most(row: Mapping[str, Any]) -> str:
    name, title = max(_RESOURCES, key=lambda pair: row.get(pair[0]) or 0.0)
    return f"{title}, {text.digits(row[name])} replicas"
