"""A distribution of somebody else's: its router, cost model and trace format work by name, are checked and compared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example distribution installed in it."""
    target = tmp_path_factory.mktemp("site")
    source = str(ROOT / "tests" / "example_plugin")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*command, "--target", str(target), source], capture_output=True, text=True, check=False)
    if "No module named pip" in done.stderr:
        pytest.skip("needs pip in this environment")
    assert done.returncode == 0, done.stderr
    return target


def servesim(site: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(site)))}
    command = [sys.executable, "-m", "sim", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def experiment(path: Path, router: str) -> Path:
    pool = {"replicas": 3, "model": "llama-3.1-8b", "gpu": "h100-sxm", "max_model_len": 8192}
    pool |= {"cost_model": {"kind": "per_token", "step_duration": 0.01, "per_prefill_token": 1e-5}}
    values = {
        "name": router,
        "workload": {"trace": "trace.txt"},
        "cluster": {"pools": [pool], "router": {"policy": router}},
        "slo": {"ttft": 1.0, "attainment": 0.9},
    }
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def test_it_is_listed_checked_and_compared(site: Path, tmp_path: Path) -> None:
    lines = [f"{i * 0.05}|{2000 if i % 5 == 0 else 100}|{10 + i % 7}" for i in range(60)]
    (tmp_path / "trace.txt").write_text("\n".join(lines), encoding="utf-8")
    shown = servesim(site, "policies", "show", "length_split", cwd=tmp_path)
    assert "Long prompts go to the last replica" in shown.stdout, shown.stderr
    assert "tokens of a prompt from which on it is long" in shown.stdout
    checked = servesim(site, "policies", "check", "length_split", "--set", "threshold=200", "--json", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert all(check["passed"] for check in json.loads(checked.stdout)["checks"])
    files = [str(experiment(tmp_path / f"{name}.yaml", name)) for name in ("round_robin", "length_split")]
    compared = servesim(site, "compare", *files, "--workers", "1", "--out", "cmp", "--json", cwd=tmp_path)
    assert compared.returncode == 0, compared.stderr
    found = json.loads(compared.stdout)
    assert [pair["candidate"] for pair in found["pairs"]] == ["length_split"]
    assert any(metric["difference"] != 0 for metric in found["pairs"][0]["metrics"])


def test_without_it_its_names_are_unknown(tmp_path: Path) -> None:
    (tmp_path / "trace.txt").write_text("0|100|10\n", encoding="utf-8")
    file = experiment(tmp_path / "a.yaml", "round_robin")
    done = servesim(tmp_path, "run", str(file), cwd=tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "per_token" in done.stderr or "format not recognised" in done.stderr


def test_a_class_in_the_current_directory_is_found_and_a_broken_one_fails(tmp_path: Path) -> None:
    text = "class Broken:\n    def route(self, request, cluster, now):\n        return -1\n"
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    done = servesim(tmp_path, "policies", "check", "mine:Broken", cwd=tmp_path)
    assert done.returncode == 1
    assert "FAIL  empty input" in done.stdout
    assert "checks failed" in done.stderr
