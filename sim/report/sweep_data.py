"""What the page of a sweep is made from: its points with all their runs, means and intervals, verdicts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from sim.errors import InputError
from sim.report.data import read_json
from sim.report.text import is_share
from sim.slo import read_slo
from sim.study.config import Study, load_study
from sim.study.points import Point, combinations, short_names, shown
from sim.study.statistics import of_mean
from sim.study.table import STATUS, Row, unmet

CONFIDENCE = 0.95
FEWEST = 3  # runs of which an interval is taken: that of two is too wide to say anything
METRICS = (
    "slo_attainment",
    "goodput",
    "ttft.p50",
    "ttft.p99",
    "tpot.p50",
    "tpot.p99",
    "itl.p99",
    "e2e.p99",
    "output_token_throughput",
    "prefix_cache.hit_rate",
    "num_preemptions",
    "cost.price",
)
_LOADS = ("rate", "rate_scale", "concurrency", "users")  # ends of the key paths that say how much arrives
MOST_LINES = 8
_MOST_LETTERS = 40


@dataclass(frozen=True)
class SweepPoint:
    """One combination of varied values and its runs."""

    index: int
    values: dict[str, Any]
    rows: tuple[Row, ...]

    @property
    def failed(self) -> str | None:
        """Why a run of it failed."""
        return next((str(row.get("run_error")) for row in self.rows if row[STATUS] != "finished"), None)

    def all(self, metric: str) -> list[float]:
        """The metric in every run that has it."""
        values = [row.get(metric) for row in self.rows]
        return [float(v) for v in values if isinstance(v, int | float) and not math.isnan(v)]

    def mean(self, metric: str) -> float | None:
        """Mean over replications; None where a run lacks it or failed."""
        values = self.all(metric)
        return math.fsum(values) / len(values) if values and len(values) == len(self.rows) else None

    def interval(self, metric: str) -> tuple[float, float] | None:
        """Interval of the mean at 95 %, cut at 0 (and shares at 1); of two runs their range; None for a single one."""
        values = self.all(metric)
        if len(values) < 2 or len(values) < len(self.rows):
            return None
        if len(values) < FEWEST:
            return min(values), max(values)
        found = of_mean(np.array(values)).interval(CONFIDENCE)
        most = 1.0 if is_share(metric) else math.inf
        return max(found.low, 0.0), min(found.high, most)

    @property
    def stable(self) -> bool:
        """Whether every run was."""
        return all(row.get("stability") in (None, "stable") for row in self.rows)


@dataclass(frozen=True)
class Line:
    """Points along one axis with the other varied values fixed: for each x the points that have it."""

    label: str
    x: list[float]
    points: list[list[SweepPoint]]

    def means(self, metric: str) -> list[float | None]:
        """Mean over the points at each x."""
        return [mean_of(points, metric) for points in self.points]

    def intervals(self, metric: str) -> list[tuple[float, float] | None]:
        """Where there is one point at each x: its interval."""
        return [points[0].interval(metric) if len(points) == 1 else None for points in self.points]


@dataclass(frozen=True)
class SweepData:
    """A sweep as its folder tells it."""

    directory: Path
    study: Study
    points: list[SweepPoint]
    verdicts: list[tuple[str, list[str]]]  # expectation, where it does not hold

    @cached_property
    def keys(self) -> list[str]:
        """Varied keys with more than one value; of keys that go together only as many as tell their values apart."""
        implied = [key for group in self.study.config.zips for key in _implied(group)]
        return [key for key in self.points[0].values if key not in implied and len(self.choices(key)) > 1]

    @cached_property
    def names(self) -> dict[str, str]:
        """Short names of all varied keys."""
        return short_names(self.points[0].values)

    @cached_property
    def numeric(self) -> list[str]:
        """Varied keys whose values are numbers, those with most values first."""
        found = [key for key in self.keys if all(is_number(point.values[key]) for point in self.points)]
        return sorted(found, key=lambda key: -len(self.choices(key)))

    @cached_property
    def load(self) -> str | None:
        """The varied key that says how much arrives."""
        found = [k for k in self.numeric if k.startswith("workload.") and k.rpartition(".")[2] in _LOADS]
        return found[0] if found else None

    @cached_property
    def spread_words(self) -> str:
        """What the intervals are."""
        number = self.study.config.replications
        if number == 1:
            return "one run a point"
        return "ranges of the two runs" if number < FEWEST else f"95 % intervals over {number} replications"

    @cached_property
    def target(self) -> float | None:
        """The share of requests that has to meet the SLO; None without one, or with several."""
        objectives = read_slo(self.study.base_values.get("slo"))
        return objectives[0].attainment if len(objectives) == 1 else None

    def choices(self, key: str) -> list[Any]:
        """The values of a key, numbers increasing, others in the order of the file."""
        values: dict[str, Any] = {}
        for point in self.points:
            values.setdefault(shown(point.values[key]), point.values[key])
        found = list(values.values())
        return sorted(found) if all(is_number(value) for value in found) else found

    def label(self, point: SweepPoint, keys: Sequence[str] | None = None) -> str:
        """`policy=fcfs, rate=12` for people."""
        wanted = self.keys if keys is None else keys
        return ", ".join(f"{self.names[key]}={short(point.values[key])}" for key in wanted) or "the experiment"

    def known(self, metrics: Sequence[str]) -> list[str]:
        """Those of the metrics that some point has."""
        return [metric for metric in metrics if any(point.mean(metric) is not None for point in self.points)]

    def where(self, **values: Any) -> list[SweepPoint]:
        """The points with these values by key."""
        wanted = {key: shown(value) for key, value in values.items()}
        return [p for p in self.points if all(shown(p.values[key]) == value for key, value in wanted.items())]

    def lines(self, x: str) -> tuple[list[Line], list[str]]:
        """At most `MOST_LINES` lines along the key `x`, and the keys that they are averages over."""
        others = sorted((key for key in self.keys if key != x), key=lambda key: -self.effect(key, "ttft.p99"))
        kept: list[str] = []
        for key in others:
            if math.prod(len(self.choices(k)) for k in [*kept, key]) <= MOST_LINES:
                kept.append(key)
        kept.sort(key=self.keys.index)
        found = [self._line(x, dict(zip(kept, v, strict=True))) for v in product(*(self.choices(k) for k in kept))]
        return [line for line in found if line.x], [key for key in others if key not in kept]

    def _line(self, x: str, fixed: dict[str, Any]) -> Line:
        groups = [(float(value), self.where(**{x: value}, **fixed)) for value in self.choices(x)]
        groups = [(value, points) for value, points in groups if points]
        label = ", ".join(f"{self.names[key]}={short(value)}" for key, value in fixed.items())
        return Line(label, [value for value, _ in groups], [points for _, points in groups])

    def effect(self, key: str, metric: str) -> float:
        """Largest less smallest mean of the metric by value of the key."""
        means = [mean for _, mean in self.by_value(key, metric)]
        return max(means) - min(means) if means else 0.0

    def by_value(self, key: str, metric: str) -> list[tuple[str, float]]:
        """Mean of the metric over all points with each value of the key; by thirds where a key has many values."""
        choices = self.choices(key)
        if key in self.numeric and len(choices) > 12:
            low, _, high = np.array_split(np.array(choices, dtype=np.float64), 3)
            groups = [(f"≤ {short(float(low[-1]))}", set(low)), (f"≥ {short(float(high[0]))}", set(high))]
            points = [(name, [p for p in self.points if p.values[key] in values]) for name, values in groups]
        else:
            points = [(short(value), self.where(**{key: value})) for value in choices]
        found = [(name, mean_of(own, metric)) for name, own in points]
        return [(name, mean) for name, mean in found if mean is not None]


def _implied(group: Mapping[str, Sequence[Any]]) -> list[str]:
    """The keys of a zip whose values follow from those of the keys before them."""
    names = list(group)
    texts = [tuple(shown(value) for value in values) for values in zip(*group.values(), strict=True)]
    for number in range(1, len(names)):
        if len({text[:number] for text in texts}) == len(set(texts)):
            return names[number:]
    return []


def mean_of(points: Sequence[SweepPoint], metric: str) -> float | None:
    """Mean over points that have the metric."""
    values = [value for point in points if (value := point.mean(metric)) is not None]
    return math.fsum(values) / len(values) if values else None


def is_number(value: Any) -> bool:
    """Whether a varied value is a number (true and false are not)."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def short(value: Any) -> str:
    """A varied value in few letters; of a path the file's name."""
    if is_number(value):
        return number(value) if isinstance(value, float) else str(value)
    text = PurePath(value).name if isinstance(value, str) and value.startswith("/") else shown(value)
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 1]}…"


def number(value: float) -> str:
    """Up to six digits, without the plus and the zeros of an exponent: `1.25e9`."""
    return re.sub(r"e\+?(-?)0*", r"e\1", f"{value:g}")


def load_sweep(directory: Path) -> SweepData:
    """Read a sweep's folder. `InputError` when a file is missing or damaged, or the two do not belong together."""
    if not (directory / "study.yaml").is_file():
        raise InputError(f"{directory}: has no study.yaml; give the output directory of `servesim sweep`")
    study = load_study(directory / "study.yaml")
    rows, values = _rows(directory), combinations(study)
    if {row["point"] for row in rows} != set(range(len(values))):
        raise InputError(f"{directory / 'results.parquet'}: its points are not those of study.yaml beside it")
    for row in rows:
        _derive(row, directory)
    points = [SweepPoint(i, own, tuple(r for r in rows if r["point"] == i)) for i, own in enumerate(values)]
    return SweepData(directory, study, points, _verdicts(study, values, rows))


def _rows(directory: Path) -> list[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = directory / "results.parquet"
    try:
        rows: list[Row] = pq.read_table(path).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: cannot be read ({str(error).splitlines()[0]})") from None
    missing = {"point", "run", STATUS} - set(rows[0] if rows else ())
    if missing:
        raise InputError(f"{path}: has no column {', '.join(sorted(missing))}")
    return rows


def _derive(row: Row, directory: Path) -> None:
    """Add what interactivity is judged by: output tokens a second per GPU, and per user (1 / TPOT p50)."""
    if row[STATUS] != "finished":
        return
    gpus = _num_gpus(row, directory)
    if gpus and row.get("output_token_throughput") is not None:
        row["tokens_per_gpu"] = row["output_token_throughput"] / gpus
    if row.get("tpot.p50"):
        row["tokens_per_user"] = 1 / row["tpot.p50"]


def _num_gpus(row: Row, directory: Path) -> int:
    """GPUs of all replicas: from the row, or the run's own summary where the row has no room for so many."""
    found = [value for name, value in row.items() if name.startswith("replicas.") and name.endswith(".num_gpus")]
    known = sum(int(value) for value in found if value is not None)
    path = directory / "runs" / str(row["run"]) / "summary.json"
    if known or not path.is_file():
        return known
    return sum(int(replica.get("num_gpus", 0)) for replica in read_json(path)["replicas"])


def _verdicts(study: Study, values: Sequence[dict[str, Any]], rows: Sequence[Row]) -> list[tuple[str, list[str]]]:
    points = [Point(index, own, ()) for index, own in enumerate(values)]
    alone = [
        (text, replace(study, config=study.config.model_copy(update={"expect": [text]})))
        for text in study.config.expect
    ]
    return [(text, unmet(one, points, rows)) for text, one in alone]
