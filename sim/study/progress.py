"""The progress bar of a study: runs done, time left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.study.jobs import Job
    from sim.study.sweep import Progress


@contextmanager
def study_progress(shown: bool, what: str = "runs") -> Iterator[Progress | None]:
    """A bar on standard error with the time left by the mean of the runs so far; gone when the block ends."""
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("left"), TimeRemainingColumn(compact=True), TextColumn("[dim]{task.fields[last]}"),
    )  # fmt: skip
    # A mean over many runs: they differ by orders of magnitude.
    with Bar(*columns, console=Console(stderr=True), transient=True, speed_estimate_period=3600.0) as bar:
        task = bar.add_task(what, total=None, last="")

        def report(ended: int, total: int, job: Job | None) -> None:
            if job is None:  # runs that were there already say nothing about the time left
                bar.update(task, total=total - ended)
            else:
                bar.update(task, advance=1, last=job.label[:60])

        yield report


@contextmanager
def search_progress(shown: bool) -> Iterator[Progress | None]:
    """A line on standard error with the runs done so far; a search does not know how many there will be."""
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("bounds", total=None)
        count = 0

        def report(ended: int, total: int, job: Job | None) -> None:
            nonlocal count
            if job is not None:
                count += 1
                bar.update(task, description=f"{count} runs, last: {job.label[:70]}")

        yield report
