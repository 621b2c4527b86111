"""Writes the report of a run, a sweep, a comparison or a plan: one HTML file that needs no network and no server."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sim.errors import InputError
from sim.report import theme

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sim.report.chart import Chart
    from sim.report.document import Document


def write_report(directory: Path, out: Path | None = None) -> Path:
    """Write the report of what is in `directory` to `out` (default: report.html in it) and return its path.

    `directory` is what `servesim run`, `sweep`, `compare` or `plan` wrote. Raises `InputError` when a file of it is
    missing or damaged, or `out` cannot be written.
    """
    target = Path(out) if out is not None else Path(directory) / "report.html"
    page = read(Path(directory))
    if not target.parent.is_dir():
        raise InputError(f"{target}: cannot be written (no directory {target.parent})")
    html = render(page)
    temporary = target.with_name(f".{target.name}.tmp")
    try:
        temporary.write_text(html, encoding="utf-8", newline="\n")
        os.replace(temporary, target)
    except OSError as error:
        raise InputError(f"{target}: cannot be written ({error.strerror})") from None
    return target


def figures(directory: Path) -> dict[str, Figure]:
    """The figures of the report by name, as Matplotlib figures in the light palette, for notebooks and papers."""
    return {chart.name: chart.figure for chart in read(Path(directory)).charts}


def read(directory: Path) -> Document:
    """The page about what is in `directory`, told apart by its files. `InputError` when it is none of the four."""
    import matplotlib

    make = next((make for name, make in _kinds().items() if (directory / name).is_file()), None)
    if make is None:
        files = "it has no summary.json, results.parquet, compare.json or plan.json"
        why = files if directory.is_dir() else "no such directory"
        raise InputError(f"{directory}: is not the output directory of a run, sweep, comparison or plan ({why})")
    with matplotlib.rc_context(theme.RC):
        return make(directory)


def _kinds() -> dict[str, Callable[[Path], Document]]:
    """What makes the page, by the file that tells the kind of a folder."""
    from sim.report import compare_page, plan_page, run_page, sweep_page

    return {
        "plan.json": plan_page.document,
        "compare.json": compare_page.document,
        "results.parquet": sweep_page.document,
        "summary.json": run_page.document,
    }


def render(page: Document) -> str:
    """The HTML of a page; equal pages give equal bytes."""
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("sim.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = environment.get_template("sort.js").render()

    def svg(chart: Chart) -> Markup:
        return Markup(theme.to_svg(chart.figure, chart.name))

    html = environment.get_template("page.html").render(
        page=page, svg=svg, script=Markup(script), script_hash=_content_hash(script)
    )
    return html.lstrip()


def _content_hash(script: str) -> str:
    """What a Content-Security-Policy lets this one script run by."""
    import base64
    import hashlib

    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
