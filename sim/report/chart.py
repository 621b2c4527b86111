"""What all charts share: the record of a chart, axes of time and duration, curves thinned to what a page can show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.report import text, theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sim.measured import BoolArray
    from sim.units import FloatArray

# Points of a distribution curve: dense towards the tail, where p99 and p99.9 are read.
CDF_SHARES = np.unique(np.concatenate([np.linspace(0, 1, 241), np.linspace(0.95, 1, 101), np.linspace(0.995, 1, 51)]))
MAX_POINTS = 240  # of a curve over time
_STRENGTHS = 10  # of the colour of a cell
_STRONGEST = 0.6  # text on it stays readable
_LOG_RANGE = 30.0  # largest / smallest value from which on an axis is logarithmic


@dataclass(frozen=True)
class Chart:
    """A figure with its words: title, caption (what it shows), alt (what a reader who cannot see it is told).

    `data`: the columns that were drawn, where they are not to be read off lines and bars of the figure.
    """

    name: str
    title: str
    caption: str
    alt: str
    figure: Figure
    data: Mapping[str, Sequence[Any]] | None = None


def time_unit(end: float) -> tuple[float, str]:
    """Seconds per unit, and the unit, for an axis of simulated time that ends at `end` seconds."""
    if end <= 300:
        return 1.0, "s"
    return (60.0, "min") if end <= 4 * 3600 else (3600.0, "h")


def label_time(axes: Axes, unit: str) -> None:
    axes.set_xlabel(f"time since the start of the simulation ({unit})")


def duration_axis(
    axes: Axes, which: str, values: FloatArray, log: bool | None = None, subs: Sequence[float] = (1.0, 3.0)
) -> None:
    """Tick labels with units (20 ms, 1.5 s); logarithmic where the values span a wide range (or as `log` says).

    `subs`: multiples of powers of ten that are labelled on a logarithmic axis of up to two decades.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis = axes.xaxis if which == "x" else axes.yaxis
    if is_wide(values) if log is None else log:
        (axes.set_xscale if which == "x" else axes.set_yscale)("log")
        decades = np.log10(values.max() / values[values > 0].min())
        axis.set_major_locator(LogLocator(10, subs=(1.0,) if decades > 2 else subs))
        axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(FuncFormatter(lambda value, _: text.seconds(value)))


def is_wide(values: FloatArray) -> bool:
    """Whether the values span more than a linear axis can show. False when there are none above zero."""
    positive = values[values > 0]
    return len(positive) > 0 and bool(values.max() > _LOG_RANGE * positive.min())


def from_zero(axes: Axes, values: FloatArray) -> None:
    """A y axis from zero to a little above the largest of these values."""
    known = values[~np.isnan(values)]
    axes.set_ylim(0, 1.08 * float(known.max()) if len(known) and known.max() > 0 else 1.0)


def place_on(axes: Axes, x: float, y: float) -> tuple[float, float]:
    """Where a point of the data lies on the axes, 0 to 1 from the left and from the bottom."""
    at = axes.transAxes.inverted().transform(axes.transData.transform((x, y)))
    return float(at[0]), float(at[1])


def share_axis(axes: Axes) -> None:
    """A y axis of shares from 0 to 100 %."""
    from matplotlib.ticker import PercentFormatter

    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))


def cdf(axes: Axes, values: FloatArray, color: str, label: str | None = None, style: str = "-") -> None:
    """Cumulative distribution as a thinned curve."""
    axes.plot(np.quantile(values, CDF_SHARES), CDF_SHARES, style, color=color, label=label)


def rectangles(
    axes: Axes, left: FloatArray, bottom: FloatArray, width: FloatArray, height: float, color: str, alpha: float = 1.0,
    label: str | None = None,
) -> None:  # fmt: skip
    """Many rectangles of one colour as one collection."""
    from matplotlib.collections import PolyCollection

    right, top = left + width, bottom + height
    corners = np.stack([left, bottom, left, top, right, top, right, bottom], axis=-1).reshape(-1, 4, 2)
    axes.add_collection(PolyCollection(list(corners), facecolors=color, alpha=alpha, linewidths=0, label=label))


def heat(axes: Axes, grid: FloatArray, low: float, high: float, color: str, gap: float = 0.0) -> None:
    """A grid of cells (row 0 at the bottom, cell i from i to i + 1), the stronger the colour the nearer to `high`.

    Drawn in a few strengths, which a page needs far less room for. Cells that are nan stay empty.
    """
    share = np.clip((grid - low) / (high - low if high > low else 1.0), 0.0, 1.0)
    level = np.where(np.isnan(grid), -1, np.round(share * _STRENGTHS)).astype(np.int64)
    for number in range(1, _STRENGTHS + 1):
        row, first, last = _runs(level == number) if gap == 0 else _cells(level == number)
        if len(row):
            width = last - first - gap
            rectangles(axes, first + gap / 2, row + gap / 2, width, 1.0 - gap, color, _STRONGEST * number / _STRENGTHS)
    axes.set(xlim=(0, grid.shape[1]), ylim=(0, grid.shape[0]))
    axes.grid(False)


def _cells(mask: BoolArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    row, column = (places.astype(np.float64) for places in np.nonzero(mask))
    return row, column, column + np.float64(1.0)


def _runs(mask: BoolArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Row, first and last + 1 column of the neighbours in a row that are all set: one rectangle, no seams."""
    edges = np.diff(np.pad(mask.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    row, first = np.nonzero(edges == 1)
    return row.astype(np.float64), first.astype(np.float64), np.nonzero(edges == -1)[1].astype(np.float64)


def say_empty(axes: Axes, why: str) -> None:
    """Write in the middle of the axes why there is nothing to draw."""
    axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", color=theme.MUTED)
    axes.set(xticks=[], yticks=[])
    axes.grid(False)


def legend(axes: Axes, columns: int = 4) -> None:
    """A legend above the axes, at the right, out of the way of the data and of the title at the left."""
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=columns, borderaxespad=0.1, columnspacing=1.4)
