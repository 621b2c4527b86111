"""Charts of what users felt: distributions, latency over time, gaps between tokens, what the slowest waited for."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from sim.measured import PARTS
from sim.report import text, theme
from sim.report.chart import (
    MAX_POINTS,
    Chart,
    cdf,
    duration_axis,
    is_wide,
    label_time,
    legend,
    place_on,
    say_empty,
    share_axis,
    time_unit,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from sim.report.data import RunData
    from sim.units import FloatArray, IntArray

NAMES = {"ttft": "Time to first token", "tpot": "Time per output token", "e2e": "End-to-end latency"}
PART_NAMES = {
    "admission_delay": "held at the door",
    "waiting_duration": "waiting for a first batch",
    "prefill_duration": "prefill",
    "transfer_duration": "KV transfer",
    "decode_duration": "decode",
    "preempted_duration": "preempted",
    "client_latency": "network and client",
    "interference_duration": "prefills of others in decode steps",
}
PART_COLORS = dict(
    zip(
        (*PARTS, "interference_duration"),
        (theme.MUTED, theme.ORANGE, theme.SKY, theme.PURPLE, theme.BLUE, theme.RED, theme.GREEN, theme.AMBER),
        strict=True,
    )
)
_PERCENTILES = ((50, theme.SKY), (90, theme.BLUE), (99, theme.ORANGE))
_REQUESTS_A_BIN = 30
_NEAR = 2.0  # SLO limits up to this many times the largest latency are drawn into a chart over time
_FEW = 60  # requests below which each is drawn as a point


def latency_cdf(run: RunData) -> Chart:
    """Cumulative distributions of TTFT, TPOT and E2E with the SLO limits."""
    figure, panels = theme.new_figure(3.1, 1, 3, sharey=True)
    for axes, metric in zip(panels, NAMES, strict=True):
        _distribution(axes, run, metric)
    panels[0].set_ylabel("share of finished requests")
    alt = "; ".join(f"{NAMES[metric]}: {_in_words(run, metric)}" for metric in NAMES)
    caption = "Share of finished requests at or below each latency; dots mark p50, p90 and p99, dashed lines the SLO."
    return Chart("latency_cdf", "Latency distributions", caption, alt, figure)


def latency_over_time(run: RunData) -> Chart:
    """p50, p90 and p99 of TTFT, TPOT and E2E by arrival time."""
    figure, panels = theme.new_figure(5.4, 3, 1, sharex=True)
    factor, unit = time_unit(float(np.nanmax(run.column("arrival_time"), initial=0.0)))
    for axes, metric in zip(panels, NAMES, strict=True):
        _over_time(axes, run, metric, factor)
    if panels[0].get_legend_handles_labels()[0]:
        legend(panels[0])
    label_time(panels[-1], unit)
    caption = (
        "Latency of the requests that arrived at each time. A line that keeps rising means the cluster falls behind."
    )
    alt = "; ".join(f"{NAMES[metric]} {_trend(run, metric)}" for metric in NAMES)
    return Chart("latency_over_time", "Latency over time", caption, alt, figure)


def itl(run: RunData) -> Chart:
    """Gaps between tokens: mean gap and largest gap of each request, percentiles of all gaps pooled."""
    figure, (axes,) = theme.new_figure(3.1)
    means, largest = run.values("tpot"), run.values("max_itl")
    if len(means) == 0:
        say_empty(axes, "no finished request has two output tokens")
    else:
        cdf(axes, means, theme.BLUE, "mean gap of a request (TPOT)")
        cdf(axes, largest, theme.ORANGE, "largest gap of a request", "--")
        _pooled_points(axes, run)
        duration_axis(axes, "x", np.concatenate([means, largest]), subs=(1.0, 2.0, 5.0))
        share_axis(axes)
        axes.set(xlabel="gap between tokens", ylabel="share of requests (or of gaps)")
        legend(axes, 3)
    pooled = run.summary["itl"]
    alt = f"pooled gaps: p50 {text.seconds(pooled['p50'])}, p99 {text.seconds(pooled['p99'])}, longest "
    alt += text.seconds(pooled["max"])
    caption = (
        "A stream stutters when its largest gap is far above its mean gap: prefills of others in the same step, "
        "or a preemption."
    )
    return Chart("itl", "Gaps between tokens (ITL)", caption, alt, figure)


def slowest(run: RunData) -> Chart:
    """Mean parts of the latency of all, typical and slowest requests, for TTFT and for E2E."""
    figure, panels = theme.new_figure(3.0, 1, 2)
    for axes, metric in zip(panels, ("ttft", "e2e"), strict=True):
        _stacked_cohorts(axes, run, metric)
    handles, labels = panels[1].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 7), handlelength=1.0)
    reasons = [why for why in (why_slow(run, "ttft"), why_slow(run, "e2e")) if why]
    caption = " ".join(reasons) or "No request finished."
    return Chart("slowest", "Why the slowest requests were slow", caption, caption, figure)


def why_slow(run: RunData, metric: str) -> str:
    """One sentence: on what the slowest 1 % spent most of the time that others did not spend."""
    groups = cohorts(run, metric)
    if not groups:
        return ""
    slow, typical = parts_of(run, metric, groups[-1][1]), parts_of(run, metric, groups[1][1])
    extra = {name: slow[name] - typical[name] for name in slow}
    name = max(extra, key=lambda part: extra[part])
    excess = sum(slow.values()) - sum(typical.values())
    if excess <= 0:
        return f"All requests have the same {NAMES[metric].lower()}."
    share = min(extra[name] / excess, 1.0)
    return (
        f"{NAMES[metric]}: the slowest 1 % took {text.seconds(sum(slow.values()))} on average, typical requests "
        f"{text.seconds(sum(typical.values()))}; {text.percent(share)} of the difference is {PART_NAMES[name]}"
        f"{_length_words(run, metric, groups)}."
    )


def _length_words(run: RunData, metric: str, groups: list[tuple[str, IntArray]]) -> str:
    """How much longer the slowest requests are than typical ones: prompts for TTFT, outputs for E2E."""
    column, noun = ("num_prompt_tokens", "prompt") if metric == "ttft" else ("num_output_tokens", "output")
    tokens = run.column(column)
    slow, typical = (float(tokens[groups[i][1]].mean()) for i in (-1, 1))
    return f" (they have {text.digits(slow)} {noun} tokens, typical ones {text.digits(typical)})"


def cohorts(run: RunData, metric: str) -> list[tuple[str, IntArray]]:
    """Row numbers of finished requests, by rank in the metric: all, the typical tenth, p90 to p99, the slowest 1 %."""
    rows = np.flatnonzero(run.finished)
    if len(rows) == 0:
        return []
    rows = rows[np.argsort(run.column(metric)[rows], kind="stable")]
    size = len(rows)
    cut = max(size // 100, 1)  # the slowest one, when there are fewer than a hundred
    middle = rows[int(0.45 * size) : max(int(0.55 * size), int(0.45 * size) + 1)]
    late = rows[min(int(0.90 * size), size - 1) : max(size - cut, int(0.90 * size) + 1)]
    return [("all", rows), ("typical (p45-p55)", middle), ("p90-p99", late), ("slowest 1 %", rows[size - cut :])]


def parts_of(run: RunData, metric: str, rows: IntArray) -> dict[str, float]:
    """Mean seconds of each part of the metric over these rows; parts that are zero everywhere are left out."""
    if metric == "e2e":
        parts = (*PARTS[:5], "interference_duration", *PARTS[5:])
        means = {part: float(run.column(part)[rows].mean()) for part in parts}
        means["decode_duration"] -= means["interference_duration"]
    else:
        before = ("admission_delay", "waiting_duration", "prefill_duration", "client_latency")
        means = {part: float(run.column(part)[rows].mean()) for part in before}
        # The table has preemptions in total only; what is left of TTFT is their share before the first token.
        means["preempted_duration"] = max(float(run.column("ttft")[rows].mean()) - sum(means.values()), 0.0)
    return means


def _distribution(axes: Axes, run: RunData, metric: str) -> None:
    axes.set_title(NAMES[metric])
    values = run.values(metric)
    if len(values) == 0:
        say_empty(axes, "no finished request has one")
        return
    cdf(axes, values, theme.BLUE)
    limits = _slo_lines(axes, run, metric)
    duration_axis(axes, "x", np.concatenate([values, limits]))
    share_axis(axes)
    for percentile in (0.5, 0.9, 0.99):
        at = float(np.quantile(values, percentile))
        axes.plot(at, percentile, "o", color=theme.BLUE, markersize=4)
        _mark(axes, at, percentile, f"p{percentile * 100:.0f} {text.seconds(at)}")
    axes.grid(True, axis="both")
    axes.set_xlabel(metric.upper())


def _mark(axes: Axes, x: float, y: float, label: str) -> None:
    left = place_on(axes, x, y)[0] > 0.6  # left of the curve there is room above it
    axes.annotate(
        label,
        (x, y),
        xytext=(-6, 3) if left else (6, -9),
        textcoords="offset points",
        ha="right" if left else "left",
        fontsize=7.5,
        color=theme.INK,
    )


def _slo_lines(axes: Axes, run: RunData, metric: str) -> FloatArray:
    limits = [(o.request_class, t.limit) for o in run.objectives for t in o.targets if t.metric == metric]
    for name, limit in limits:
        axes.axvline(limit, color=theme.RED, linestyle=(0, (4, 3)), linewidth=1.2)
        label = f"SLO {text.seconds(limit)}" + (f" ({name})" if name else "")
        axes.annotate(
            label,
            (limit, 0.03),
            xycoords=("data", "axes fraction"),
            xytext=(-3, 0),
            textcoords="offset points",
            rotation=90,
            ha="right",
            va="bottom",
            fontsize=7.5,
            color=theme.RED,
        )
    return np.array([limit for _, limit in limits], dtype=np.float64)


def _over_time(axes: Axes, run: RunData, metric: str, factor: float) -> None:
    axes.set_ylabel(metric.upper())
    arrival, values = run.column("arrival_time"), run.column(metric)
    rows = np.flatnonzero(run.finished & ~np.isnan(values))
    rows = rows[np.argsort(arrival[rows], kind="stable")]
    if len(rows) == 0:
        say_empty(axes, "no finished request has one")
        return
    drawn = values[rows]
    if len(rows) < _FEW:
        axes.plot(arrival[rows] / factor, drawn, "o", color=theme.BLUE, markersize=4, label="one request")
    else:
        drawn = _percentile_lines(axes, arrival[rows] / factor, drawn)
    log = is_wide(drawn)
    duration_axis(axes, "y", drawn, log)
    if not log:
        axes.set_ylim(bottom=0)
    _slo_levels(axes, run, metric, float(drawn.max()))


def _slo_levels(axes: Axes, run: RunData, metric: str, largest: float) -> None:
    """Lines at the limits that the latencies come near, words for those far above: they would flatten the curves."""
    limits = [target.limit for o in run.objectives for target in o.targets if target.metric == metric]
    for limit in limits:
        if limit <= _NEAR * largest:
            axes.axhline(limit, color=theme.RED, linestyle=(0, (4, 3)), linewidth=1.2)
    far = [text.seconds(limit) for limit in limits if limit > _NEAR * largest]
    if far:
        words = f"SLO {', '.join(far)}: above this range"
        axes.text(0, 1.02, words, transform=axes.transAxes, va="bottom", fontsize=7.5, color=theme.RED)


def _percentile_lines(axes: Axes, time: FloatArray, values: FloatArray) -> FloatArray:
    bins = min(max(len(values) // _REQUESTS_A_BIN, 1), MAX_POINTS // 2)
    edges = np.linspace(0, len(values), bins + 1).astype(np.int64)
    pieces = [slice(a, b) for a, b in pairwise(edges)]
    middle = [float(time[piece].mean()) for piece in pieces]
    drawn = []
    for percentile, color in _PERCENTILES:
        line = [float(np.quantile(values[piece], percentile / 100)) for piece in pieces]
        axes.plot(middle, line, color=color, label=f"p{percentile}", marker="o" if bins < 3 else None)
        drawn += line
    return np.array(drawn)


def _pooled_points(axes: Axes, run: RunData) -> None:
    pooled = run.summary["itl"]
    shares = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}
    points = [(pooled[name], share) for name, share in shares.items() if pooled[name] is not None]
    if points:
        x, y = zip(*points, strict=True)
        axes.plot(x, y, "D", color=theme.GREEN, markersize=4.5, label="all gaps pooled: p50, p90, p95, p99, max")


def _stacked_cohorts(axes: Axes, run: RunData, metric: str) -> None:
    axes.set_title(NAMES[metric])
    groups = cohorts(run, metric)
    if not groups:
        say_empty(axes, "no request finished")
        return
    means = [parts_of(run, metric, rows) for _, rows in groups]
    places, left = np.arange(len(groups))[::-1], np.zeros(len(groups))
    for part in means[0]:
        widths = np.array([mean[part] for mean in means])
        used = bool((widths > 0).any())
        if used:
            axes.barh(
                places, widths, 0.62, left=left, label=PART_NAMES[part], color=PART_COLORS[part], edgecolor="none"
            )
        left = left + widths
    for place, total in zip(places, left, strict=True):
        axes.text(total + 0.012 * left.max(), place, text.seconds(total), va="center", fontsize=8)
    axes.set_yticks(places, [f"{name}" for name, _ in groups])
    axes.set_xlim(0, left.max() * 1.16 or 1.0)
    axes.grid(True, axis="x")
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("mean duration")
    duration_axis(axes, "x", left, log=False)


def _in_words(run: RunData, metric: str) -> str:
    stats = run.summary[metric]
    words = f"p50 {text.seconds(stats['p50'])}, p90 {text.seconds(stats['p90'])}, p99 {text.seconds(stats['p99'])}"
    limits = [t.limit for o in run.objectives for t in o.targets if t.metric == metric]
    return words + (f", SLO {', '.join(map(text.seconds, limits))}" if limits else "")


def _trend(run: RunData, metric: str) -> str:
    values = run.column(metric)[run.finished]
    values = values[~np.isnan(values)]
    if len(values) < 4:
        return "has too few requests for a trend"
    first, last = values[: len(values) // 4], values[-(len(values) // 4) :]
    return (
        f"has a median of {text.seconds(float(np.median(first)))} in the first quarter of the requests "
        f"and of {text.seconds(float(np.median(last)))} in the last"
    )
