"""The table of a study: one row a run with its varied values and flattened summary, and what is expected of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sim.errors import InputError, RunError
from sim.expressions import MissingMetric, RowPicker, evaluate, failures
from sim.study.config import Study
from sim.study.jobs import Done
from sim.study.points import Point, same, shown, varied_key

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]
MAX_ITEMS = 16  # longer lists of a summary (replicas, classes) stay in the run's own summary.json
STATUS = "run_status"
ERROR = "run_error"
FIRST_COLUMNS = ("point", "replication", "run", STATUS, ERROR, "expectations_failed")


def flatten(values: Mapping[str, Any], prefix: str = "") -> Row:
    """Nested values as one level with dotted names; items of short lists by number, texts of a list as one text."""
    flat: Row = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{name}.")
        elif isinstance(value, list):
            flat |= _flat_list(name, value)
        else:
            flat[name] = value
    return flat


def _flat_list(name: str, items: list[Any]) -> Row:
    if all(isinstance(item, str) for item in items):
        return {name: "\n".join(items) or None}
    if len(items) > MAX_ITEMS:
        return {}
    return flatten({str(index): item for index, item in enumerate(items)}, f"{name}.")


def make_row(
    study: Study, point: Point, replication: int, key: str, summary: Mapping[str, Any] | None, done: Done
) -> Row:
    """The row of one run. A run that failed has its error and no metrics."""
    config = point.configs[replication]
    status = "finished" if summary is not None else "failed"
    row: Row = {"point": point.index, "replication": replication, "run": key, STATUS: status, ERROR: done.error}
    unmet = failures(config.expect, {**summary, "summary": summary}) if summary is not None else []
    row["expectations_failed"] = "\n".join(unmet) or None
    row |= {name: _cell(value) for name, value in point.values.items()}
    row["seed"] = config.seed
    if summary is not None:
        row |= {name: value for name, value in flatten(summary).items() if name not in row}
        row |= {name: _column(text, summary, point) for name, text in study.config.columns.items()}
    return row


def frame_of(rows: Sequence[Row]) -> pd.DataFrame:
    """The rows as a DataFrame; varied values of mixed kinds become texts, for Parquet has one type a column."""
    import pandas as pd

    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    return pd.DataFrame({name: _one_kind(values) for name, values in columns.items()})


def check_names(study: Study, points: Sequence[Point]) -> None:
    """Raise `InputError`, before any run, for a `row(...)` that names no varied key or value, or a clashing column."""
    taken = {*FIRST_COLUMNS, "seed", *points[0].values}
    for name in study.config.columns:
        if name in taken:
            raise InputError(f"{study.where('columns', name)}: the table has a column '{name}' already")
    for index, text in enumerate(study.config.expect):
        with suppress(RunError):  # arithmetic on made-up numbers
            evaluate(text, _AnyMetric(), _picker(study, points, [], index))


def unmet(study: Study, points: Sequence[Point], rows: Sequence[Row]) -> list[str]:
    """One line for every expectation that does not hold; one without `row(...)` must hold for every point."""
    found = []
    for index, text in enumerate(study.config.expect):
        if "row(" in text.replace(" ", ""):
            found += failures([text], {}, _picker(study, points, rows, index))
            continue
        for point in points:
            own = [row for row in rows if row["point"] == point.index]
            found += [f"{point.label}: {line}" for line in _unmet_of_point(text, own)]
    return found


def _unmet_of_point(text: str, rows: Sequence[Row]) -> list[str]:
    try:
        return failures([text], _names(rows))
    except RunError as error:
        return [f"{text}: {error}"]


def means(rows: Sequence[Row]) -> Row:
    """Column by column: the mean of numbers, the value where all rows agree; None where one is null or they differ."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _mean([row.get(name) for row in rows]) for name in names}


def _mean(values: Sequence[Any]) -> Any:
    if any(value is None for value in values):
        return None
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return values[0] if len(set(values)) == 1 else math.fsum(values) / len(values)
    return values[0] if all(value == values[0] for value in values) else None


def _names(rows: Sequence[Row]) -> Row:
    """Metric names of the mean over `rows`. `RunError` where one of the runs failed."""
    for row in rows:
        if row[STATUS] != "finished":
            raise RunError(f"run {row['run']} failed: {row[ERROR]}")
    names = means(rows)
    return {**names, "summary": names}


def _picker(study: Study, points: Sequence[Point], rows: Sequence[Row], index: int) -> RowPicker:
    """Answers `row(...)` with the means of the rows with those values; made-up metrics while there are no rows."""

    def pick(wanted: dict[str, Any]) -> Mapping[str, Any]:
        where = study.where("expect", index)
        keys = {varied_key(name, points[0].values, where): value for name, value in wanted.items()}
        picked = [point.index for point in points if all(same(point.values[k], v) for k, v in keys.items())]
        if not picked:
            raise InputError(f"{where}: no point has {_listed(keys)}; {_known_values(keys, points)}")
        return _names([row for row in rows if row["point"] in picked]) if rows else _AnyMetric()

    return pick


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {shown(value)}" for key, value in values.items())


def _known_values(keys: Mapping[str, Any], points: Sequence[Point]) -> str:
    known = {key: dict.fromkeys(shown(point.values[key]) for point in points) for key in keys}
    return "; ".join(f"{key} takes {', '.join(list(values)[:20])}" for key, values in known.items())


class _AnyMetric(Mapping[str, Any]):
    """Has every name with the value 1: for finding mistakes in an expression before there are results."""

    def __getitem__(self, key: str) -> Any:
        return 1.0

    def __contains__(self, key: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _column(text: str, summary: Mapping[str, Any], point: Point) -> float | bool | None:
    """The value of a derived column; null where a metric of it is null."""
    try:
        return evaluate(text, {**summary, **point.values, "summary": summary})
    except MissingMetric:
        return None


def _cell(value: Any) -> Any:
    return shown(value) if isinstance(value, dict | list) else value


def _one_kind(values: list[Any]) -> list[Any]:
    given = [value for value in values if value is not None]
    kinds = {str if isinstance(v, str) else bool if isinstance(v, bool) else float for v in given}
    if len(kinds) > 1:
        return [None if value is None else shown(value) for value in values]
    return values
