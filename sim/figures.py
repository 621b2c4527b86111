"""Figures of results for notebooks and scripts: distributions of latencies, a metric over a varied value.

Figures are made without pyplot, so nothing is shown or kept open; in a notebook a figure shows itself, in a script
`figure.savefig("x.png")` writes it.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.errors import InputError, nearest

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sim.units import FloatArray

_PANELS = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "max_itl": "longest gap between tokens",
    "e2e": "end-to-end latency",
}
_MOST_LINES = 12


def latency_figure(requests: pd.DataFrame, config: Mapping[str, Any]) -> Figure:
    """Four panels, the share of finished requests over seconds; a line at each limit that a request is held to."""
    finished = requests[requests["status"] == "finished"]
    limits = _limits(config)
    figure = _figure(2, 2)
    for axes, (column, title) in zip(figure.axes, _PANELS.items(), strict=True):
        _distribution(axes, np.sort(finished[column].dropna().to_numpy(dtype=np.float64)))
        for name, limit in limits.get(column, {}).items():
            axes.axvline(limit, color="tab:red", linestyle="--", linewidth=1, label=f"SLO {name} {limit:g} s".strip())
        axes.set(title=title, xlabel="seconds", ylim=(0, 1.02))
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=8)
    figure.axes[0].set_ylabel("share of requests")
    figure.axes[2].set_ylabel("share of requests")
    return figure


def sweep_figure(frame: pd.DataFrame, x: str, y: str, others: Sequence[str]) -> Figure:
    """Means over replications of column `y` over column `x`, one line a combination of the columns `others`."""
    for name in (x, y):
        if name not in frame.columns:
            raise InputError(f"plot: the table has no column '{name}'{nearest(name, map(str, frame.columns))}")
    figure = _figure(1, 1)
    axes = figure.axes[0]
    groups = list(frame.groupby(list(others), sort=False)) if others else [((), frame)]
    for values, rows in groups[:_MOST_LINES]:
        means = rows.groupby(x, sort=False)[y].mean()
        label = ", ".join(f"{key.split('.')[-1]}={value}" for key, value in zip(others, values, strict=True))
        axes.plot([_tick(value) for value in means.index], means.to_numpy(dtype=float), marker="o", label=label or None)
    axes.set(xlabel=x.split(".")[-1], ylabel=y)
    if others:
        axes.legend(frameon=False, fontsize=8)
    return figure


def _tick(value: Any) -> Any:
    return value if isinstance(value, int | float) else str(value)


@cache
def _figure_class() -> type[Figure]:
    """A figure that notebooks show although pyplot does not know it."""
    from matplotlib.figure import Figure

    class ShownFigure(Figure):
        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png", dpi=100)
            return buffer.getvalue()

    return ShownFigure


def _figure(rows: int, columns: int) -> Figure:
    figure = _figure_class()(figsize=(4.5 * columns, 3 * rows), layout="constrained")
    figure.subplots(rows, columns)
    return figure


def _distribution(axes: Axes, values: FloatArray) -> None:
    if len(values) == 0:
        axes.text(0.5, 0.5, "no request has one", ha="center", transform=axes.transAxes)
        return
    shares = np.arange(1, len(values) + 1) / len(values)
    axes.step(np.concatenate([values[:1], values]), np.concatenate([[0.0], shares]), where="post", color="tab:blue")
    if values[0] > 0 and values[-1] > 30 * values[0]:
        axes.set_xscale("log")


def _limits(config: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Limits of single requests: column -> class (or nothing) -> seconds."""
    from sim.slo import COLUMN_OF, read_slo

    found: dict[str, dict[str, float]] = {}
    for objective in read_slo(_without_nulls(config.get("slo"))):
        for metric, limit in objective.limits().items():
            found.setdefault(COLUMN_OF[metric], {})[objective.request_class or ""] = limit
    return found


def _without_nulls(value: Any) -> Any:
    """A mapping without the keys that are null, at every level."""
    if not isinstance(value, Mapping):
        return value
    return {key: _without_nulls(item) for key, item in value.items() if item is not None}
