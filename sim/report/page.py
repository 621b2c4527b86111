"""Writes the report of a run: one HTML file that needs no network, no server and no script."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.errors import InputError
from sim.report import content, theme
from sim.report.data import RunData, load

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sim.report.chart import Chart


def write_report(directory: Path, out: Path | None = None) -> Path:
    """Write the report of the run in `directory` to `out` (default: report.html in it) and return its path.

    `directory` holds summary.json, requests.parquet, config.yaml and, with --timeline, timeline.parquet.
    Raises `InputError` when one is missing or damaged, or `out` cannot be written.
    """
    target = Path(out) if out is not None else Path(directory) / "report.html"
    run = load(Path(directory))
    if not target.parent.is_dir():
        raise InputError(f"{target}: cannot be written (no directory {target.parent})")
    html = render(run)
    temporary = target.with_name(f".{target.name}.tmp")
    try:
        temporary.write_text(html, encoding="utf-8", newline="\n")
        os.replace(temporary, target)
    except OSError as error:
        raise InputError(f"{target}: cannot be written ({error.strerror})") from None
    return target


def figures(directory: Path) -> dict[str, Figure]:
    """The figures of the report by name, as Matplotlib figures in the light palette, for notebooks and papers."""
    return {chart.name: chart.figure for chart in _charts(load(Path(directory)))}


def render(run: RunData) -> str:
    """The HTML of a run's report; equal runs give equal bytes."""
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("sim.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    charts: list[dict[str, Any]] = [
        {
            "name": c.name,
            "title": c.title,
            "caption": c.caption,
            "alt": c.alt,
            "svg": Markup(theme.to_svg(c.figure, c.name)),
        }
        for c in _charts(run)
    ]
    return environment.get_template("page.html").render(charts=charts, **content.of(run))


def _charts(run: RunData) -> list[Chart]:
    import matplotlib

    from sim.report import latency_charts, load_charts

    with matplotlib.rc_context(theme.RC):
        return [
            latency_charts.latency_cdf(run),
            latency_charts.latency_over_time(run),
            latency_charts.slowest(run),
            load_charts.state(run),
            load_charts.load(run),
            latency_charts.itl(run),
            load_charts.replicas(run),
        ]
