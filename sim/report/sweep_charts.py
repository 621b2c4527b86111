"""Charts of a sweep along one varied key: SLO and goodput with the knee, latencies, interactivity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.report import text, theme
from sim.report.chart import Chart, duration_axis, from_zero, is_wide, share_axis
from sim.report.knee import Knee, bend, first_backlogged, largest_held, pareto_front
from sim.report.sweep_data import Line, SweepData, SweepPoint, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sim.units import FloatArray

DEFAULT_TARGET = 0.9
CURVES = ("ttft.p99", "tpot.p99", "e2e.p99", "itl.p99", "output_token_throughput", "cost.price")
_MOST_TICKS = 8
_MOST_LABELS = 20
_STYLES = ("-", "--", ":")
_MARKERS = "osD^vP"


def load_chart(data: SweepData, knees: Sequence[Knee]) -> Chart | None:
    """SLO attainment and goodput against the varied load, with the knees marked. None without load or SLO."""
    if data.load is None or not data.known(["slo_attainment"]):
        return None
    lines, averaged = data.lines(data.load)
    figure, (left, right) = theme.new_figure(2.9 + legend_height([line.label for line in lines]), 1, 2)
    for index, (line, knee) in enumerate(zip(lines, knees, strict=True)):
        draw(left, line, "slo_attainment", index)
        draw(right, line, "goodput", index)
        _mark_knee(left, line, "slo_attainment", knee, index)
        _mark_knee(right, line, "goodput", knee, index)
    target = data.target or DEFAULT_TARGET
    left.axhline(target, color=theme.RED, linestyle=(0, (4, 3)), linewidth=1.2)
    share_axis(left)
    left.set_title(f"SLO attainment (target {text.percent(target)})")
    right.set_title("Goodput (requests/s within the SLO)")
    from_zero(right, np.array([v for line in lines for v in line.means("goodput") if v is not None]))
    for axes in (left, right):
        number_axis(axes, lines, load_name(data))
    _legend(figure, left)
    caption = f"Large dots: the largest load held at the target. {_averaged(data, averaged)}"
    return Chart("slo_load", "SLO attainment and goodput against load", caption.strip(), in_words(lines, knees), figure)


def find_knees(data: SweepData) -> list[Knee]:
    """The knee of every line along the load; empty without a varied load."""
    if data.load is None:
        return []
    target = data.target or DEFAULT_TARGET
    return [
        Knee(
            held=largest_held(line.x, line.means("slo_attainment"), target),
            bend=bend(line.x, line.means("ttft.p99")),
            backlogged=first_backlogged(line.x, [all(p.stable for p in points) for points in line.points]),
        )
        for line in data.lines(data.load)[0]
    ]


def curves(data: SweepData) -> Chart | None:
    """Latencies, throughput and cost along the load, or along the numeric key with most values. None without one."""
    x = data.load or (data.numeric[0] if data.numeric else None)
    metrics = data.known(CURVES)
    if x is None or not metrics:
        return None
    lines, averaged = data.lines(x)
    rows = -(-len(metrics) // 3)
    height = 2.1 * rows + legend_height([line.label for line in lines])
    figure, panels = theme.new_figure(height, rows, 3, squeeze=False)
    for axes, metric in zip(panels, metrics, strict=False):
        for index, line in enumerate(lines):
            draw(axes, line, metric, index)
        axes.set_title(text.metric_title(metric))
        metric_axis(axes, metric, lines)
        number_axis(axes, lines, load_name(data) if x == data.load else data.names[x])
    for axes in panels[len(metrics) :]:
        axes.set_axis_off()
    _legend(figure, panels[0])
    name = load_name(data) if x == data.load else data.names[x]
    bars = f"Thin bars: {data.spread_words}. " if data.study.config.replications > 1 else ""
    alt = "; ".join(f"{text.metric_title(metric)}: {_range(lines, metric)}" for metric in metrics)
    return Chart("curves", f"Metrics against {name}", bars + _averaged(data, averaged), alt, figure)


def interactivity(data: SweepData) -> tuple[Chart, list[SweepPoint]] | None:
    """Output tokens a second per GPU against tokens a second per user, with the front and its points."""
    found = [p for p in data.points if None not in (p.mean("tokens_per_user"), p.mean("tokens_per_gpu"))]
    if len(found) < 2:
        return None
    x, y = (np.array([p.mean(name) for p in found], dtype=float) for name in ("tokens_per_user", "tokens_per_gpu"))
    front = pareto_front(x, y)
    groups = _groups(data, found)
    figure, (axes,) = theme.new_figure(3.3 + legend_height([label for label, _ in groups] + ["front"]))
    for index, (_, own) in enumerate(groups):
        _points(axes, data, found, own, (x, y), {**look(index), "label": groups[index][0] or "points"})
    axes.plot(x[front], y[front], color=theme.INK, linewidth=2.2, alpha=0.35, label="front", zorder=1)
    axes.set(xlabel="output tokens/s per user (1 / TPOT p50)", ylabel="output tokens/s per GPU")
    from_zero(axes, y)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    _legend(figure, axes)
    caption = "Up: more from a GPU. Right: faster for each user. On the front nothing else is better in both. "
    caption += "Hollow: fewer requests than the target meet the SLO." if data.known(["slo_attainment"]) else ""
    alt = f"{len(front)} of {len(found)} points are on the front, from {_pair(x, y, front[0])} to "
    alt += _pair(x, y, front[-1])
    chart = Chart("interactivity", "Throughput against interactivity", caption, alt, figure)
    return chart, [found[row] for row in front]


def load_name(data: SweepData) -> str:
    """The load axis with its unit."""
    units = {"rate": "arrivals per second", "rate_scale": "arrival rate, in multiples of the trace's"}
    last = (data.load or "").rpartition(".")[2]
    return units.get(last, f"{last}: requests in flight" if last == "concurrency" else last)


def draw(axes: Axes, line: Line, metric: str, index: int) -> None:
    """One line with the intervals of its points."""
    known = [(x, y, i) for x, y, i in zip(line.x, line.means(metric), line.intervals(metric), strict=True)
             if y is not None]  # fmt: skip
    if not known:
        return
    x, y, intervals = zip(*known, strict=True)
    style: dict[str, Any] = {**look(index), "markersize": 3.5, "label": line.label or "the experiment"}
    axes.plot(x, y, **style)
    spread = [(at, i) for at, i in zip(x, intervals, strict=True) if i is not None]
    if spread:
        low, high = zip(*(interval for _, interval in spread), strict=True)
        axes.vlines([at for at, _ in spread], low, high, color=style["color"], linewidth=1.0, alpha=0.6)


def look(index: int) -> dict[str, Any]:
    """Colour, stroke and mark of the line with this number; no two of 18 are alike."""
    number = len(theme.SERIES)
    return {
        "color": theme.SERIES[index % number],
        "linestyle": _STYLES[index // number % len(_STYLES)],
        "marker": _MARKERS[index % len(_MARKERS)],
    }


def metric_axis(axes: Axes, metric: str, lines: Sequence[Line]) -> None:
    """The y axis of a metric with its unit; logarithmic where a latency spans a wide range."""
    values = np.array([v for line in lines for v in line.means(metric) if v is not None], dtype=np.float64)
    if text.is_duration(metric):
        duration_axis(axes, "y", values)
        if not is_wide(values):
            from_zero(axes, values)
        return
    axes.yaxis.set_major_formatter(lambda value, _: text.digits(value))
    from_zero(axes, values)


def number_axis(axes: Axes, lines: Sequence[Line], name: str) -> None:
    """The x axis with the varied values as ticks, while there is room for them."""
    from matplotlib.ticker import NullFormatter, NullLocator

    values = np.unique([x for line in lines for x in line.x])
    if is_wide(values) and values[0] > 0:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
    if len(values) <= _MOST_TICKS:
        ticks = [number(value) for value in values.tolist()]
        axes.set_xticks(values, ticks, fontsize=8 if max(map(len, ticks)) < 6 else 6.5)
    axes.set_xlabel(name)


def _mark_knee(axes: Axes, line: Line, metric: str, knee: Knee, index: int) -> None:
    if knee.held is None:
        return
    y = line.means(metric)[line.x.index(knee.held)]
    if y is not None:
        axes.plot(knee.held, y, "o", markersize=9, color=look(index)["color"], alpha=0.55, markeredgewidth=0)


def _groups(data: SweepData, found: Sequence[SweepPoint]) -> list[tuple[str, list[int]]]:
    """Rows of the points by line along the load (or another number); every point alone without such a key."""
    key = data.load or (data.numeric[0] if data.numeric else None)
    if key is None:
        return [(data.label(point), [row]) for row, point in enumerate(found)]
    rows = {point.index: row for row, point in enumerate(found)}
    return [
        (line.label, [rows[p.index] for points in line.points for p in points if p.index in rows])
        for line in data.lines(key)[0]
    ]


def _points(
    axes: Axes, data: SweepData, found: Sequence[SweepPoint], rows: list[int], xy: tuple[FloatArray, FloatArray],
    style: dict[str, Any],
) -> None:  # fmt: skip
    """Points joined by a thin line, hollow where the SLO is missed."""
    x, y = xy
    attained = [found[row].mean("slo_attainment") for row in rows]
    target = data.target or DEFAULT_TARGET
    good = [row for row, share in zip(rows, attained, strict=True) if share is None or share >= target]
    poor = [row for row in rows if row not in good]
    line = {"color": style["color"], "linestyle": style["linestyle"], "linewidth": 0.8, "alpha": 0.7}
    axes.plot(x[rows], y[rows], **line)
    marks = {"color": style["color"], "marker": style["marker"], "linestyle": "none", "markersize": 5}
    axes.plot(x[good], y[good], label=style["label"], **marks)
    axes.plot(x[poor], y[poor], fillstyle="none", **marks)


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > _MOST_LABELS:  # would be taller than the figure; the table below has them
        return
    if len(labels) > 1:
        columns = _columns(labels)
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=2.2, fontsize=8)


def _columns(labels: Sequence[str]) -> int:
    longest = max(map(len, labels), default=0)
    return 4 if longest < 22 else 3 if longest < 36 else 2 if longest < 68 else 1


def legend_height(labels: Sequence[str]) -> float:
    """Inches that the legend of these lines takes below the axes."""
    return 0.17 * -(-len(labels) // _columns(labels)) if 1 < len(labels) <= _MOST_LABELS else 0.0


def _averaged(data: SweepData, keys: Sequence[str]) -> str:
    return f"Averages over {', '.join(data.names[key] for key in keys)}." if keys else ""


def in_words(lines: Sequence[Line], knees: Sequence[Knee]) -> str:
    """Up to which load each line holds its target."""
    parts = [
        f"{line.label or 'the experiment'} holds the target "
        + ("at no load tried" if knee.held is None else f"up to {knee.held:g}")
        for line, knee in zip(lines, knees, strict=True)
    ]
    return "; ".join(parts)


def _range(lines: Sequence[Line], metric: str) -> str:
    values = [v for line in lines for v in line.means(metric) if v is not None]
    return f"{text.metric_value(metric, min(values))} to {text.metric_value(metric, max(values))}"


def _pair(x: FloatArray, y: FloatArray, row: int) -> str:
    return f"{text.digits(float(x[row]))} tokens/s per user at {text.digits(float(y[row]))} per GPU"
