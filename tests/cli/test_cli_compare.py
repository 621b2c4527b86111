"""`servesim compare`: the same seeds for all, verdicts, files, and runs in which nothing is random."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import yaml

from sim.cli import main as cli

Edit = Callable[..., Path]


def compare(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main(["compare", *arguments, "--workers", "1"])
    return int(left.value.code or 0)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def edited(small_experiment: Path, tmp_path: Path) -> Edit:
    """A copy of the small experiment with other values: `edited("b", replicas=1)`."""

    def write(name: str, replicas: int = 2, **workload: object) -> Path:
        values = yaml.safe_load(small_experiment.read_text(encoding="utf-8"))
        values["name"] = name
        values["cluster"]["pools"][0]["replicas"] = replicas
        values["workload"] |= workload
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(values), encoding="utf-8")
        return path

    return write


def test_a_clear_difference_is_found_and_written(
    edited: Edit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(edited("two", 2)), str(edited("one", 1))]
    metrics = [word for name in ("e2e.mean", "cost.price", "prefix_cache.hit_rate") for word in ("--metric", name)]
    assert compare(*files, *metrics, "--replications", "4") == 0
    printed = capsys.readouterr().out
    assert "one against two, 4 replications (seeds 7 to 10)" in printed
    folder = tmp_path / "out/two-vs-one"
    document = json.loads((folder / "compare.json").read_text())
    assert document["seeds"] == [7, 8, 9, 10]
    rows = {row["metric"]: row for row in document["pairs"][0]["metrics"]}
    assert rows["e2e.mean"]["verdict"] == "worse"
    assert rows["cost.price"]["verdict"] == "better"
    assert rows["e2e.mean"]["t_low"] > 0
    assert rows["e2e.mean"]["bootstrap_low"] > 0
    assert "prefix_cache.hit_rate" in document["skipped_metrics"]
    frame = pd.read_parquet(folder / "compare.parquet")
    assert set(frame["metric"]) == set(rows)
    assert list(frame["candidate"].unique()) == ["one"]
    for run, seed in zip(document["experiments"][0]["runs"], document["seeds"], strict=True):
        config = yaml.safe_load((folder / "runs" / run / "config.yaml").read_text())
        assert config["seed"] == seed


def test_differences_are_those_of_the_summaries_seed_by_seed(edited: Edit, tmp_path: Path) -> None:
    files = [str(edited("two", 2)), str(edited("one", 1))]
    assert compare(*files, "--replications", "3", "--quiet", "--metric", "ttft.mean", "--out", "o") == 0
    document = json.loads((tmp_path / "o/compare.json").read_text())
    values = [
        [json.loads((tmp_path / "o/runs" / run / "summary.json").read_text())["ttft"]["mean"] for run in entry["runs"]]
        for entry in document["experiments"]
    ]
    (row,) = document["pairs"][0]["metrics"]
    expected = sum(b - a for a, b in zip(*values, strict=True)) / 3
    assert row["difference"] == pytest.approx(expected)


def test_an_experiment_is_not_different_from_itself(edited: Edit, tmp_path: Path) -> None:
    files = [str(edited("a")), str(edited("b"))]
    assert compare(*files, "--replications", "3", "--quiet", "--out", "o") == 0
    rows = json.loads((tmp_path / "o/compare.json").read_text())["pairs"][0]["metrics"]
    assert {row["verdict"] for row in rows} == {"no difference detectable"}
    assert {row["difference"] for row in rows} == {0.0}


def test_where_nothing_is_random_batches_of_one_run_are_compared(
    edited: Edit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.csv"
    rows = [f"{0.05 * i:.3f},{100 + 37 * i % 400},{2 + 13 * i % 60}" for i in range(300)]
    trace.write_text("arrival_time,num_prompt_tokens,num_output_tokens\n" + "\n".join(rows) + "\n")
    files = []
    for name, replicas in (("two", 2), ("one", 1)):
        path = edited(name, replicas)
        values = yaml.safe_load(path.read_text())
        values["workload"] = {"trace": "trace.csv"}
        path.write_text(yaml.safe_dump(values))
        files.append(str(path))
    assert compare(*files, "--replications", "5", "--out", "o") == 0
    printed = capsys.readouterr().out
    assert "batches of one run" in printed
    assert "nothing is random here" in printed
    document = json.loads((tmp_path / "o/compare.json").read_text())
    assert document["replications"] == 1
    found = {row["metric"]: row for row in document["pairs"][0]["metrics"]}
    assert found["tpot.mean"]["verdict"] == "worse"
    assert found["tpot.mean"]["num_values"] in (5, 7, 10, 15)
    assert found["itl.mean"]["p_value"] is None
    assert len(list((tmp_path / "o/runs").iterdir())) == 4


def test_set_changes_all_and_json_prints_the_document(
    edited: Edit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(edited("a")), str(edited("b", 1))]
    assert compare(*files, "--set", "workload.num_requests=20", "--replications", "2", "--json", "--out", "o") == 0
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "o/compare.json").read_text())
    frame = pd.read_parquet(next((tmp_path / "o/runs").iterdir()) / "requests.parquet")
    assert len(frame) == 20


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--metric", "ttft.p98"], "there is no metric 'ttft.p98' (did you mean 'ttft.p9"),
        (["--confidence", "95"], "--confidence 95: must lie in"),
        (["missing.yaml"], "missing.yaml: no such file"),
    ],
)
def test_mistakes_are_exit_code_2(
    edited: Edit, more: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(edited("a")), str(edited("b", 1))]
    assert compare(*files, *more, "--replications", "2", "--out", "o") == 2
    assert words in capsys.readouterr().err


def test_one_experiment_is_not_a_comparison(edited: Edit, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(str(edited("a"))) == 2
    assert "at least two" in capsys.readouterr().err
