"""The notebooks run from top to bottom in a fresh folder, hold no outputs, and show what their text says."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib
import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def cells(path: Path) -> list[str]:
    """The source of the code cells."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def execute(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run all code cells as a kernel would, in a folder laid out as the repository; the names that they leave."""
    matplotlib.use("Agg")
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    (tmp_path / "traces").symlink_to(ROOT / "traces")
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    monkeypatch.setattr(sys, "path", [*sys.path])  # a notebook's own modules are found from its folder
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, source in enumerate(cells(ROOT / "notebooks" / f"{name}.ipynb")):
        exec(compile(source, f"{name} cell {number}", "exec"), names)
    return names


def test_there_are_six_without_outputs() -> None:
    assert len(NOTEBOOKS) == 6
    for path in NOTEBOOKS:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        assert notebook["nbformat"] == 4
        assert not any(cell.get("outputs") for cell in notebook["cells"]), path.name
        assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])


def test_first_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = execute("first_steps", tmp_path, monkeypatch)
    assert names["harder"].summary["ttft.p99"] > names["result"].summary["ttft.p99"]


def test_writing_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = execute("writing_a_policy", tmp_path, monkeypatch)
    assert all(check.passed for check in names["checks"])
    assert set(names["compared"].frame["candidate"]) == {"long-aside", "fewest-tokens"}
    sys.modules.pop("my_router", None)


def test_capacity_planning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = execute("capacity_planning", tmp_path, monkeypatch)
    winner, spare = names["winner"], names["spare"]
    assert winner["slo_attainment"] >= 0.95
    assert 0.4 < winner["cached_input_share"] < 1
    assert spare["cost_per_hour"] > winner["cost_per_hour"]


def test_reading_a_latency(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = execute("reading_a_latency", tmp_path, monkeypatch)
    requests, parts = names["requests"], names["parts"]
    assert (requests[parts].sum(axis=1) == requests["e2e"]).all()
    assert names["smaller"].summary["itl.p99"] < names["result"].summary["itl.p99"]


def test_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = execute("calibration", tmp_path, monkeypatch)
    assert names["table"].index.is_monotonic_increasing
    assert (names["table"].diff().dropna() > 0).all().all()
    assert names["sensitivity"]["tpot.p99"].is_monotonic_increasing


def test_five_exercises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = execute("five_exercises", tmp_path, monkeypatch)
    ttft = names["by_class"]["ttft"]
    assert ttft.loc["rag", 0.5] > ttft.loc["chat", 0.5]
    assert (names["replay"].requests["status"] == "cancelled").sum() > 10
    goodput = names["goodput"]
    assert goodput["output_token_throughput"].idxmax() > goodput["goodput"].idxmax()
    turned_away = names["turned_away"]
    assert turned_away.loc[10.0, "learned"] < turned_away.loc[10.0, "declared"]
    caches = names["caches"]
    assert caches["warm"]["prefix_cache.num_hit_tokens"] > caches["cold"]["prefix_cache.num_hit_tokens"]
    assert caches["warm"]["ttft.mean"] < caches["cold"]["ttft.mean"]
    seconds = names["two_nodes"]["prefill, s"]
    assert seconds["one node of 8"] < seconds["two nodes of 4"] < seconds["two nodes of 4, slow link"]
    assert seconds["the same as a pipeline"] < seconds["two nodes of 4, slow link"]
    assert "nvlink" in names["two_nodes"]["slowest link"]["one node of 8"]
    assert "nvlink" not in names["two_nodes"]["slowest link"]["two nodes of 4"]
