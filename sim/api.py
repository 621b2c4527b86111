"""The Python interface: run, sweep, compare and plan as functions whose results are DataFrames.

`import sim` gives them (`sim.run(...)`); heavy libraries are loaded when a function needs them. An experiment, a study
or a plan is the path of its YAML file or a mapping of the same keys, whose relative paths start from the current
directory. `set` lays values over key paths (`{"cluster.pools.0.replicas": 4}`), as `--set` does. Everything that the
command line refuses raises `sim.errors.InputError` with the same message.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from sim.config import ExperimentConfig
    from sim.study.compare import Comparison
    from sim.study.plan import PlanOutcome
    from sim.study.sweep import SweepOutcome

Source = str | os.PathLike[str] | Mapping[str, Any]
Settings = Mapping[str, Any] | None
LATENCIES = ("ttft", "tpot", "itl", "itl_request_mean", "e2e", "queueing_delay")


@dataclass(frozen=True)
class Run:
    """A finished run. `document` is summary.json; times in seconds from the start of the simulation.

    `requests`: one row a request. `timeline`, `steps`: None unless they were recorded. `failures`: expectations of the
    experiment that do not hold. Columns and names: the contract of the output files (README).
    """

    document: dict[str, Any]
    config: dict[str, Any]
    requests: pd.DataFrame
    timeline: pd.DataFrame | None = None
    steps: pd.DataFrame | None = None
    failures: tuple[str, ...] = ()

    @cached_property
    def summary(self) -> pd.Series[Any]:
        """The summary by dotted names, as in `result.summary["ttft.p99"]`."""
        import pandas as pd

        from sim.study.table import flatten

        return pd.Series(flatten(self.document), name=self.config["name"], dtype=object)

    @cached_property
    def latencies(self) -> pd.DataFrame:
        """Statistics of every latency in seconds: rows ttft, tpot, itl, ...; columns mean, std, min, p50 ... max."""
        import pandas as pd

        return pd.DataFrame({name: self.document[name] for name in LATENCIES}, dtype=float).T

    @property
    def warnings(self) -> list[str]:
        """What the reader of the numbers has to know."""
        return list(self.document["warnings"])

    def plot(self) -> Figure:
        """Distributions of TTFT, TPOT, the longest gap and E2E over finished requests, with the limits of the SLO."""
        from sim.figures import latency_figure

        return latency_figure(self.requests, self.config)


@dataclass(frozen=True)
class Sweep:
    """A finished study: one row a run in `frame`, expectations that do not hold in `failures`."""

    outcome: SweepOutcome

    @property
    def frame(self) -> pd.DataFrame:
        """Varied keys, seed, the summary with dotted names, and the study's columns."""
        return self.outcome.frame

    @property
    def failures(self) -> list[str]:
        return self.outcome.failures

    @property
    def directory(self) -> Path:
        return self.outcome.directory

    def plot(self, x: str, y: str = "ttft.p99") -> Figure:
        """`y` over `x` (column names), a line for every combination of the other varied keys; means over seeds."""
        from sim.figures import sweep_figure

        keys = [key for key in self.outcome.points[0].values if key != x]
        return sweep_figure(self.frame, x, y, keys)


@dataclass(frozen=True)
class Compared:
    """A finished comparison with the first experiment: `frame` has a row a metric and pair; `document` the rest."""

    outcome: Comparison

    @property
    def frame(self) -> pd.DataFrame:
        """baseline, candidate, metric, their values, the difference with its interval, the verdict."""
        import pandas as pd

        pairs = self.outcome.pairs
        rows = [{"baseline": p.baseline, "candidate": p.candidate, **c.row()} for p in pairs for c in p.contrasts]
        return pd.DataFrame(rows)

    @property
    def document(self) -> dict[str, Any]:
        return self.outcome.document

    @property
    def directory(self) -> Path:
        return self.outcome.directory


@dataclass(frozen=True)
class Planned:
    """A finished plan: `winner` (None when nothing meets the SLO), and a row a candidate in `frame`."""

    outcome: PlanOutcome

    @property
    def winner(self) -> dict[str, Any] | None:
        return self.outcome.winner

    @property
    def frame(self) -> pd.DataFrame:
        """The candidates with status, replicas, money, the latencies of the decisive simulation, and why not."""
        import pandas as pd

        return pd.DataFrame(self.outcome.document["candidates"])

    @property
    def document(self) -> dict[str, Any]:
        return self.outcome.document

    @property
    def directory(self) -> Path:
        return self.outcome.directory


def run(
    experiment: Source,
    *,
    set: Settings = None,
    seed: int | None = None,
    out: str | os.PathLike[str] | None = None,
    timeline: bool = False,
    steps: bool = False,
    step_by_step: bool = False,
) -> Run:
    """Run one experiment. Nothing is written unless `out` names a folder (as `servesim run --out`).

    `timeline`, `steps`: record them. `step_by_step`: no fast-forward; the same numbers, later.
    """
    from sim import experiment as experiments

    config = _config(experiment, set, seed)
    options = experiments.RunOptions.of(config.output, step_by_step, steps, timeline)
    outcome = experiments.run(config, options)
    if out is not None:
        experiments.write(outcome, Path(out))
    return _result(outcome)


def load(directory: str | os.PathLike[str]) -> Run:
    """A run that was written, by `servesim run` or by `run(out=...)`. `InputError` where there is none."""
    import pandas as pd

    from sim import yamlfile

    folder = Path(directory)
    if not (folder / "summary.json").is_file():
        raise InputError(f"{folder}: is not the output directory of a run (it has no summary.json)")

    def table(name: str) -> pd.DataFrame | None:
        path = folder / f"{name}.parquet"
        return pd.read_parquet(path) if path.is_file() else None

    requests = pd.read_parquet(folder / "requests.parquet")
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return Run(summary, yamlfile.read(folder / "config.yaml").values, requests, table("timeline"), table("steps"))


def sweep(
    study: Source,
    *,
    set: Settings = None,
    out: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    resume: bool = False,
) -> Sweep:
    """Carry out a study in `out` (default out/NAME) with so many processes (default: one a core).

    With more than one worker, call it from a script under `if __name__ == "__main__":`, as multiprocessing asks.
    """
    from sim.study.sweep import Workers
    from sim.study.sweep import sweep as carry_out

    return Sweep(carry_out(_file(study, "study"), _path(out), _texts(set), Workers(workers), resume))


def compare(
    *experiments: Source,
    set: Settings = None,
    seed: int | None = None,
    replications: int = 5,
    metrics: Sequence[str] | None = None,
    confidence: float = 0.95,
    out: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    resume: bool = False,
) -> Compared:
    """Compare experiments with the first of them, under the same random numbers, in `out` (default out/A-vs-B)."""
    from sim.study.compare import CompareOptions
    from sim.study.compare import compare as carry_out
    from sim.study.sweep import Workers

    options = CompareOptions(replications, confidence, None if metrics is None else tuple(metrics), seed)
    with _files(experiments) as paths:
        return Compared(carry_out(paths, _path(out), _texts(set), options, Workers(workers), resume))


def plan(
    plan: Source,
    *,
    set: Settings = None,
    out: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    resume: bool = False,
) -> Planned:
    """Find the cheapest deployment that meets the SLO, in `out` (default out/NAME)."""
    from sim.study.plan import make_plan
    from sim.study.sweep import Workers

    return Planned(make_plan(_file(plan, "plan"), _path(out), Workers(workers), resume, sets=_texts(set)))


# --- from what was given to what the functions of the command line take -----------------------------------------------


def _config(source: Source, settings: Settings, seed: int | None) -> ExperimentConfig:
    from sim.config import experiment_from_values, load_experiment
    from sim.config_sets import Setting, parse_setting

    if not isinstance(source, Mapping):
        return load_experiment(Path(source), _texts(settings), seed)
    laid = [parse_setting(text) for text in _texts(settings)]
    if seed is not None:
        laid.append(Setting(f"seed={seed}", ("seed",), seed))
    return experiment_from_values(dict(source), Path.cwd(), settings=laid)


def _texts(settings: Settings) -> list[str]:
    """`--set` texts; a value of any kind that YAML has is a value in JSON, which is YAML."""
    return [f"{key}={json.dumps(value)}" for key, value in (settings or {}).items()]


def _file(source: Source, name: str) -> Any:
    """A path, or a mapping as a file without positions that stands in the current directory."""
    from sim.yamlfile import YamlFile

    return YamlFile(name, dict(source), {}) if isinstance(source, Mapping) else Path(source)


@contextmanager
def _files(sources: Sequence[Source]) -> Iterator[list[Path]]:
    """All as files; mappings as temporary ones with absolute paths."""
    import tempfile

    from sim import yamlfile
    from sim.config_paths import absolute_paths

    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for number, source in enumerate(sources):
            if not isinstance(source, Mapping):
                paths.append(Path(source))
                continue
            name = str(source.get("name", f"experiment-{number + 1}"))
            path = Path(folder) / f"{number}.yaml"
            values = absolute_paths({**source, "name": name}, Path.cwd())
            path.write_text(yamlfile.dump(values), encoding="utf-8")
            paths.append(path)
        yield paths


def _path(out: str | os.PathLike[str] | None) -> Path | None:
    return None if out is None else Path(out)


def _result(outcome: Any) -> Run:
    import pandas as pd

    from sim.config import resolved

    def frame(columns: Any) -> pd.DataFrame | None:
        return None if columns is None else pd.DataFrame(columns)

    found = outcome.result
    return Run(
        outcome.summary,
        resolved(outcome.config),
        outcome.requests,
        frame(found.timeline),
        frame(found.steps),
        tuple(outcome.failures),
    )
