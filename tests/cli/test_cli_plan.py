"""`servesim plan`: the winner meets the SLO with other seeds, the next cheaper does not, and what is printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from sim.cli import main as cli

# 40 requests a second of 600 + 60 tokens: more than one small GPU can do in time.
PLAN: dict[str, Any] = {
    "name": "small-plan",
    "workload": {
        "num_requests": 600,
        "arrivals": {"process": "poisson", "rate": 40.0},
        "prompt_tokens": {"distribution": "lognormal", "mean": 600, "p99": 2000, "max": 4000},
        "output_tokens": {"distribution": "fixed", "value": 60},
    },
    "slo": {"ttft": 0.5, "tpot": 0.05, "attainment": 0.99},
    "candidates": {"model": "llama-3.1-8b", "gpu": ["h100-sxm", "l40s"], "tensor_parallel": [1, 2]},
    "prices": {"h100-sxm": 2.5, "l40s": 1.0},
}
Write = Callable[..., Path]


def plan(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main(["plan", *arguments, "--workers", "1"])
    return int(left.value.code or 0)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def write_plan(tmp_path: Path) -> Write:
    def write(**changes: Any) -> Path:
        path = tmp_path / "plan.yaml"
        path.write_text(yaml.safe_dump({**PLAN, **changes}, sort_keys=False), encoding="utf-8")
        return path

    return write


def test_the_winner_holds_with_other_seeds_and_the_next_cheaper_does_not(
    write_plan: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(str(write_plan())) == 0
    printed = capsys.readouterr().out
    assert "small-plan: " in printed
    assert "USD/h" in printed
    document = json.loads((tmp_path / "out/small-plan/plan.json").read_text())
    winner = document["winner"]
    assert document["num_candidates"] == 4
    assert attainment(winner["experiment"], seed=77) >= 0.99
    cost = winner["cost_per_hour"]
    for row in document["candidates"]:
        cheaper = fewer(row, cost)
        if cheaper:
            assert attainment(deployment(winner["experiment"], row, cheaper), seed=1) < 0.99, row
    frame = pd.read_parquet(tmp_path / "out/small-plan/candidates.parquet")
    assert list(frame["status"]).count("winner") == 1
    assert (frame["cost_per_hour_at_least"] >= cost - 1e-9).all()


def fewer(row: dict[str, Any], cost: float) -> int:
    """The most replicas of a candidate that would cost less than `cost`."""
    each = PLAN["prices"][row["gpu"]] * row["tensor_parallel"]
    return max(n for n in range(100) if n * each < cost)


def deployment(experiment: dict[str, Any], row: dict[str, Any], replicas: int) -> dict[str, Any]:
    pool = {key: row[key] for key in ("model", "gpu", "tensor_parallel")} | {"name": "main", "replicas": replicas}
    return {**experiment, "cluster": {"pools": [pool]}}


def attainment(experiment: dict[str, Any], seed: int) -> float:
    from sim.config import experiment_from_values
    from sim.experiment import run

    summary = run(experiment_from_values({**experiment, "seed": seed}, Path())).summary
    return float(summary["slo_attainment"])


def test_money_adds_up_and_a_spare_costs_a_replica(write_plan: Write, tmp_path: Path) -> None:
    choices = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "tensor_parallel": 2}
    assert plan(str(write_plan(candidates=choices, spare_replicas=1, verify=0)), "--quiet") == 0
    winner = json.loads((tmp_path / "out/small-plan/plan.json").read_text())["winner"]
    assert winner["num_gpus"] == 2 * (winner["replicas"] + 1)
    assert winner["cost_per_hour"] == pytest.approx(2.5 * winner["num_gpus"])
    run = next((tmp_path / "out/small-plan/runs").iterdir())
    summary = json.loads((run / "summary.json").read_text())
    assert winner["cost_per_million_tokens"] == pytest.approx(
        winner["cost_per_request"] * 1e6 * summary["num_finished"]
        / (summary["num_prompt_tokens"] + summary["num_output_tokens"]), rel=0.1
    )  # fmt: skip


def test_when_nothing_does_it_says_by_how_much_and_what_would(
    write_plan: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_plan(candidates={"model": ["llama-3.1-8b", "llama-3.1-70b"], "gpu": "l40s"}, max_replicas=1)
    assert plan(str(path)) == 1
    captured = capsys.readouterr()
    assert "no candidate meets the SLO" in captured.err
    document = json.loads((tmp_path / "out/small-plan/plan.json").read_text())
    assert document["winner"] is None
    small, large = document["candidates"]
    assert small["status"] == "not met"
    assert "attainment" in small["reason"] or "bounds" in small["reason"]
    assert large["status"] == "infeasible"
    assert large["nearest_change"].startswith("tensor_parallel")


def test_the_same_plan_gives_the_same_document_and_resumes(write_plan: Write, tmp_path: Path) -> None:
    choices = {"model": "llama-3.1-8b", "gpu": "h100-sxm"}
    path = write_plan(candidates=choices, verify=1)
    assert plan(str(path), "--quiet", "--out", "a") == 0
    (tmp_path / "a/plan.json").rename(tmp_path / "first.json")
    assert plan(str(path), "--quiet", "--out", "a", "--resume") == 0
    first, second = (json.loads(p.read_text()) for p in (tmp_path / "first.json", tmp_path / "a/plan.json"))
    assert second.pop("num_runs") == 0
    assert first.pop("num_runs") > 0
    assert first == second


def test_a_wrong_plan_is_exit_code_2_and_leaves_nothing(
    write_plan: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(str(write_plan(candidates={"model": "llama-3.1-8b", "gpu": "h100-smx"}))) == 2
    assert "did you mean 'h100-sxm'?" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
