"""The figures of a report as files: SVG and PNG in the light palette, and what is drawn in each as CSV."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.errors import InputError
from sim.report import theme
from sim.report.page import read

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sim.report.chart import Chart

_DPI = 160
HEAD = ("panel", "series", "mark", "x", "y", "x_end", "y_end")


def write_figures(directory: Path, out: Path) -> list[Path]:
    """Write NAME.svg, NAME.png and NAME.csv of every figure of the page about `directory` into `out`.

    Returns the paths. Raises `InputError` for what has no page, or when `out` cannot be written.
    """
    page = read(Path(directory))
    try:
        out.mkdir(parents=True, exist_ok=True)
        return [path for chart in page.charts for path in _write(chart, out)]
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror})") from None


def data_of(chart: Chart) -> pd.DataFrame:
    """What a chart shows: its own columns, or one row a mark of every line, bar, area and point."""
    import pandas as pd

    if chart.data is not None:
        return pd.DataFrame(chart.data)
    rows = [row for axes in chart.figure.axes for row in _marks(axes)]
    return pd.DataFrame(rows, columns=list(HEAD))


def _write(chart: Chart, out: Path) -> list[Path]:
    import matplotlib

    paths = [out / f"{chart.name}.{kind}" for kind in ("svg", "png", "csv")]
    with matplotlib.rc_context({**theme.RC, "svg.hashsalt": chart.name}):
        for path in paths[:2]:
            _save(chart.figure, path)
    temporary = paths[2].with_name(f".{paths[2].name}.tmp")
    data_of(chart).to_csv(temporary, index=False, lineterminator="\n")
    os.replace(temporary, paths[2])
    return paths


def _save(figure: Figure, path: Path) -> None:
    kind = path.suffix[1:]
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    temporary = path.with_name(f".{path.name}.tmp")
    figure.savefig(temporary, format=kind, dpi=_DPI, facecolor="white", metadata=metadata)
    os.replace(temporary, path)


def _marks(axes: Axes) -> Iterator[tuple[Any, ...]]:
    panel = axes.get_title("left") or axes.get_title() or axes.get_ylabel() or axes.get_xlabel()
    for line in axes.lines:
        x, y = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
        yield from _rows(panel, line, "line", x, y)
    series = {id(bar): container.get_label() for container in axes.containers for bar in container}
    for patch in axes.patches:
        yield from _patch_rows(panel, patch, str(series.get(id(patch), patch.get_label())))
    for collection in axes.collections:
        for path in collection.get_paths():
            corners = np.asarray(path.vertices)
            yield from _rows(panel, collection, "area", corners[:, 0], corners[:, 1])


def _rows(panel: str, artist: Artist, mark: str, x: Any, y: Any) -> Iterator[tuple[Any, ...]]:
    series = _plain(str(artist.get_label()))
    for a, b in zip(x, y, strict=True):
        yield panel, series, mark, a, b, None, None


def _patch_rows(panel: str, patch: Any, label: str) -> Iterator[tuple[Any, ...]]:
    from matplotlib.patches import Rectangle, StepPatch

    series = _plain(label)
    if isinstance(patch, StepPatch):
        values, edges, _ = patch.get_data()
        for value, low, high in zip(values, edges, edges[1:], strict=False):
            yield panel, series, "step", low, value, high, value
    elif isinstance(patch, Rectangle):
        x, y = patch.get_xy()
        yield panel, series, "bar", x, y, x + patch.get_width(), y + patch.get_height()


def _plain(label: str) -> str:
    """The label of a mark; empty for those that Matplotlib made up."""
    return "" if label.startswith("_") else label
