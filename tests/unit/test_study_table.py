"""The table of a study: flattened summaries, derived columns, row(...) and its mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from test_study_points import EXPERIMENT, REPLICAS, ROUTER

from sim.errors import InputError
from sim.study.config import Study, load_study
from sim.study.jobs import Done
from sim.study.points import Point, points_of
from sim.study.table import check_names, flatten, frame_of, make_row, means, unmet


def summary(ttft: float, price: float | None = 2.0) -> dict[str, Any]:
    return {
        "num_requests": 10,
        "ttft": {"mean": ttft, "p99": 2 * ttft},
        "cost": {"price": price},
        "replicas": [{"name": "main-0", "utilization": 0.5}],
        "warnings": ["one", "two"],
        "slo": None,
    }


def study_with(tmp_path: Path, **more: Any) -> tuple[Study, list[Point]]:
    path = tmp_path / "study.yaml"
    values = {
        "experiment": EXPERIMENT,
        "vary": {REPLICAS: [1, 2], ROUTER: ["random", "round_robin"]},
        "replications": 2,
        **more,
    }
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    study = load_study(path)
    return study, points_of(study)


def rows_of(study: Study, points: list[Point]) -> list[dict[str, Any]]:
    """TTFT is replicas + 10 for round_robin, +-0.5 by replication."""
    rows = []
    for point in points:
        for replication in range(2):
            ttft = point.values[REPLICAS] + 10 * (point.values[ROUTER] == "round_robin") + (replication - 0.5)
            key = f"{point.index}{replication}"
            rows.append(make_row(study, point, replication, key, summary(ttft), Done(key)))
    return rows


def test_a_summary_is_flattened_with_dotted_names() -> None:
    flat = flatten(summary(1.0))
    assert flat["ttft.p99"] == 2.0
    assert flat["replicas.0.utilization"] == 0.5
    assert flat["warnings"] == "one\ntwo"
    assert flat["slo"] is None


def test_long_lists_stay_in_the_summary_of_the_run() -> None:
    assert flatten({"replicas": [{"utilization": 0.1}] * 17, "warnings": []}) == {"warnings": None}


def test_a_row_has_varied_values_seed_metrics_and_columns(tmp_path: Path) -> None:
    study, points = study_with(
        tmp_path, columns={"usd_each": "cost.price / num_requests", "gap": "ttft.p99 - replicas"}
    )
    row = make_row(study, points[3], 1, "k", summary(3.0), Done("k"))
    assert (row[REPLICAS], row[ROUTER], row["seed"]) == (2, "round_robin", 8)
    assert (row["ttft.mean"], row["usd_each"]) == (3.0, 0.2)


def test_a_column_over_a_null_metric_is_null(tmp_path: Path) -> None:
    study, points = study_with(tmp_path, columns={"usd_each": "cost.price / num_requests"})
    assert make_row(study, points[0], 0, "k", summary(1.0, price=None), Done("k"))["usd_each"] is None


def test_row_picks_by_the_last_part_of_a_key_and_means_over_replications(tmp_path: Path) -> None:
    expect = [
        "row(replicas=1, policy=random).ttft.mean == 1",
        "row(replicas=2, router_policy=round_robin).ttft.p99 == 24",
        "row(replicas=2).ttft.mean == 7",
        "row(replicas=1).ttft.mean < row(replicas=2).ttft.mean",
        "ttft.mean < 13",
    ]
    study, points = study_with(tmp_path, expect=expect)
    check_names(study, points)
    assert unmet(study, points, rows_of(study, points)) == []


def test_what_does_not_hold_is_named_with_its_values_and_its_point(tmp_path: Path) -> None:
    expect = ["row(replicas=2).ttft.mean < row(replicas=1).ttft.mean", "ttft.mean < 11.5", "slo.met > 0"]
    study, points = study_with(tmp_path, expect=expect)
    lines = unmet(study, points, rows_of(study, points))
    assert "row(replicas=2).ttft.mean = 7" in lines[0]
    assert lines[1].startswith("replicas=2, policy=round_robin: ttft.mean < 11.5: does not hold")
    assert all("slo" in line and "null" in line for line in lines[2:])
    assert len(lines) == 2 + len(points)


def test_an_expectation_on_a_failed_run_fails_with_the_reason(tmp_path: Path) -> None:
    study, points = study_with(tmp_path, expect=["row(replicas=2).ttft.mean > 0", "ttft.mean > 0"])
    rows = rows_of(study, points)
    rows[7] = make_row(study, points[3], 1, "31", None, Done("31", "no memory"))
    lines = unmet(study, points, rows)
    assert len(lines) == 2
    assert all("run 31 failed: no memory" in line for line in lines)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"expect": ["row(replica=1).ttft.p99 < 1"]}, r"expect.0: unknown varied key 'replica'.*'replicas'"),
        ({"expect": ["row(replicas=3).ttft.p99 < 1"]}, r"no point has .*replicas = 3; .*takes 1, 2"),
        ({"expect": ["row(replicas=1, policy=fifo).a.b < 1"]}, "no point has"),
        ({"columns": {"seed": "1 + 1"}}, "has a column 'seed' already"),
    ],
)
def test_a_wrong_name_is_found_before_any_run(more: dict[str, Any], words: str, tmp_path: Path) -> None:
    study, points = study_with(tmp_path, **more)
    with pytest.raises(InputError, match=words):
        check_names(study, points)


def test_means_are_null_where_a_value_is_missing_or_texts_differ() -> None:
    rows = [{"a": 1, "b": 2.0, "c": "x", "d": "x"}, {"a": 3, "b": None, "c": "x", "d": "y"}]
    assert means(rows) == {"a": 2.0, "b": None, "c": "x", "d": None}


def test_a_column_of_numbers_and_texts_becomes_text() -> None:
    frame = frame_of([{"x": 1, "y": None, "m": 3}, {"x": "auto", "y": True}])
    assert list(frame["x"]) == ["1", "auto"]
    assert list(frame["y"]) == [None, True]
