"""One run of a study, as a task that any process can carry out."""

from __future__ import annotations

import tempfile
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from sim.config import ExperimentConfig
from sim.errors import InputError, ServesimError

INPUT_ERROR = "input"  # the configuration cannot be run
RUN_ERROR = "run"  # the run failed


@dataclass(frozen=True)
class Job:
    """A run that is to be done: its key, which names its folder, and its configuration."""

    key: str
    label: str
    config: ExperimentConfig


@dataclass(frozen=True)
class Done:
    """What became of a job. `files`: name -> content, where the worker could not write the folder itself."""

    key: str
    error: str | None = None
    kind: str | None = None  # of the error
    files: dict[str, bytes] = field(default_factory=dict)


def execute(job: Job, runs: Path | None) -> Done:
    """Run `job` and write `runs`/KEY, which appears whole or not at all; without `runs` return the files.

    An error of any kind is an answer, not an exception: one broken run does not end a study.
    """
    try:
        if runs is not None:
            _run(job, runs / job.key)
            return Done(job.key)
        with tempfile.TemporaryDirectory(prefix="servesim-") as folder:
            _run(job, Path(folder) / job.key)
            return Done(job.key, files=_contents(Path(folder) / job.key))
    except InputError as error:
        return Done(job.key, str(error), INPUT_ERROR)
    except ServesimError as error:
        return Done(job.key, str(error), RUN_ERROR)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return Done(job.key, f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})", RUN_ERROR)


def save(done: Done, runs: Path) -> None:
    """Write the files that came back from a worker elsewhere; the folder appears whole or not at all."""
    from sim.output import output_directory

    if done.files:
        with output_directory(runs / done.key) as folder:
            for name, content in done.files.items():
                (folder / name).write_bytes(content)


def _run(job: Job, directory: Path) -> None:
    from sim.experiment import run, write

    write(run(job.config), directory)


def _contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}
