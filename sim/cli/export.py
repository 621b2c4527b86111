"""`servesim export`: a finished run as a vLLM bench result, a Mooncake trace, or Prometheus text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def command(
    directory: Annotated[Path, typer.Argument(help="The output directory of a run.", metavar="RUN_DIR")],
    format: Annotated[str, typer.Option("--format", help="vllm-bench, mooncake or prometheus.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write it here instead of printing it.")] = None,
) -> None:
    """Write a run in the format of a load generator, a trace or a monitoring system."""
    from sim.measurements.exports import export, write_export

    if output is None:
        print(export(directory, format), end="")
        return
    write_export(directory, format, output)
    print(f"wrote {output}", file=sys.stderr)
