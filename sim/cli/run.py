"""`servesim run`: one experiment from file to output directory, with a progress bar and a summary on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sim.errors import RunError

if TYPE_CHECKING:
    from sim.engine import Simulation
    from sim.experiment import Outcome, Progress


def command(
    experiment: Annotated[Path, typer.Argument(help="The experiment file.", metavar="EXPERIMENT.yaml")],
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a value: cluster.pools.0.replicas=8. May be given many times."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed in place of the file's.", min=0)] = None,
    out: Annotated[Path | None, typer.Option(help="Output directory; default out/NAME.", metavar="DIR")] = None,
    step_by_step: Annotated[
        bool, typer.Option("--step-by-step", help="Evaluate every step, no fast-forward: same results, slower.")
    ] = False,
    step_log: Annotated[bool, typer.Option("--step-log", help="Write steps.parquet, a row a step.")] = False,
    timeline: Annotated[bool, typer.Option("--timeline", help="Write timeline.parquet, sampled state.")] = False,
    report: Annotated[bool, typer.Option("--report", help="Write report.html (records the timeline too).")] = False,
    perfetto: Annotated[
        bool, typer.Option("--perfetto", help="Write trace.json for ui.perfetto.dev (records steps and timeline too).")
    ] = False,
    perfetto_window: Annotated[
        str | None, typer.Option(help="Only this part of the run, in simulated seconds.", metavar="START:END")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json instead of a table.")] = False,
) -> None:
    """Run one experiment and write its results."""
    from sim.config import load_experiment
    from sim.experiment import RunOptions, finish, prepare, write
    from sim.output import check_target
    from sim.perfetto import Window

    window = Window.parse(perfetto_window) if perfetto or perfetto_window is not None else None
    config = load_experiment(experiment, sets or [], seed)
    directory = out or Path("out") / config.name
    check_target(directory)
    options = RunOptions.of(config.output, step_by_step, step_log, timeline, report, window)
    simulation = prepare(config, options)
    with _progress(simulation, shown=not quiet and not as_json) as progress:
        outcome = finish(simulation, config, options, progress)
    left_out = write(outcome, directory)
    if left_out is not None:
        print(f"note: {directory / 'trace.json'}: {left_out}", file=sys.stderr)
    _print(outcome, directory, quiet, as_json)
    _check_expectations(outcome)


def _print(outcome: Outcome, directory: Path, quiet: bool, as_json: bool) -> None:
    if as_json:
        from sim.output import json_text

        print(json_text(outcome.summary), end="")
    elif not quiet:
        from sim.cli.summary import print_summary

        print_summary(outcome, directory)


def _check_expectations(outcome: Outcome) -> None:
    if outcome.failures:
        lines = "".join(f"\n  {line}" for line in outcome.failures)
        count = f"{len(outcome.failures)} of {len(outcome.config.expect)}"
        raise RunError(f"{count} expectations do not hold:{lines}")


@contextmanager
def _progress(simulation: Simulation, shown: bool) -> Iterator[Progress | None]:
    """A progress bar on standard error, if that is a terminal."""
    if not shown or not sys.stderr.isatty():
        yield None
        return
    from sim.cli.progress import progress_bar

    with progress_bar(simulation.workload) as progress:
        yield progress
