"""The progress bar of a run: simulated time, requests done, time left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from sim.cli.text import clock
from sim.experiment import Progress as Report
from sim.workload.base import Workload

_REFRESH = 0.1  # seconds between updates


@contextmanager
def progress_bar(workload: Workload) -> Iterator[Report]:
    """A bar on standard error, gone when the block ends; yields what the engine calls with (simulated time, done)."""
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[state]}"),
        TextColumn("left"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulating", total=1.0, state="")
        horizon, count = horizon_of(workload), len(workload)
        last = 0.0

        def report(now: float, num_done: int) -> None:
            nonlocal last
            if (at := time.perf_counter()) - last >= _REFRESH:
                last = at
                state = f"{clock(now)} simulated, {num_done:,} of {count:,} requests"
                bar.update(task, completed=share_done(now, num_done, count, horizon), state=state)

        yield report


def horizon_of(workload: Workload) -> float | None:
    """Simulated seconds to the last arrival; None where arrivals are only decided during the run."""
    if workload.closed_loop is not None or workload.previous is not None or len(workload) == 0:
        return None
    return float(np.max(workload.arrival_time)) or None


def share_done(now: float, num_done: int, count: int, horizon: float | None) -> float:
    """Share of the work that is done: the mean of the shares of simulated time and of requests, or the latter alone."""
    of_requests = num_done / count if count else 1.0
    return of_requests if horizon is None else min(1.0, (now / horizon + of_requests) / 2)
