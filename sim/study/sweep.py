"""Carrying out a study: which runs are missing, doing them, and the table over all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sim.errors import InputError
from sim.study.config import Study, load_study, written
from sim.study.engines import Engine, Kept, cluster_engine, local_engine, num_cores
from sim.study.folder import StudyFolder, study_folder
from sim.study.jobs import INPUT_ERROR, Done, Job
from sim.study.keys import run_key
from sim.study.points import Point, points_of
from sim.study.runner import run_jobs
from sim.study.table import Row, check_names, frame_of, make_row, unmet

if TYPE_CHECKING:
    import pandas as pd

    from sim.yamlfile import YamlFile

MARK = "study.yaml"
RESULT = "results.parquet"
Progress = Callable[[int, int, Job | None], None]  # runs that ended, all runs, the one that ended now


@dataclass(frozen=True)
class Workers:
    """Where runs are carried out: `number` processes here (None: one a core), or the cluster at an address."""

    number: int | None = None
    cluster: str | None = None
    kept: Engine | None = None  # one that is open already

    @property
    def count(self) -> int:
        """Runs at once."""
        return self.kept.num_workers if self.kept else self.number or num_cores()

    def engine(self, num_jobs: int) -> AbstractContextManager[Engine]:
        """The engine for so many jobs."""
        if self.kept is not None:
            return nullcontext(self.kept)
        if self.cluster is not None:
            return cluster_engine(self.cluster)
        return nullcontext(local_engine(min(self.count, num_jobs)))


@contextmanager
def keep_workers(workers: Workers) -> Iterator[Workers]:
    """The same workers, started once for all that is carried out inside the block."""
    with workers.engine(workers.count) as engine, Kept(engine) as kept:
        yield Workers(workers.number, workers.cluster, kept)


@dataclass(frozen=True)
class SweepOutcome:
    """A finished study."""

    study: Study
    directory: Path
    points: list[Point]
    rows: list[Row]
    frame: pd.DataFrame
    num_reused: int  # runs that were there already
    failures: list[str]  # expectations that do not hold

    @property
    def failed_runs(self) -> list[str]:
        """`point: error` of each run that failed."""
        failed = [row for row in self.rows if row["run_status"] == "failed"]
        return list(dict.fromkeys(f"{self.points[row['point']].label}: {row['run_error']}" for row in failed))


def sweep(
    source: Path | YamlFile,
    out: Path | None = None,
    sets: Sequence[str] = (),
    workers: Workers | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> SweepOutcome:
    """Read and carry out the study `source`; results go to `out` (default: out/NAME).

    Raises `InputError` for a study that cannot be run at all. Runs that fail have a row that says why.
    """
    study = load_study(source, sets)
    points = points_of(study)
    check_names(study, points)
    check_cluster_policies(points)
    directory = out or Path("out") / study.config.name
    with study_folder(directory, MARK, RESULT, resume) as folder:
        from sim.output import write_text

        write_text(folder.path / MARK, _text(study))
        keys = [[run_key(config) for config in point.configs] for point in points]
        done, num_reused = carry_out(folder, _jobs(points, keys), workers or Workers(), progress)
        return _finish(study, points, keys, folder, done, num_reused)


def carry_out(
    folder: StudyFolder, jobs: Sequence[Job], workers: Workers, progress: Progress | None, refuse: bool = True
) -> tuple[dict[str, Done], int]:
    """Do the jobs whose runs are not in the folder yet; what became of them, and how many were there already.

    With `refuse` raises `InputError` when all runs fail for what they were given.
    """
    unique = list({job.key: job for job in jobs}.values())
    missing = [job for job in unique if not folder.has(job.key)]
    num_reused = len(unique) - len(missing)
    report = progress or (lambda ended, total, job: None)
    report(num_reused, len(unique), None)
    num_ended = num_reused

    def on_done(job: Job, _: Done) -> None:
        nonlocal num_ended
        num_ended += 1
        report(num_ended, len(unique), job)

    done = _run(missing, folder, workers, on_done)
    refused = [result for result in done.values() if result.kind == INPUT_ERROR]
    if refuse and refused and len(refused) == len(unique):
        raise InputError("\n".join(dict.fromkeys(str(result.error) for result in refused)))
    return done, num_reused


def check_cluster_policies(points: Sequence[Point]) -> None:
    """Build the policies of every cluster slot once, so that a wrong name or parameter is found before any run."""
    from sim.build import make_slot
    from sim.seeds import Seeds

    seen = set()
    for config in (point.configs[0] for point in points):
        for slot in ("router", "admission", "autoscaler", "disaggregation", "placement"):
            text = f"{slot} {getattr(config.cluster, slot)!r}"
            if text not in seen:
                seen.add(text)
                make_slot(config, slot, Seeds(config.seed))


def _run(
    jobs: list[Job], folder: StudyFolder, workers: Workers, on_done: Callable[[Job, Done], None]
) -> dict[str, Done]:
    if not jobs:
        return {}
    with workers.engine(len(jobs)) as engine:
        return run_jobs(jobs, engine, folder.runs, on_done)


def _jobs(points: Sequence[Point], keys: Sequence[Sequence[str]]) -> list[Job]:
    return [
        Job(key, f"{point.label} (seed {config.seed})", config)
        for point, own in zip(points, keys, strict=True)
        for config, key in zip(point.configs, own, strict=True)
    ]


def _finish(
    study: Study,
    points: list[Point],
    keys: list[list[str]],
    folder: StudyFolder,
    done: dict[str, Done],
    num_reused: int,
) -> SweepOutcome:
    from sim.output import write_frame

    rows = []
    for point, own in zip(points, keys, strict=True):
        for replication, key in enumerate(own):
            summary = folder.summary(key) if folder.has(key) else None
            rows.append(make_row(study, point, replication, key, summary, done.get(key, Done(key))))
    frame = frame_of(rows)
    write_frame(folder.path / RESULT, frame)
    return SweepOutcome(study, folder.path, points, rows, frame, num_reused, unmet(study, points, rows))


def _text(study: Study) -> str:
    from sim.yamlfile import dump

    return dump(written(study))
