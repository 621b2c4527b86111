"""`servesim report`: the HTML page of a finished run, sweep, comparison or plan, and its figures as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    directory: Annotated[
        Path, typer.Argument(help="The output directory of a run, sweep, comparison or plan.", metavar="DIR")
    ],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="The page; default DIR/report.html.", metavar="FILE.html")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Write every figure as SVG, PNG and CSV into this folder.", metavar="DIR")
    ] = None,
) -> None:
    """Write one self-contained HTML page (no network, no server)."""
    from sim.report import write_figures, write_report

    print(write_report(directory, out))
    if figures is not None:
        for path in write_figures(directory, figures):
            print(path)
