"""`servesim sweep`: the table, resuming after a kill, the death of workers, a real distributed engine, mistakes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from sim.cli import main as cli

REPLICAS = "cluster.pools.0.replicas"
ROUTER = "cluster.router"

# Routers that end the process they run in, as a lack of memory would. (The mark is a folder, since the content of a
# file that a configuration names is part of the key of a run.)
DEADLY = """
import os, signal
from dataclasses import dataclass
from pathlib import Path


def die():
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class Once:
    mark: str

    def route(self, request, cluster, now):
        if not Path(self.mark).exists():
            Path(self.mark).mkdir()
            die()
        return 0


@dataclass
class Always:
    parent: int = 0

    def route(self, request, cluster, now):
        if os.getpid() != self.parent:
            die()
        return 0
"""

Write = Callable[..., Path]


def sweep(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main(["sweep", *arguments])
    return int(left.value.code or 0)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def write_study(small_experiment: Path, tmp_path: Path) -> Write:
    def write(**study: Any) -> Path:
        path = tmp_path / "study.yaml"
        path.write_text(yaml.safe_dump({"base": small_experiment.name, **study}, sort_keys=False), encoding="utf-8")
        return path

    return write


def tree(folder: Path) -> dict[str, bytes]:
    """Every result file with its content; run.json tells of the execution and differs."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "run.json"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_grid_gives_a_row_a_run_and_prints_a_table(
    write_study: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write_study(
        name="grid",
        vary={REPLICAS: [1, 2]},
        replications=2,
        columns={"usd_per_million": "1e6 * cost.price / num_output_tokens"},
        expect=["row(replicas=1).ttft.p99 > 0", "num_finished == 40"],
    )
    assert sweep(str(study), "--workers", "1") == 0
    printed = capsys.readouterr().out
    assert "2 points, 4 runs" in printed
    assert "TTFT p99" in printed
    frame = pd.read_parquet(tmp_path / "out/grid/results.parquet")
    assert list(frame[REPLICAS]) == [1, 1, 2, 2]
    assert list(frame["seed"]) == [7, 8, 7, 8]
    assert frame["run"].is_unique
    assert (frame["usd_per_million"] > 0).all()
    folder = tmp_path / "out/grid/runs"
    for _, row in frame.iterrows():
        summary = json.loads((folder / row["run"] / "summary.json").read_text())
        assert summary["ttft"]["p99"] == row["ttft.p99"]
        assert summary["versions"]["profiles"] == row["versions.profiles"]
    assert {path.name for path in folder.parent.iterdir()} == {"results.parquet", "study.yaml", "runs"}


def test_processes_and_the_written_study_give_the_same_bytes(write_study: Write, tmp_path: Path) -> None:
    study = write_study(vary={REPLICAS: [1, 2]}, replications=2)
    assert sweep(str(study), "--quiet", "--workers", "1", "--out", "a") == 0
    assert sweep("a/study.yaml", "--quiet", "--workers", "2", "--out", "b") == 0
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def test_resume_runs_only_what_is_missing(write_study: Write, tmp_path: Path) -> None:
    assert sweep(str(write_study(vary={REPLICAS: [1, 2]})), "--quiet", "--workers", "1", "--out", "o") == 0
    before = {path.name: path.stat().st_ino for path in (tmp_path / "o/runs").iterdir()}
    larger = write_study(vary={REPLICAS: [1, 2, 3]})
    assert sweep(str(larger), "--quiet", "--workers", "1", "--out", "o", "--resume") == 0
    after = {path.name: path.stat().st_ino for path in (tmp_path / "o/runs").iterdir()}
    assert len(after) == 3
    assert before.items() <= after.items()
    assert len(pd.read_parquet(tmp_path / "o/results.parquet")) == 3


def test_equal_points_are_run_once(write_study: Write, tmp_path: Path) -> None:
    assert sweep(str(write_study(vary={REPLICAS: [2, 2]})), "--quiet", "--workers", "1", "--out", "o") == 0
    assert len(list((tmp_path / "o/runs").iterdir())) == 1
    assert len(pd.read_parquet(tmp_path / "o/results.parquet")) == 2


def test_an_unfinished_study_is_not_thrown_away_without_being_told(
    write_study: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write_study(vary={REPLICAS: [1, 2]})
    assert sweep(str(study), "--quiet", "--workers", "1", "--out", "o") == 0
    assert sweep(str(study), "--quiet", "--workers", "1", "--out", "o") == 0  # a finished one is replaced
    (tmp_path / "o/results.parquet").unlink()
    assert sweep(str(study), "--out", "o") == 2
    assert "add --resume to go on" in capsys.readouterr().err
    assert len(list((tmp_path / "o/runs").iterdir())) == 2


def test_killed_at_random_moments_and_resumed_it_gives_the_same_bytes_and_runs_nothing_twice(
    write_study: Write, tmp_path: Path
) -> None:
    study = write_study(vary={REPLICAS: [1, 2, 3], "workload.num_requests": [200, 300, 400]})
    assert sweep(str(study), "--quiet", "--workers", "1", "--out", "undisturbed") == 0
    kept: dict[str, int] = {}
    moments = random.Random(os.getpid())
    for workers, wanted in zip((2, 1), sorted(moments.sample(range(1, 8), 2)), strict=True):
        process = start(study, workers)
        wait_for_runs(tmp_path / "killed/runs", wanted, process)
        time.sleep(moments.uniform(0, 0.1))
        process.send_signal(signal.SIGKILL)
        process.wait()
        found = finished(tmp_path / "killed/runs")
        assert kept.items() <= found.items()
        kept = found
    assert kept
    assert sweep(str(study), "--quiet", "--workers", "1", "--out", "killed", "--resume") == 0
    assert kept.items() <= finished(tmp_path / "killed/runs").items()
    assert tree(tmp_path / "killed") == tree(tmp_path / "undisturbed")


def start(study: Path, workers: int) -> subprocess.Popen[bytes]:
    arguments = ["sweep", str(study), "--quiet", "--workers", str(workers), "--resume", "--out", "killed"]
    return subprocess.Popen([sys.executable, "-m", "sim", *arguments], env={**os.environ, "PYTHONPATH": _root()})


def _root() -> str:
    return str(Path(__file__).resolve().parents[2])


def finished(runs: Path) -> dict[str, int]:
    """Key -> inode of the runs that are there: a run that is done again would have another."""
    return {path.name: path.stat().st_ino for path in runs.iterdir() if not path.name.startswith(".")}


def wait_for_runs(runs: Path, wanted: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None and not (runs.is_dir() and len(finished(runs)) >= wanted):
        time.sleep(0.02)


@pytest.fixture
def deadly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deadly_routers.py").write_text(DEADLY)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("deadly")
def test_a_run_that_kills_its_worker_costs_no_other_run_its_result(
    write_study: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    once = {"policy": "deadly_routers:Once", "mark": str(tmp_path / "mark")}
    always = {"policy": "deadly_routers:Always", "parent": os.getpid()}
    study = write_study(vary={ROUTER: ["random", once, "round_robin", always, "least_outstanding_requests"]})
    assert sweep(str(study), "--workers", "2", "--out", "o") == 1
    assert "its worker process died 3 times" in capsys.readouterr().err
    frame = pd.read_parquet(tmp_path / "o/results.parquet")
    assert list(frame["run_status"]) == ["finished", "finished", "finished", "failed", "finished"]
    assert frame["ttft.p99"].isna().tolist() == [False, False, False, True, False]


def test_a_point_that_cannot_be_run_has_a_row_that_says_why(
    write_study: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write_study(vary={"cluster.pools.0.model": ["llama-3.1-8b", "llama-3.1-405b"]})
    assert sweep(str(study), "--workers", "1", "--out", "o") == 1
    assert "does not fit on 1 x h100-sxm" in capsys.readouterr().err
    frame = pd.read_parquet(tmp_path / "o/results.parquet")
    assert list(frame["run_status"]) == ["finished", "failed"]
    assert "does not fit" in frame["run_error"][1]


def test_an_expectation_that_does_not_hold_is_exit_code_1(
    write_study: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write_study(vary={REPLICAS: [1, 2]}, expect=["row(replicas=1).ttft.mean < row(replicas=2).ttft.mean / 100"])
    assert sweep(str(study), "--quiet", "--workers", "1", "--out", "o") == 1
    assert "expectation: row(replicas=1).ttft.mean" in capsys.readouterr().err


def test_json_prints_the_rows(write_study: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep(str(write_study(vary={REPLICAS: [1, 2]})), "--json", "--workers", "1") == 0
    found = json.loads(capsys.readouterr().out)
    assert [row[REPLICAS] for row in found["rows"]] == [1, 2]


@pytest.mark.parametrize(
    ("study", "words"),
    [
        ({"vary": {"cluster.router.policy": ["random", "round_robbin"]}}, "did you mean 'round_robin'?"),
        ({"vary": {"workload": [{"trace": "no.csv"}, {"trace": "nothing.csv"}]}}, "no.csv"),
        ({"vary": {REPLICAS: [1]}, "expect": ["row(replica=1).ttft.p99 < 1"]}, "did you mean 'replicas'?"),
    ],
)
def test_a_study_that_cannot_be_run_is_exit_code_2_and_leaves_nothing(
    study: dict[str, Any], words: str, write_study: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep(str(write_study(**study)), "--workers", "1", "--out", "o") == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_a_folder_with_other_files_is_refused(
    write_study: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    assert sweep(str(write_study(vary={REPLICAS: [1]})), "--out", "mine") == 2
    assert "has files but no study.yaml" in capsys.readouterr().err


def test_two_sweeps_do_not_write_into_one_folder(
    write_study: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fcntl = pytest.importorskip("fcntl")
    (tmp_path / "o").mkdir()
    with (tmp_path / "o/.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert sweep(str(write_study(vary={REPLICAS: [1]})), "--out", "o") == 2
    assert "another servesim is writing there" in capsys.readouterr().err


# --- a real distributed engine ----------------------------------------------------------------------------------------


@pytest.fixture
def cluster(deadly: None) -> Iterator[Any]:
    """Two worker processes and a scheduler on loopback."""
    distributed = pytest.importorskip("distributed", reason="needs the extra 'cluster' (dask.distributed)")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None, silence_logs=50
    ) as local:
        yield local


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_distributed_engine_gives_the_same_bytes_even_when_a_worker_dies(
    write_study: Write, tmp_path: Path, cluster: Any
) -> None:
    once = {"policy": "deadly_routers:Once", "mark": str(tmp_path / "mark")}
    study = write_study(vary={ROUTER: ["random", once, "round_robin"], REPLICAS: [1, 2]})
    assert sweep(str(study), "--quiet", "--cluster", cluster.scheduler_address, "--out", "far") == 0
    assert (tmp_path / "mark").exists()  # the worker did die
    assert sweep(str(study), "--quiet", "--workers", "1", "--out", "near") == 0
    assert tree(tmp_path / "far") == tree(tmp_path / "near")


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_cluster_that_does_not_answer_is_named(
    write_study: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("distributed", reason="needs the extra 'cluster' (dask.distributed)")
    monkeypatch.setattr("sim.study.engines._CONNECT_TIMEOUT", 0.5)
    study = write_study(vary={REPLICAS: [1]})
    assert sweep(str(study), "--cluster", "tcp://127.0.0.1:9", "--out", "o") == 2
    assert "--cluster tcp://127.0.0.1:9: no scheduler answers there" in capsys.readouterr().err
