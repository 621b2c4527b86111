"""`servesim sweep`: a study from file to table, with progress and time left on the terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sim.errors import RunError

if TYPE_CHECKING:
    from sim.study.sweep import SweepOutcome


def command(
    study: Annotated[Path, typer.Argument(help="The study file.", metavar="STUDY.yaml")],
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a value of the base experiment. May be given many times."),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; default: one a core.", min=1)] = None,
    cluster: Annotated[
        str | None, typer.Option(help="Scheduler of a dask.distributed cluster, tcp://host:port.", metavar="ADDRESS")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Keep the runs that are there and do the rest.")] = False,
    out: Annotated[Path | None, typer.Option(help="Output directory; default out/NAME.", metavar="DIR")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON instead of a table.")] = False,
) -> None:
    """Run a study: a grid or a sample of experiments, in parallel, resumable."""
    from sim.study.progress import study_progress
    from sim.study.sweep import Workers, sweep

    with study_progress(shown=not quiet and not as_json and sys.stderr.isatty()) as progress:
        outcome = sweep(study, out, sets or [], Workers(workers, cluster), resume, progress)
    if as_json:
        _print_json(outcome)
    elif not quiet:
        from sim.study.print_sweep import print_sweep

        print_sweep(outcome)
    _check(outcome)


def _print_json(outcome: SweepOutcome) -> None:
    from sim.output import json_text

    found = {"failed_runs": outcome.failed_runs, "failed_expectations": outcome.failures, "rows": outcome.rows}
    print(json_text({"directory": str(outcome.directory), **found}), end="")


def _check(outcome: SweepOutcome) -> None:
    problems = [f"run failed: {line}" for line in outcome.failed_runs]
    problems += [f"expectation: {line}" for line in outcome.failures]
    if problems:
        lines = "".join(f"\n  {line}" for line in problems)
        raise RunError(f"{outcome.directory}: {len(problems)} problem(s):{lines}")
