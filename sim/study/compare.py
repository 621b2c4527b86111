"""Carrying out a comparison: the same seeds for every experiment, then every metric against the first of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim import __version__
from sim.config import ExperimentConfig, load_experiment, resolved
from sim.errors import InputError, RunError
from sim.study.contrast import Contrast, by_batches, by_replications, judged
from sim.study.folder import StudyFolder, study_folder
from sim.study.jobs import Job
from sim.study.keys import run_key
from sim.study.metrics import DEFAULT_METRICS, RequestTable, read_requests, values_of
from sim.study.statistics import of_mean
from sim.study.sweep import Progress, Workers, carry_out

if TYPE_CHECKING:
    from sim.units import FloatArray

MARK = "compare.yaml"
RESULT = "compare.json"


@dataclass(frozen=True)
class Entry:
    """One of the experiments: its name in the comparison and its configurations, one a replication."""

    name: str
    file: str
    configs: tuple[ExperimentConfig, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Pair:
    """An experiment against the baseline."""

    baseline: str
    candidate: str
    contrasts: list[Contrast]


@dataclass(frozen=True)
class Comparison:
    """A finished comparison."""

    directory: Path
    entries: list[Entry]
    num_replications: int
    confidence: float
    pairs: list[Pair]
    skipped: list[str]  # metrics that one of the experiments does not have
    notes: list[str]
    document: dict[str, Any]  # compare.json


@dataclass(frozen=True)
class CompareOptions:
    """How to compare. `metrics`: dotted names of summary.json; None: `DEFAULT_METRICS` as far as they exist."""

    replications: int = 5
    confidence: float = 0.95
    metrics: tuple[str, ...] | None = None
    seed: int | None = None  # of the first replication; None: the first experiment's


def compare(
    paths: Sequence[Path],
    out: Path | None = None,
    sets: Sequence[str] = (),
    options: CompareOptions | None = None,
    workers: Workers | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Comparison:
    """Run the experiments at `paths` under the same random numbers and compare all with the first.

    Raises `InputError` for what cannot be run, `RunError` when a run fails.
    """
    options = options or CompareOptions()
    if len(paths) < 2:
        raise InputError("compare needs at least two experiment files; the first is the baseline")
    entries = _entries(paths, sets, options)
    directory = out or Path("out") / "-vs-".join(entry.name for entry in entries[:3])
    with study_folder(directory, MARK, RESULT, resume) as folder:
        _write_mark(folder, entries)
        num_done = _replicate(folder, entries, workers or Workers(), progress)
        return _finish(folder, entries, num_done, options)


def _entries(paths: Sequence[Path], sets: Sequence[str], options: CompareOptions) -> list[Entry]:
    first = load_experiment(paths[0], sets, options.seed)
    names = _names([first.name, *(load_experiment(path, sets).name for path in paths[1:])], paths)
    entries = []
    for name, path in zip(names, paths, strict=True):
        seeds = range(first.seed, first.seed + options.replications)
        configs = tuple(load_experiment(path, sets, seed) for seed in seeds)
        entries.append(Entry(name, str(path), configs, tuple(run_key(config) for config in configs)))
    return entries


def _names(names: list[str], paths: Sequence[Path]) -> list[str]:
    """Names of the experiments; where two are equal those of the files, and numbers where these are equal too."""
    if len(set(names)) < len(names):
        names = [path.stem for path in paths]
    if len(set(names)) < len(names):
        names = [f"{name}-{index + 1}" for index, name in enumerate(names)]
    return names


def _replicate(folder: StudyFolder, entries: list[Entry], workers: Workers, progress: Progress | None) -> int:
    """Do the runs; returns how many replications there are: 1 where a second one showed that nothing is random."""
    wanted = len(entries[0].configs)
    first = min(wanted, 2)
    _run(folder, [_job(entry, i) for entry in entries for i in range(first)], workers, progress)
    if wanted == 1 or all(_same(folder, entry) for entry in entries):
        return 1
    if wanted > first:
        _run(folder, [_job(entry, i) for entry in entries for i in range(wanted)], workers, progress)
    return wanted


def _run(folder: StudyFolder, jobs: list[Job], workers: Workers, progress: Progress | None) -> None:
    done, _ = carry_out(folder, jobs, workers, progress)
    labels = {job.key: job.label for job in jobs}
    failed = [f"{labels[key]}: {result.error}" for key, result in done.items() if result.error]
    if failed:
        raise RunError("\n".join(failed))


def _job(entry: Entry, replication: int) -> Job:
    config = entry.configs[replication]
    return Job(entry.keys[replication], f"{entry.name} (seed {config.seed})", config)


def _same(folder: StudyFolder, entry: Entry) -> bool:
    """Whether the first two replications gave the same numbers."""
    return folder.summary(entry.keys[0]) == folder.summary(entry.keys[1])


def _finish(folder: StudyFolder, entries: list[Entry], number: int, options: CompareOptions) -> Comparison:
    summaries = [[folder.summary(key) for key in entry.keys[:number]] for entry in entries]
    wanted = options.metrics or DEFAULT_METRICS
    values = {metric: [values_of(own, metric) for own in summaries] for metric in wanted}
    skipped = [metric for metric, found in values.items() if any(value is None for value in found)]
    known = {m: [v for v in found if v is not None] for m, found in values.items() if m not in skipped}
    contrasts = _contrasts(folder, entries, known, number, options.confidence)
    size = len(known)
    pairs = [
        Pair(entries[0].name, entry.name, contrasts[i * size : (i + 1) * size]) for i, entry in enumerate(entries[1:])
    ]
    notes = _notes(entries, number, options)
    document = _document(entries, summaries, known, pairs, number, options, skipped, notes)
    _write(folder, document, pairs)
    return Comparison(folder.path, entries, number, options.confidence, pairs, skipped, notes, document)


def _contrasts(
    folder: StudyFolder, entries: list[Entry], values: dict[str, list[FloatArray]], number: int, confidence: float
) -> list[Contrast]:
    """Of every experiment but the first, metric by metric; judged together."""
    if number > 1:
        found = [
            by_replications(metric, own[0], own[i], confidence)
            for i in range(1, len(entries))
            for metric, own in values.items()
        ]
        return judged(found, confidence)
    tables = [read_requests(folder.runs / entry.keys[0], entry.configs[0]) for entry in entries]
    return judged(_by_batches(tables, values, confidence), confidence)


def _by_batches(tables: list[RequestTable], values: dict[str, list[FloatArray]], confidence: float) -> list[Contrast]:
    return [
        by_batches(metric, (float(own[0][0]), float(own[i][0])), (tables[0], tables[i]), confidence)
        for i in range(1, len(tables))
        for metric, own in values.items()
    ]


def _notes(entries: list[Entry], number: int, options: CompareOptions) -> list[str]:
    notes = []
    if number < options.replications:
        notes.append("two seeds gave the same numbers: nothing is random here, so batches of the one run are compared")
    elif number == 1:
        notes.append("one replication: batches of the one run are compared")
    workloads = {json.dumps(resolved(entry.configs[0])["workload"], sort_keys=True) for entry in entries}
    if len(workloads) > 1:
        notes.append("the experiments have different workloads, so differences are theirs too")
    return notes


def _document(
    entries: list[Entry],
    summaries: list[list[dict[str, Any]]],
    values: dict[str, list[FloatArray]],
    pairs: list[Pair],
    number: int,
    options: CompareOptions,
    skipped: list[str],
    notes: list[str],
) -> dict[str, Any]:
    return {
        "experiments": [
            {"name": e.name, "file": e.file, "runs": list(e.keys[:number]), "metrics": _estimates(i, values, options)}
            for i, e in enumerate(entries)
        ],
        "replications": number,
        "seeds": [config.seed for config in entries[0].configs[:number]],
        "confidence": options.confidence,
        "correction": "Holm, over all metrics and pairs",
        "pairs": [
            {"baseline": p.baseline, "candidate": p.candidate, "metrics": [c.row() for c in p.contrasts]} for p in pairs
        ],
        "skipped_metrics": skipped,
        "notes": notes,
        "warnings": {e.name: own[0]["warnings"] for e, own in zip(entries, summaries, strict=True)},
        "versions": {"servesim": __version__, "profiles": summaries[0][0]["versions"]["profiles"]},
    }


def _estimates(index: int, values: dict[str, list[FloatArray]], options: CompareOptions) -> dict[str, Any]:
    """Mean over replications with its t interval (null for a single one), by metric."""
    found = {}
    for metric, own in values.items():
        spread = of_mean(own[index]) if len(own[index]) > 1 else None
        interval = spread.interval(options.confidence) if spread else None
        found[metric] = {
            "mean": spread.centre if spread else float(own[index][0]),
            "low": interval.low if interval else None,
            "high": interval.high if interval else None,
        }
    return found


def _write(folder: StudyFolder, document: dict[str, Any], pairs: list[Pair]) -> None:
    import pandas as pd

    from sim.output import write_frame, write_json

    rows = [{"baseline": p.baseline, "candidate": p.candidate, **c.row()} for p in pairs for c in p.contrasts]
    write_frame(folder.path / "compare.parquet", pd.DataFrame(rows))
    write_json(folder.path / RESULT, document)


def _write_mark(folder: StudyFolder, entries: list[Entry]) -> None:
    from sim.output import write_text
    from sim.yamlfile import dump

    values = [{"name": entry.name, "experiment": resolved(entry.configs[0])} for entry in entries]
    write_text(folder.path / MARK, dump({"replications": len(entries[0].configs), "experiments": values}))
