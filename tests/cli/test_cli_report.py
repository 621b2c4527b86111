"""`servesim report` and `--report`: a page for every kind of folder, figures as files, mistakes in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import report_folders as folders
import yaml

from sim.cli import main as cli


def servesim(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main(list(arguments))
    return int(left.value.code or 0)


def test_a_sweep_writes_its_page_even_when_an_expectation_fails(tmp_path: Path) -> None:
    changes = {"vary": {folders.BUDGET: [512, 2048]}, "replications": 1, "expect": ["ttft.p99 < 0"]}
    study = folders.write_yaml(tmp_path / "study.yaml", {**folders.STUDY, **changes})
    out = tmp_path / "out"
    assert servesim("sweep", str(study), "--workers", "1", "--out", str(out), "--quiet", "--report") == 1
    assert "0 of 1 expectations hold" in (out / "report.html").read_text(encoding="utf-8")
    assert servesim("sweep", str(study), "--workers", "1", "--out", str(out), "--quiet") == 1
    assert not (out / "report.html").exists(), "the page of the sweep that was replaced"


def test_report_writes_figures_beside_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = folders.run_folder(tmp_path, recorded=False)
    assert servesim("report", str(run), "-o", str(tmp_path / "page.html"), "--figures", str(tmp_path / "figures")) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == str(tmp_path / "page.html")
    assert all(Path(line).is_file() for line in printed)
    assert {Path(line).suffix for line in printed[1:]} == {".svg", ".png", ".csv"}
    assert not (run / "report.html").exists()


def test_figures_into_a_file_are_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = folders.run_folder(tmp_path, recorded=False)
    (tmp_path / "taken").write_text("x")
    assert servesim("report", str(run), "--figures", str(tmp_path / "taken")) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_trace_of_a_run_and_a_wrong_window(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump({"name": "small", **folders.EXPERIMENT}), encoding="utf-8")
    out = str(tmp_path / "out")
    assert servesim("run", str(path), "--out", out, "--quiet", "--perfetto-window", "1:2") == 0
    assert (tmp_path / "out" / "trace.json").is_file()
    assert servesim("run", str(path), "--out", out, "--quiet", "--perfetto-window", "2:1") == 2
    assert "--perfetto-window 2:1: must be START:END" in capsys.readouterr().err
