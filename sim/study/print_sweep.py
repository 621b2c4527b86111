"""What `servesim sweep` prints: a line a point with the metrics that people ask for first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sim.cli.text import plural, seconds, share, significant
from sim.study.points import short_names, shown
from sim.study.sweep import RESULT, SweepOutcome
from sim.study.table import means

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


def print_sweep(outcome: SweepOutcome) -> None:
    """Print the points and where the files are to standard output."""
    console = Console(highlight=False)
    runs = plural(len(outcome.rows), "run")
    reused = f", {outcome.num_reused} of them from before" if outcome.num_reused else ""
    console.print(Text(f"{outcome.study.config.name}: {plural(len(outcome.points), 'point')}, {runs}{reused}\n"))
    console.print(_table(outcome))
    if len(outcome.points) > _MAX_LINES:
        console.print(Text(f"... and {len(outcome.points) - _MAX_LINES} more points in {RESULT}", style="dim"))
    for warning in _warnings(outcome):
        console.print(Text.assemble(("warning     ", "yellow"), warning))
    expected = len(outcome.study.config.expect)
    if expected:
        held = "all hold" if not outcome.failures else f"{len(outcome.failures)} do not hold"
        console.print(Text(f"expectations: {expected}, {held}"))
    console.print(Text(f"written to {outcome.directory / RESULT}", style="dim"))


def _table(outcome: SweepOutcome) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    names = short_names(outcome.points[0].values)
    for name in names.values():
        table.add_column(name, justify="right", overflow="fold")
    columns = [*_METRICS, *((name, name, significant) for name in outcome.study.config.columns)]
    known = [column for column in columns if any(row.get(column[0]) is not None for row in outcome.rows)]
    for _, title, _ in known:
        table.add_column(title, justify="right")
    for point in outcome.points[:_MAX_LINES]:
        table.add_row(*(shown(point.values[key]) for key in names), *_cells(outcome, point.index, known))
    return table


def _cells(outcome: SweepOutcome, point: int, columns: list[tuple[str, str, Callable[[Any], str]]]) -> list[str]:
    rows = [row for row in outcome.rows if row["point"] == point]
    if any(row["run_status"] == "failed" for row in rows):
        return ["failed", *[""] * (len(columns) - 1)] if columns else []
    names = means(rows)
    return [text(names.get(metric)) for metric, _, text in columns]


def _warnings(outcome: SweepOutcome) -> list[str]:
    """Warnings that all runs share, and how many have others."""
    texts = [
        set((row.get("warnings") or "").split("\n")) - {""} for row in outcome.rows if row["run_status"] != "failed"
    ]
    if not texts:
        return []
    shared = set.intersection(*texts)
    others = sum(1 for text in texts if text - shared)
    more = [f"{plural(others, 'run')} of {len(texts)} have warnings of their own (column warnings)"] if others else []
    return [*sorted(shared), *more]
