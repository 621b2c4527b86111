"""Charts of a comparison: differences with their intervals, and the latency distributions of all variants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.measured import PARTS
from sim.report import text, theme
from sim.report.chart import Chart, cdf, duration_axis, is_wide, say_empty, share_axis
from sim.report.latency_charts import NAMES, PART_COLORS, PART_NAMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from sim.report.data import RunData
    from sim.units import FloatArray

_COLORS = {"better": theme.GREEN, "worse": theme.RED}
_LINEAR = 0.02  # relative differences below this are drawn to scale on an axis that spans decades
_STYLES = ("-", "--", "-.", ":")


def forest(found: Mapping[str, Any]) -> Chart:
    """Relative differences of every metric with their intervals, one panel a pair."""
    pairs = found["pairs"]
    metrics = [
        r["metric"] for r in pairs[0]["metrics"] if any(_row(p, r["metric"])["relative"] is not None for p in pairs)
    ]
    figure, panels = theme.new_figure(1.1 + 0.24 * max(len(metrics), 1), 1, len(pairs), sharey=True)
    places = np.arange(len(metrics))[::-1]
    for axes, pair in zip(panels, pairs, strict=True):
        _forest_panel(axes, pair, metrics, places)
    panels[0].set_yticks(places, [text.metric_title(metric) for metric in metrics])
    for axes in panels:
        axes.tick_params(axis="y", length=0)
    left_out = [text.metric_title(r["metric"]) for r in pairs[0]["metrics"] if r["metric"] not in metrics]
    caption = f"Difference to the baseline with its {found['confidence']:.0%} interval, in per cent of the baseline. "
    caption += "Green: better; red: worse; grey: no difference detectable. Whether right is good depends on the metric."
    if left_out:
        caption += f" Not drawn, zero in the baseline: {', '.join(left_out)}."
    alt = "; ".join(
        f"{pair['candidate']}: "
        + ", ".join(f"{text.metric_title(r['metric'])} {100 * r['relative']:+.1f} % ({r['verdict']})"
                    for r in pair["metrics"] if r["relative"] is not None)
        for pair in pairs
    )  # fmt: skip
    return Chart("forest", "Differences with their intervals", caption, alt, figure, _forest_data(pairs))


def overlays(runs: Mapping[str, Sequence[RunData]]) -> Chart:
    """Cumulative distributions of TTFT, TPOT and E2E of all experiments, replications pooled."""
    figure, panels = theme.new_figure(3.4, 1, 3, sharey=True)
    for axes, metric in zip(panels, NAMES, strict=True):
        _overlay(axes, runs, metric)
    panels[0].set_ylabel("share of finished requests")
    handles, labels = panels[0].get_legend_handles_labels()
    if labels:
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4))
    caption = (
        "All replications pooled. Where a curve lies to the left its latencies are shorter; look at the top for p99."
    )
    alt = "; ".join(
        f"{NAMES[metric]}: " + ", ".join(f"{name} {_in_words(pooled(own, metric))}" for name, own in runs.items())
        for metric in NAMES
    )
    return Chart("overlays", "Latency distributions", caption, alt, figure)


def parts(runs: Mapping[str, Sequence[RunData]]) -> Chart:
    """Mean parts of the end-to-end latency of every experiment."""
    figure, (axes,) = theme.new_figure(1.3 + 0.4 * len(runs))
    means = {name: {part: _mean_part(own, part) for part in PARTS} for name, own in runs.items()}
    places, left = np.arange(len(means))[::-1], np.zeros(len(means))
    for part in PARTS:
        widths = np.array([mean[part] for mean in means.values()])
        if (widths > 0).any():
            axes.barh(places, widths, 0.6, left=left, label=PART_NAMES[part], color=PART_COLORS[part])
        left = left + widths
    for place, total in zip(places, left, strict=True):
        axes.text(total + 0.01 * left.max(), place, text.seconds(float(total)), va="center", fontsize=8)
    axes.set_yticks(places, list(means))
    axes.set_xlim(0, left.max() * 1.1 or 1.0)
    axes.grid(True, axis="x")
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("mean of all finished requests")
    duration_axis(axes, "x", left, log=False)
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 5), handlelength=1.0)
    alt = "; ".join(f"{name} {text.seconds(float(sum(own.values())))}" for name, own in means.items())
    caption = "Where the time from arrival to the last token goes, on average."
    return Chart("parts", "What the latency consists of", caption, f"mean end-to-end latency: {alt}", figure)


def pooled(runs: Sequence[RunData], metric: str) -> FloatArray:
    """The values of the finished requests of all replications."""
    return np.concatenate([run.values(metric) for run in runs])


def _row(pair: Mapping[str, Any], metric: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(row for row in pair["metrics"] if row["metric"] == metric)
    return found


def _forest_panel(axes: Axes, pair: Mapping[str, Any], metrics: Sequence[str], places: Any) -> None:
    sizes = []
    for place, metric in zip(places, metrics, strict=True):
        row = _row(pair, metric)
        if row["relative"] is None:
            continue
        color = _COLORS.get(row["verdict"] if row["p_value"] is not None else "", theme.MUTED)
        low, high = relative_interval(row)
        if low is not None and high is not None:
            axes.hlines(place, low, high, color=color, linewidth=1.6)
            sizes += [abs(low), abs(high)]
        axes.plot(row["relative"], place, "o", color=color, markersize=4.5)
        sizes.append(abs(row["relative"]))
    axes.axvline(0, color=theme.INK, linewidth=1.0)
    axes.set_title(f"{pair['candidate']} against {pair['baseline']}")
    axes.grid(True, axis="both")
    _percent_axis(axes, max(sizes, default=0.0), float(np.median(sizes)) if sizes else 0.0)


def _percent_axis(axes: Axes, largest: float, typical: float) -> None:
    """An x axis of relative differences; logarithmic beyond 2 % where a few would squeeze all others together."""
    if largest > 12 * typical and largest > 5 * _LINEAR:
        axes.set_xscale("symlog", linthresh=_LINEAR)
        ends = [v for v in (0.02, 0.1, 0.5, 2.0, 10.0) if v <= 1.3 * largest]
        axes.set_xticks([*(-v for v in reversed(ends)), 0.0, *ends])
        axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:+g} %" if value else "0")
    axes.tick_params(axis="x", labelsize=7)
    axes.set_xlabel("difference")


def relative_interval(row: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """The interval of the difference as shares of the baseline."""
    size = abs(row["baseline_value"])
    if row["t_low"] is None or not size:
        return None, None
    return row["t_low"] / size, row["t_high"] / size


def _forest_data(pairs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    rows = [(pair, row) for pair in pairs for row in pair["metrics"]]
    names = ("metric", "baseline_value", "candidate_value", "difference", "relative", "t_low", "t_high", "verdict")
    columns: dict[str, list[Any]] = {"candidate": [pair["candidate"] for pair, _ in rows]}
    return columns | {name: [row[name] for _, row in rows] for name in names}


def _overlay(axes: Axes, runs: Mapping[str, Sequence[RunData]], metric: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_title(NAMES[metric])
    values = {name: pooled(own, metric) for name, own in runs.items()}
    known = [v for v in values.values() if len(v)]
    if not known:
        say_empty(axes, "no finished request has one")
        return
    for index, (name, own) in enumerate(values.items()):
        if len(own):
            cdf(axes, own, theme.SERIES[index % len(theme.SERIES)], name, _STYLES[index % len(_STYLES)])
    if not is_wide(np.concatenate(known)):
        axes.xaxis.set_major_locator(MaxNLocator(4))
    duration_axis(axes, "x", np.concatenate(known))
    share_axis(axes)
    axes.grid(True, axis="both")
    axes.set_xlabel(metric.upper())


def _mean_part(runs: Sequence[RunData], part: str) -> float:
    values = pooled(runs, part)
    return float(values.mean()) if len(values) else 0.0


def _in_words(values: FloatArray) -> str:
    if len(values) == 0:
        return "has none"
    return f"p50 {text.seconds(float(np.quantile(values, 0.5)))}, p99 {text.seconds(float(np.quantile(values, 0.99)))}"
