"""Charts of a sweep over several keys: heat maps, the break-even map of two variants, sensitivity, rows of points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.report import text, theme
from sim.report.chart import Chart, duration_axis, heat, is_wide
from sim.report.sweep_data import SweepData, SweepPoint, mean_of, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from sim.units import FloatArray

_MAPPED = ("slo_attainment", "ttft.p99", "tpot.p99", "output_token_throughput")
_COMPARED = ("goodput", "ttft.p99", "tpot.p99", "e2e.p99", "output_token_throughput")
_STRONG = 0.5  # relative difference from which on a cell of a break-even map has the strongest colour
_MOST_CELLS = 24  # of an axis
_MOST_WRITTEN = 10  # cells of an axis up to which values are written into them
_MOST_ROWS = 30
HIGHER_IS_BETTER = ("slo_attainment", "goodput", "output_token_throughput", "tokens_per_gpu", "tokens_per_user")


def heat_maps(data: SweepData) -> Chart | None:
    """Main metrics over two varied keys, the numeric ones with most values first. None with fewer than two keys."""
    keys = [*data.numeric, *(key for key in data.keys if key not in data.numeric)][:2]
    metrics = _varying(data, _MAPPED)
    if len(keys) < 2 or not metrics or max(len(data.choices(key)) for key in keys) > _MOST_CELLS:
        return None
    x, y = keys
    columns = min(len(metrics), 2)
    rows = -(-len(metrics) // columns)
    size = len(data.choices(y))
    figure, panels = theme.new_figure(rows * _height(data, y, size), rows, columns, squeeze=False)
    for axes, metric in zip(panels, metrics, strict=False):
        _heat_panel(axes, data, metric, x, y)
    for axes in panels[len(metrics) :]:
        axes.set_axis_off()
    others = [data.names[key] for key in data.keys if key not in keys]
    caption = "The stronger the colour the larger the value." + (
        f" Averages over {', '.join(others)}." if others else ""
    )
    alt = "; ".join(f"{text.metric_title(metric)}: {_extremes(data, metric)}" for metric in metrics)
    return Chart("heat", f"{data.names[x]} by {data.names[y]}", caption, alt, figure, _grid_data(data, metrics, x, y))


def break_even(data: SweepData) -> Chart | None:
    """Where the second variant of a key beats the first, over two numeric keys, with the line of no difference.

    The variants are the values of the first key that is no number. None without such a key or two numeric ones.
    """
    variant = next((key for key in data.keys if key not in data.numeric), None)
    metrics = _varying(data, _COMPARED)[:3]
    axes_keys = data.numeric[:2]
    if variant is None or len(axes_keys) < 2 or not metrics:
        return None
    if max(len(data.choices(key)) for key in axes_keys) > _MOST_CELLS:
        return None
    first, *others = data.choices(variant)
    pairs = [(metric, other) for other in others[:2] for metric in metrics]
    size = len(data.choices(axes_keys[1]))
    rows = len(pairs) // len(metrics)
    height = rows * _height(data, axes_keys[1], size)
    figure, panels = theme.new_figure(height, rows, len(metrics), squeeze=False)
    for axes, (metric, other) in zip(panels, pairs, strict=True):
        _difference_panel(axes, data, metric, (variant, first, other), axes_keys)
    names = [short(value) for value in (first, *others[:2])]
    caption = f"Difference to {names[0]} in per cent of it. Blue: {' or '.join(names[1:])} is better; orange: "
    caption += f"{names[0]} is. The line is where they break even; ~ marks differences whose 95 % interval holds zero, "
    caption += "x12 one that is twelvefold. Colours are strongest from 50 % on."
    alt = "; ".join(_wins(data, metric, (variant, first, other), axes_keys) for metric, other in pairs)
    grids = {f"{m} {short(o)}": differences(data, m, (variant, first, o), axes_keys)[0] for m, o in pairs}
    return Chart("break_even", f"Break-even of {data.names[variant]}", caption, alt, figure,
                 _cells_data(data, axes_keys, grids))  # fmt: skip


def differences(
    data: SweepData, metric: str, variants: tuple[str, Any, Any], keys: Sequence[str]
) -> tuple[FloatArray, FloatArray]:
    """Relative difference of the second variant to the first, by values of keys[1] (row) and keys[0] (column).

    And whether it is uncertain: 1 where the 95 % interval of the paired differences holds zero, 0 elsewhere.
    """
    variant, first, second = variants
    shape = (len(data.choices(keys[1])), len(data.choices(keys[0])))
    grid, unsure = np.full(shape, np.nan), np.zeros(shape)
    for row, y in enumerate(data.choices(keys[1])):
        for column, x in enumerate(data.choices(keys[0])):
            place = {keys[0]: x, keys[1]: y}
            old, new = (data.where(**place, **{variant: value}) for value in (first, second))
            before, after = mean_of(old, metric), mean_of(new, metric)
            if before and after is not None:
                grid[row, column] = (after - before) / abs(before)
                unsure[row, column] = _holds_zero(old, new, metric)
    return grid, unsure


def sensitivity(data: SweepData) -> Chart | None:
    """How far each key moves each main metric, the others averaged. None with fewer than two keys."""
    metrics = _varying(data, ("ttft.p99", "tpot.p99", "slo_attainment", "output_token_throughput", "cost.price"))[:3]
    if len(data.keys) < 2 or not metrics:
        return None
    figure, panels = theme.new_figure(1.0 + 0.38 * len(data.keys), 1, len(metrics), sharey=True)
    keys = sorted(data.keys, key=lambda key: data.effect(key, metrics[0]))
    for axes, metric in zip(panels, metrics, strict=True):
        _tornado(axes, data, metric, keys)
    caption = "Mean over all points with a value of the key, from its lowest to its highest mean; the line is the mean "
    caption += "of all points. Keys with many values: their lowest against their highest third."
    parts = []
    for metric in metrics:
        most = max(data.keys, key=lambda key: data.effect(key, metric))
        parts.append(f"{text.metric_title(metric)} depends most on {data.names[most]}")
    return Chart("sensitivity", "What matters most", f"{caption} {'; '.join(parts)}.", "; ".join(parts), figure)


def point_rows(data: SweepData) -> Chart | None:
    """Main metrics of every point as rows of marks: for studies of few points without a numeric key."""
    metrics = data.known(("ttft.p99", "tpot.p99", "output_token_throughput", "slo_attainment"))
    if data.numeric or not 2 <= len(data.points) <= _MOST_ROWS or not metrics:
        return None
    figure, panels = theme.new_figure(1.0 + 0.24 * len(data.points), 1, len(metrics), sharey=True)
    places = np.arange(len(data.points))[::-1]
    for axes, metric in zip(panels, metrics, strict=True):
        _mark_points(axes, data, metric, places)
    panels[0].set_yticks(places, [data.label(point) for point in data.points])
    alt = "; ".join(f"{text.metric_title(metric)}: {_extremes(data, metric)}" for metric in metrics)
    bars = f"Bars: {data.spread_words}." if data.study.config.replications > 1 else "One run a point."
    return Chart("points", "The points side by side", bars, alt, figure)


def _varying(data: SweepData, metrics: Sequence[str]) -> list[str]:
    """Those of the metrics that are not the same at all points."""
    return [m for m in data.known(metrics) if len({v for p in data.points if (v := p.mean(m)) is not None}) > 1]


def _grid(data: SweepData, metric: str, x: str, y: str) -> FloatArray:
    rows = [[mean_of(data.where(**{x: a, y: b}), metric) for a in data.choices(x)] for b in data.choices(y)]
    return np.array([[np.nan if value is None else value for value in row] for row in rows], dtype=np.float64)


def _heat_panel(axes: Axes, data: SweepData, metric: str, x: str, y: str) -> None:
    grid = _grid(data, metric, x, y)
    known = grid[~np.isnan(grid)]
    shades = np.log(np.maximum(grid, 1e-12)) if text.is_duration(metric) and is_wide(known) else grid
    heat(axes, shades, float(np.nanmin(shades)), float(np.nanmax(shades)), theme.BLUE, gap=0.06)
    axes.set_title(text.metric_title(metric))
    _cell_ticks(axes, data, x, y)
    if max(grid.shape) <= _MOST_WRITTEN:
        _write(axes, grid, lambda value, _: text.metric_value(metric, value))


def _difference_panel(
    axes: Axes, data: SweepData, metric: str, variants: tuple[str, Any, Any], keys: Sequence[str]
) -> None:
    grid, unsure = differences(data, metric, variants, keys)
    better = grid if metric in HIGHER_IS_BETTER else -grid
    most = min(float(np.nanmax(np.abs(grid))), _STRONG) if not np.isnan(grid).all() else 0.0
    for sign, color in ((1.0, theme.BLUE), (-1.0, theme.ORANGE)):
        heat(axes, np.where(sign * better > 0, np.abs(grid), np.nan), 0.0, most or 1.0, color, gap=0.06)
    if np.isfinite(grid).all() and min(grid.shape) > 1 and grid.min() < 0 < grid.max():
        places = [np.arange(size) + 0.5 for size in (grid.shape[1], grid.shape[0])]
        axes.contour(*places, np.clip(grid, -_STRONG, _STRONG), levels=[0.0], colors=[theme.INK], linewidths=1.4)
    others = len(data.choices(variants[0])) > 2
    axes.set_title(f"{text.metric_title(metric)}{f', {short(variants[2])}' if others else ''}", fontsize=8.5)
    _cell_ticks(axes, data, keys[0], keys[1])
    if max(grid.shape) <= _MOST_WRITTEN:
        _write(axes, grid, lambda value, at: f"{'~' if unsure[at] else ''}{_relative(value)}")


def _height(data: SweepData, key: str, size: int) -> float:
    """Inches of a row of maps: room for its cells and for the name of the key beside them."""
    return 0.9 + max(0.3 * size, 0.085 * len(data.names[key]))


def _relative(value: float) -> str:
    """A relative difference in per cent; as a factor from tenfold on."""
    if value >= 9:
        return f"x{1 + value:.0f}"
    return f"{100 * value:+.0f}" if abs(value) >= 0.1 else f"{100 * value:+.1g}"


def _cell_ticks(axes: Axes, data: SweepData, x: str, y: str) -> None:
    for key, ticks in ((x, axes.set_xticks), (y, axes.set_yticks)):
        names = [short(value) for value in data.choices(key)]
        ticks(np.arange(len(names)) + 0.5, names)
    axes.tick_params(length=0)
    if sum(len(short(value)) for value in data.choices(x)) > 45:
        axes.tick_params(axis="x", rotation=30)
    axes.set(xlabel=data.names[x], ylabel=data.names[y])
    for spine in axes.spines.values():
        spine.set_visible(False)


def _write(axes: Axes, grid: FloatArray, words: Any) -> None:
    for at in np.argwhere(~np.isnan(grid)):
        row, column = int(at[0]), int(at[1])
        axes.text(column + 0.5, row + 0.5, words(float(grid[row, column]), (row, column)), ha="center", va="center",
                  fontsize=7 if grid.shape[1] <= 6 else 6)  # fmt: skip


def _holds_zero(old: Sequence[SweepPoint], new: Sequence[SweepPoint], metric: str) -> bool:
    """Whether the paired differences by seed could be zero; False where there is no telling."""
    from sim.report.sweep_data import CONFIDENCE
    from sim.study.statistics import of_mean

    if len(old) != 1 or len(new) != 1:
        return False
    before, after = old[0].all(metric), new[0].all(metric)
    if len(before) != len(after) or len(before) < 2:
        return False
    return of_mean(np.array(after) - np.array(before)).interval(CONFIDENCE).covers(0.0)


def _tornado(axes: Axes, data: SweepData, metric: str, keys: Sequence[str]) -> None:
    middle = mean_of(data.points, metric)
    assert middle is not None
    for place, key in enumerate(keys):
        found = sorted(data.by_value(key, metric), key=lambda pair: pair[1])
        if not found:
            continue
        (low_name, low), (high_name, high) = found[0], found[-1]
        axes.barh(place, high - low, 0.5, left=low, color=theme.BLUE, label="range of means" if place == 0 else None)
        _end_label(axes, low, place, low_name, right=False)
        _end_label(axes, high, place, high_name, right=True)
    axes.axvline(middle, color=theme.INK, linewidth=1.0)
    axes.set_yticks(range(len(keys)), [data.names[key] for key in keys])
    axes.tick_params(axis="y", length=0)
    axes.set_title(text.metric_title(metric))
    axes.use_sticky_edges = False
    axes.margins(x=0.4)
    axes.grid(False, axis="y")
    _metric_on_x(axes, metric)


def _end_label(axes: Axes, x: float, place: int, name: str, right: bool) -> None:
    name = name if len(name) <= 14 else f"{name[:13]}…"
    axes.annotate(name, (x, place), xytext=(3 if right else -3, 0), textcoords="offset points", va="center",
                  ha="left" if right else "right", fontsize=7)  # fmt: skip


def _metric_on_x(axes: Axes, metric: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(lambda value, _: text.metric_value(metric, value) if value >= 0 else "")
    axes.tick_params(axis="x", labelsize=7)


def _mark_points(axes: Axes, data: SweepData, metric: str, places: Any) -> None:
    values = [point.mean(metric) for point in data.points]
    known = [(y, value, point) for y, value, point in zip(places, values, data.points, strict=True)
             if value is not None]  # fmt: skip
    axes.plot([value for _, value, _ in known], [y for y, _, _ in known], "o", color=theme.BLUE, markersize=5,
              label=text.metric_title(metric))  # fmt: skip
    for y, _, point in known:
        interval = point.interval(metric)
        if interval is not None:
            axes.hlines(y, *interval, color=theme.BLUE, linewidth=1.4)
    axes.set_title(text.metric_title(metric))
    axes.grid(True, axis="both")
    shown = np.array([value for _, value, _ in known], dtype=np.float64)
    if text.is_duration(metric) and is_wide(shown):
        duration_axis(axes, "x", shown)
    else:
        _metric_on_x(axes, metric)
    axes.tick_params(axis="x", labelsize=7)


def _extremes(data: SweepData, metric: str) -> str:
    known = [(value, point) for point in data.points if (value := point.mean(metric)) is not None]
    low, high = min(known, key=lambda pair: pair[0]), max(known, key=lambda pair: pair[0])
    return (
        f"{text.metric_value(metric, low[0])} at {data.label(low[1])}, "
        f"{text.metric_value(metric, high[0])} at {data.label(high[1])}"
    )


def _wins(data: SweepData, metric: str, variants: tuple[str, Any, Any], keys: Sequence[str]) -> str:
    grid, _ = differences(data, metric, variants, keys)
    better = grid if metric in HIGHER_IS_BETTER else -grid
    number = int((better > 0).sum())
    known = int((~np.isnan(grid)).sum())
    return f"{text.metric_title(metric)}: {short(variants[2])} is better in {number} of {known} cells"


def _grid_data(data: SweepData, metrics: Sequence[str], x: str, y: str) -> dict[str, list[Any]]:
    return _cells_data(data, (x, y), {metric: _grid(data, metric, x, y) for metric in metrics})


def _cells_data(data: SweepData, keys: Sequence[str], grids: dict[str, FloatArray]) -> dict[str, list[Any]]:
    cells = [(a, b) for b in data.choices(keys[1]) for a in data.choices(keys[0])]
    columns: dict[str, list[Any]] = {keys[0]: [short(a) for a, _ in cells], keys[1]: [short(b) for _, b in cells]}
    return columns | {name: list(grid.ravel()) for name, grid in grids.items()}
