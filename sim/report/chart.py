"""What all charts share: the record of a chart, axes of time and duration, curves thinned to what a page can show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sim.report import text, theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sim.units import FloatArray

# Points of a distribution curve: dense towards the tail, where p99 and p99.9 are read.
CDF_SHARES = np.unique(np.concatenate([np.linspace(0, 1, 241), np.linspace(0.95, 1, 101), np.linspace(0.995, 1, 51)]))
MAX_POINTS = 240  # of a curve over time
_LOG_RANGE = 30.0  # largest / smallest value from which on an axis is logarithmic


@dataclass(frozen=True)
class Chart:
    """A figure with its words: title, caption (what it shows), alt (what a reader who cannot see it is told)."""

    name: str
    title: str
    caption: str
    alt: str
    figure: Figure


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


def say_empty(axes: Axes, why: str) -> None:
    """Write in the middle of the axes why there is nothing to draw."""
    axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", color=theme.MUTED)
    axes.set(xticks=[], yticks=[])
    axes.grid(False)


def legend(axes: Axes, columns: int = 4) -> None:
    """A legend above the axes, at the right, out of the way of the data and of the title at the left."""
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=columns, borderaxespad=0.1, columnspacing=1.4)
