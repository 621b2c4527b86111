"""One run from a configuration to its output directory, for the command line, studies and notebooks alike."""

from __future__ import annotations

import platform
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim import STARTED, __version__, output
from sim.config import ExperimentConfig, OutputConfig, dump_yaml
from sim.expressions import failures

if TYPE_CHECKING:
    import pandas as pd

    from sim.engine import Simulation
    from sim.perfetto import Window
    from sim.result import RunResult
    from sim.workload.base import Workload

Progress = Callable[[float, int], None]  # simulated seconds, requests that ended
_LIBRARIES = ("simpy", "numpy", "pandas", "scipy", "pyarrow", "pydantic")


@dataclass(frozen=True)
class RunOptions:
    """How to run and what to record. None of these changes a result."""

    step_by_step: bool = False
    step_log: bool = False
    timeline: bool = False
    timeline_interval: float = 1.0  # simulated seconds between samples
    report: bool = False
    perfetto: Window | None = None  # the part of the run that trace.json has; None: no trace.json

    @classmethod
    def of(
        cls,
        wanted: OutputConfig,
        step_by_step: bool = False,
        step_log: bool = False,
        timeline: bool = False,
        report: bool = False,
        perfetto: Window | None = None,
    ) -> RunOptions:
        """What the file wants and what the flags add. A report records the timeline, a trace the steps as well."""
        report = report or wanted.report
        return cls(
            step_by_step=step_by_step,
            step_log=step_log or wanted.steps or perfetto is not None,
            timeline=timeline or wanted.timeline or report or perfetto is not None,
            timeline_interval=wanted.timeline_interval,
            report=report,
            perfetto=perfetto,
        )


@dataclass(frozen=True)
class Outcome:
    """A finished run, before or after it was written."""

    config: ExperimentConfig
    options: RunOptions
    summary: dict[str, Any]
    requests: pd.DataFrame
    result: RunResult
    failures: list[str]  # `expect` lines that do not hold


def prepare(config: ExperimentConfig, options: RunOptions) -> Simulation:
    """Build the simulation. Raises `InputError` for what only shows when models, profiles and policies are loaded."""
    from sim.build import build

    return build(config, **_recording(options))


def run(config: ExperimentConfig, options: RunOptions | None = None, progress: Progress | None = None) -> Outcome:
    """Build, simulate and summarize; nothing is written."""
    options = options or RunOptions.of(config.output)
    return finish(prepare(config, options), config, options, progress)


def finish(
    simulation: Simulation, config: ExperimentConfig, options: RunOptions, progress: Progress | None = None
) -> Outcome:
    """Simulate what `prepare` built and summarize it."""
    return conclude(simulation.run(progress), simulation.workload, config, options)


def conclude(result: RunResult, workload: Workload, config: ExperimentConfig, options: RunOptions) -> Outcome:
    """Summarize a finished simulation and check the expectations."""
    from sim.measured import measure
    from sim.metrics import requests_frame, summarize

    measured = measure(result, workload, config)
    summary = summarize(result, workload, config, measured)
    frame = requests_frame(result, workload, config, measured)
    unmet = failures(config.expect, {**summary, "summary": summary})
    return Outcome(config, options, summary, frame, result, unmet)


def write(outcome: Outcome, directory: Path) -> str | None:
    """Write the output directory; it appears whole or not at all. Returns what a file of bounded size left out."""
    left_out = None
    with output.output_directory(directory) as folder:
        output.write_json(folder / "summary.json", outcome.summary)
        output.write_text(folder / "config.yaml", dump_yaml(outcome.config))
        output.write_frame(folder / "requests.parquet", outcome.requests)
        if outcome.result.timeline is not None:
            output.write_columns(folder / "timeline.parquet", outcome.result.timeline)
        if outcome.result.steps is not None:
            output.write_columns(folder / "steps.parquet", outcome.result.steps)
        if outcome.result.cache_states is not None:
            output.write_json(folder / "cache_state.json", {"replicas": outcome.result.cache_states})
        if outcome.result.preemptions is not None:
            output.write_columns(folder / "preemptions.parquet", outcome.result.preemptions)
        if outcome.result.routing is not None:
            output.write_columns(folder / "routing.parquet", with_request_ids(outcome))
        if outcome.options.perfetto is not None:
            from sim.perfetto import write_trace

            left_out = write_trace(folder / "trace.json", outcome, outcome.options.perfetto)
        if outcome.options.report:
            from sim.report import write_report

            write_report(folder)
        output.write_json(folder / "run.json", run_facts(outcome.result))
    return left_out


def with_request_ids(outcome: Outcome) -> dict[str, Any]:
    """The columns of routing.parquet: the log of decisions with the ids of requests.parquet for rows."""
    columns = dict(outcome.result.routing or {})
    ids = outcome.requests["request_id"].to_numpy()[columns.pop("row")]
    return {"request_id": ids, **columns}


def peak_memory() -> int:
    """Bytes of resident memory that this process had at most."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def run_facts(result: RunResult) -> dict[str, Any]:
    """run.json: what is true of this execution and not of its configuration, as of now.

    `wall_seconds`: of the simulation only. `process_seconds`: since this process imported `sim`. `peak_memory`: bytes.
    """
    skipped = sum(replica.num_skipped_steps for replica in result.replicas)
    return {
        "wall_seconds": result.wall_seconds,
        "process_seconds": time.perf_counter() - STARTED,
        "peak_memory": peak_memory(),
        "num_skipped_steps": skipped,
        "num_fast_forwards": sum(replica.num_fast_forwards for replica in result.replicas),
        "host": platform.node(),
        "platform": platform.platform(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": _versions(),
    }


def _versions() -> dict[str, str]:
    libraries = {name: metadata.version(name) for name in _LIBRARIES}
    return {"servesim": __version__, "python": platform.python_version(), **libraries}


def _recording(options: RunOptions) -> dict[str, Any]:
    return {
        "step_by_step": options.step_by_step,
        "step_log": options.step_log,
        "timeline_interval": options.timeline_interval if options.timeline else None,
    }
