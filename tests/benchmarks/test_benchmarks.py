"""The benchmarks at small sizes: they run, and what they say about the simulator holds on any machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bench_engine import CASES, ROUTER_GOALS, Case, main, measure_router, poisson, spawn, timeout_rate

SMALL = Case("small", "small", 4, poisson(200, 4))


def test_the_script_writes_its_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["B2", "--fast", "--out", str(tmp_path / "table.md")])
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert text.strip() == capsys.readouterr().out.strip()
    head, row = (line for line in text.splitlines() if line.startswith("| ") and "---" not in line)
    cells = dict(zip(re.split(r" *\| *", head), re.split(r" *\| *", row), strict=True))
    assert cells["requests"] == "400"
    assert float(cells["scaled s"]) > 0
    assert float(cells["peak GiB"]) < 3


def test_an_unknown_benchmark_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["B9"])
    known = ", ".join(case.name for case in CASES)
    assert f"unknown B9; known: {known}" in capsys.readouterr().err


def test_most_steps_are_skipped_and_stepping_writes_the_same_bytes() -> None:
    assert spawn("run", SMALL.experiment(), "small")["skipped"] > 0.5
    compared = spawn("ratio", SMALL.experiment(), "small")
    assert compared["same_bytes"]
    assert compared["requests"] == 200


def test_a_case_without_its_trace_says_so_and_is_skipped() -> None:
    lost = Case("lost", "lost", 1, {"trace": "../shared/data/traces/nowhere.csv"})
    assert lost.missing() == "lost skipped: no ../shared/data/traces/nowhere.csv"
    assert SMALL.missing() is None


def test_goals_are_those_of_the_reference_rate() -> None:
    assert [case.goal for case in CASES] == [2.0, 8.0, 6.0, 8.0, 120.0]
    assert timeout_rate(2000) > 0


@pytest.mark.parametrize("name", ROUTER_GOALS)
def test_a_decision_of_a_router_is_measured(name: str) -> None:
    """Those that have a goal; on four replicas."""
    assert 0 < measure_router(SMALL.experiment(), name, 20) < 10_000
