"""`servesim report`: the HTML page of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sim.errors import InputError


def command(
    directory: Annotated[Path, typer.Argument(help="The output directory of a run.", metavar="DIR")],
    out: Annotated[Path | None, typer.Option("-o", "--out", help="The page; default DIR/report.html.")] = None,
) -> None:
    """Write one self-contained HTML page (no network, no server)."""
    if not (directory / "summary.json").is_file():
        raise InputError(f"{directory}: is not the output directory of a run (it has no summary.json)")
    from sim.report import write_report

    print(write_report(directory, out))
