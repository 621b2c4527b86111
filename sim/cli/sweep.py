"""`servesim sweep`: a study from file to table, with progress and time left on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.cli.text import plural, seconds, share, significant
from sim.errors import RunError
from sim.study.text import aligned

if TYPE_CHECKING:
    from sim.study.sweep import SweepOutcome

_METRICS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("ttft.p50", "TTFT p50", seconds),
    ("ttft.p99", "TTFT p99", seconds),
    ("tpot.p99", "TPOT p99", seconds),
    ("e2e.p99", "E2E p99", seconds),
    ("output_token_throughput", "tokens/s out", significant),
    ("slo_attainment", "SLO", share),
    ("cost.price", "USD", significant),
)
_MAX_LINES = 60


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
    report: Annotated[bool, typer.Option("--report", help="Write report.html into the output directory.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON instead of a table.")] = False,
) -> None:
    """Run a study: a grid or a sample of experiments, in parallel, resumable."""
    from sim.study.progress import study_progress
    from sim.study.sweep import Workers, sweep

    with study_progress(shown=not quiet and not as_json and sys.stderr.isatty()) as progress:
        outcome = sweep(study, out, sets or [], Workers(workers, cluster), resume, progress)
    if report:
        from sim.report import write_report

        write_report(outcome.directory)
    if as_json:
        _print_json(outcome)
    elif not quiet:
        _print(outcome)
    _check(outcome)


def _print_json(outcome: SweepOutcome) -> None:
    from sim.output import json_text

    found = {"failed_runs": outcome.failed_runs, "failed_expectations": outcome.failures, "rows": outcome.rows}
    print(json_text({"directory": str(outcome.directory), **found}), end="")


def _print(outcome: SweepOutcome) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(_heading(outcome)))
    head, *lines = aligned(_table(outcome))
    console.print(Text(head, style="dim"))
    for line in lines:
        console.print(Text(line))
    if len(outcome.points) > _MAX_LINES:
        console.print(Text(f"... and {len(outcome.points) - _MAX_LINES} more points in the file", style="dim"))
    for warning in _warnings(outcome):
        console.print(Text.assemble(("warning  ", "yellow"), warning))
    expected = len(outcome.study.config.expect)
    if expected:
        held = "all hold" if not outcome.failures else f"{len(outcome.failures)} do not hold"
        console.print(Text(f"expectations: {expected}, {held}"))
    console.print(Text(f"written to {outcome.directory / 'results.parquet'}", style="dim"))


def _heading(outcome: SweepOutcome) -> str:
    reused = f", {outcome.num_reused} of them from before" if outcome.num_reused else ""
    runs = plural(len(outcome.rows), "run")
    return f"{outcome.study.config.name}: {plural(len(outcome.points), 'point')}, {runs}{reused}\n"


def _table(outcome: SweepOutcome) -> list[list[str]]:
    """Titles, then a line a point: its values, and means over its replications of what people ask for first."""
    from sim.study.points import short_names, shown

    names = short_names(outcome.points[0].values)
    columns = [*_METRICS, *((name, name, significant) for name in outcome.study.config.columns)]
    known = [column for column in columns if any(row.get(column[0]) is not None for row in outcome.rows)]
    table = [[*names.values(), *(title for _, title, _ in known)]]
    for point in outcome.points[:_MAX_LINES]:
        table.append([*(shown(point.values[key]) for key in names), *_cells(outcome, point.index, known)])
    return table


def _cells(outcome: SweepOutcome, point: int, columns: Sequence[tuple[str, str, Callable[[Any], str]]]) -> list[str]:
    from sim.study.table import means

    rows = [row for row in outcome.rows if row["point"] == point]
    if any(row["run_status"] == "failed" for row in rows):
        return ["failed", *[""] * (len(columns) - 1)] if columns else []
    names = means(rows)
    return [text(names.get(metric)) for metric, _, text in columns]


def _warnings(outcome: SweepOutcome) -> list[str]:
    """Warnings that all runs share, and how many have others."""
    finished = [row for row in outcome.rows if row["run_status"] == "finished"]
    texts = [set((row.get("warnings") or "").split("\n")) - {""} for row in finished]
    if not texts:
        return []
    shared = set.intersection(*texts)
    others = sum(1 for text in texts if text - shared)
    more = [f"{plural(others, 'run')} of {len(texts)} have warnings of their own (column warnings)"] if others else []
    return [*sorted(shared), *more]


def _check(outcome: SweepOutcome) -> None:
    problems = [f"run failed: {line}" for line in outcome.failed_runs]
    problems += [f"expectation: {line}" for line in outcome.failures]
    if problems:
        lines = "".join(f"\n  {line}" for line in problems)
        raise RunError(f"{outcome.directory}: {len(problems)} problem(s):{lines}")
