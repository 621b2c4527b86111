"""`servesim init`: a starter experiment, study and plan with comments, which run as they stand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sim.errors import InputError


def command(
    directory: Annotated[
        Path, typer.Argument(help="Where to write; made if it is not there.", metavar="[DIR]")
    ] = Path(),
) -> None:
    """Write a starter experiment, study and plan with comments, and the schemas that editors complete them by."""
    from sim.cli import starters
    from sim.cli.schema import FileKind, schema
    from sim.output import json_text, write_text

    files = {"experiment.yaml": starters.EXPERIMENT, "study.yaml": starters.STUDY, "plan.yaml": starters.PLAN}
    files |= {f"servesim.{kind}.schema.json": json_text(schema(kind)) for kind in FileKind}
    _refuse_to_overwrite(directory, list(files))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            write_text(directory / name, text)
    except OSError as error:
        raise InputError(f"{directory}: cannot be written ({error.strerror})") from None
    print(f"wrote {', '.join(str(directory / name) for name in files)}")
    for command_name, name in (("run", "experiment"), ("sweep", "study"), ("plan", "plan")):
        print(f"next: servesim {command_name} {directory / name}.yaml")


def _refuse_to_overwrite(directory: Path, names: list[str]) -> None:
    if directory.exists() and not directory.is_dir():
        raise InputError(f"{directory}: is a file; init takes a folder")
    there = [name for name in names if (directory / name).exists()]
    if there:
        raise InputError(f"{directory / there[0]}: exists already and is not overwritten; give another folder")
