"""`servesim run` from file to output directory: files, bytes, exit codes, and what is printed."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from sim.cli import main as cli
from sim.cli.text import clock, plural, seconds, share, significant

RESULTS = ("summary.json", "requests.parquet", "config.yaml")


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main(["run", *arguments])
    return int(left.value.code or 0)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_run_writes_its_files_and_prints_a_table(
    small_experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(str(small_experiment)) == 0
    printed = capsys.readouterr().out
    folder = tmp_path / "out" / "small"
    assert {path.name for path in folder.iterdir()} == {*RESULTS, "run.json"}
    for word in ("time to first token", "p99", "requests/s", "40 of 40 finished", "out/small"):
        assert word in printed
    assert json.loads((folder / "summary.json").read_text())["num_finished"] == 40
    assert len(pd.read_parquet(folder / "requests.parquet")) == 40
    facts = json.loads((folder / "run.json").read_text())
    assert facts["process_seconds"] >= facts["wall_seconds"] > 0
    assert facts["peak_memory"] > 10 * 2**20


def test_the_written_configuration_gives_the_same_bytes(small_experiment: Path, tmp_path: Path) -> None:
    assert run(str(small_experiment), "--quiet", "--out", "first") == 0
    assert run("first/config.yaml", "--quiet", "--out", "deep/er/second") == 0
    for name in RESULTS:
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "deep/er/second" / name).read_bytes()


def test_stepping_gives_the_same_bytes_as_fast_forward(small_experiment: Path, tmp_path: Path) -> None:
    assert run(str(small_experiment), "--quiet", "--out", "fast", "--step-log", "--timeline") == 0
    assert run(str(small_experiment), "--quiet", "--out", "slow", "--step-log", "--timeline", "--step-by-step") == 0
    for name in (*RESULTS, "steps.parquet", "timeline.parquet"):
        assert (tmp_path / "fast" / name).read_bytes() == (tmp_path / "slow" / name).read_bytes(), name


def test_what_is_recorded_changes_no_result(small_experiment: Path, tmp_path: Path) -> None:
    assert run(str(small_experiment), "--quiet", "--out", "bare") == 0
    assert run(str(small_experiment), "--quiet", "--out", "full", "--step-log", "--report") == 0
    for name in RESULTS:
        assert (tmp_path / "bare" / name).read_bytes() == (tmp_path / "full" / name).read_bytes(), name


def test_another_seed_gives_another_run(small_experiment: Path, tmp_path: Path) -> None:
    assert run(str(small_experiment), "--quiet", "--out", "a") == 0
    assert run(str(small_experiment), "--quiet", "--out", "b", "--seed", "8") == 0
    assert (tmp_path / "a/requests.parquet").read_bytes() != (tmp_path / "b/requests.parquet").read_bytes()


def test_json_prints_the_summary_and_nothing_else(
    small_experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(str(small_experiment), "--json") == 0
    assert capsys.readouterr().out == (tmp_path / "out/small/summary.json").read_text()


def test_quiet_prints_nothing(small_experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(small_experiment), "--quiet") == 0
    assert capsys.readouterr() == ("", "")


def test_step_log_has_a_row_a_step(small_experiment: Path, tmp_path: Path) -> None:
    assert run(str(small_experiment), "--quiet", "--step-log") == 0
    steps = pd.read_parquet(tmp_path / "out/small/steps.parquet")
    assert len(steps) == json.loads((tmp_path / "out/small/summary.json").read_text())["num_steps"]
    assert {"replica", "step", "start_time", "duration", "num_prefill_tokens", "num_decode_sequences"} <= set(steps)


def test_an_expectation_that_does_not_hold_is_exit_code_1_and_named(
    small_experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expect = "expect=['num_finished == 40', 'summary.ttft.p99 < 1e-9', 'cost.carbon_kg < 1']"
    assert run(str(small_experiment), "--set", expect, "--quiet") == 1
    printed = capsys.readouterr().err
    assert "2 of 3 expectations do not hold" in printed
    assert "summary.ttft.p99 < 1e-9: does not hold (summary.ttft.p99 = " in printed
    assert "cost.carbon_kg < 1: metric 'cost.carbon_kg' is null" in printed
    assert (tmp_path / "out/small/summary.json").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("cluster.pools.0.model=lama-3.1-8b", "did you mean 'llama-3.1-8b'?"),
        ("cluster.pools.0.gpu=h100-smx", "did you mean 'h100-sxm'?"),
        ("cluster.router.policy=round_robbin", "did you mean 'round_robin'?"),
        ("cluster.router={policy: round_robin, speed: 3}", "speed: is not a parameter of 'round_robin'"),
        ("cluster.admission={policy: queue_limit, max_outstanding: many}", "max_outstanding: must be a valid integer"),
        ("cluster.pools.0.cost_model.kind=rofline", "did you mean 'roofline'?"),
        ("workload={trace: missing.csv}", "missing.csv"),
    ],
)
def test_a_wrong_name_is_exit_code_2_and_leaves_nothing(
    small_experiment: Path, tmp_path: Path, change: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(str(small_experiment), "--set", change) == 2
    printed = capsys.readouterr().err
    assert words in printed
    assert "Traceback" not in printed
    assert not (tmp_path / "out").exists()


def test_a_folder_with_other_files_is_refused_before_the_run(
    small_experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    assert run(str(small_experiment), "--out", "mine") == 2
    assert "is not the output of a run" in capsys.readouterr().err


def test_report_writes_one_page(small_experiment: Path, tmp_path: Path) -> None:
    assert run(str(small_experiment), "--quiet", "--report") == 0
    page = (tmp_path / "out/small/report.html").read_text()
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert (tmp_path / "out/small/timeline.parquet").exists()


def test_a_gpu_without_fitted_profile_is_simulated_by_roofline_and_the_summary_says_so(
    small_experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    warning = "step times of llama-3.1-8b on a40 are computed by the roofline cost model, not measured"
    assert run(str(small_experiment), "--set", "cluster.pools.0.gpu=a40") == 0
    assert warning in capsys.readouterr().out
    summary = json.loads((tmp_path / "out/small/summary.json").read_text())
    assert any(line.startswith(warning) for line in summary["warnings"])
    asked_for = ["cluster.pools.0.gpu=a40", "cluster.pools.0.cost_model.kind=roofline"]
    assert run(str(small_experiment), *(part for change in asked_for for part in ("--set", change))) == 0
    assert warning not in capsys.readouterr().out


def test_the_summary_names_the_version_and_a_digest_of_the_profiles(small_experiment: Path, tmp_path: Path) -> None:
    assert run(str(small_experiment), "--quiet") == 0
    versions = json.loads((tmp_path / "out/small/summary.json").read_text())["versions"]
    assert versions["servesim"]
    assert len(versions["profiles"]) == 12
    assert int(versions["profiles"], 16) >= 0


def test_an_interrupted_run_leaves_nothing(
    small_experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sim.engine.Simulation.run", interrupt)
    assert run(str(small_experiment)) == 130
    assert not (tmp_path / "out").exists()


def test_shipped_experiments_load(repository: Path) -> None:
    from sim.config import load_experiment

    files = sorted((repository / "experiments").glob("*.yaml"))
    assert {file.name for file in files} >= {"quickstart.yaml", "azure_chat.yaml"}
    for name in ("quickstart.yaml", "azure_chat.yaml"):
        assert load_experiment(repository / "experiments" / name).cluster.pools


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.0, "0 s"), (3.1e-6, "3.10 us"), (0.0421, "42.1 ms"), (1.234, "1.23 s"), (95.04, "95.0 s")],
)
def test_latencies_are_printed_with_a_unit_and_three_digits(value: float | None, text: str) -> None:
    assert seconds(value) == text


def test_other_numbers_as_text() -> None:
    assert (significant(0.01234), significant(1234.5), significant(12.34), significant(None)) == (
        "0.0123",
        "1,234",
        "12.3",
        "-",
    )
    assert (clock(59.6), clock(125), clock(3723)) == ("1:00", "2:05", "1:02:03")
    assert (share(0.9925), share(None), plural(1, "step"), plural(2000, "step")) == (
        "99.2 %",
        "-",
        "1 step",
        "2,000 steps",
    )


def test_the_example_of_the_readme_runs(repository: Path, tmp_path: Path) -> None:
    text = (repository / "README.md").read_text(encoding="utf-8")
    example = text.partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "chat.yaml").write_text(example)
    assert run("chat.yaml", "--set", "workload.num_requests=100", "--quiet") == 0
    assert (tmp_path / "out" / "chat" / "summary.json").exists()
