"""Shared fixtures: the measured data beside the checkout, and a small experiment that runs in milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"


@pytest.fixture
def repository() -> Path:
    """The root of the checkout."""
    return ROOT


@pytest.fixture
def shared_data() -> Path:
    """The folder of measured data and real traces; the test is skipped where it is not there."""
    if not (SHARED / "data").is_dir():
        pytest.skip("needs ../shared/data, which is not part of the repository")
    return SHARED / "data"


@pytest.fixture(scope="session")
def report_directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Output directories of a run, a sweep, a comparison and a plan, each with its report.html."""
    import report_folders

    from sim.report import write_report

    directories = report_folders.all_folders(tmp_path_factory.mktemp("reports"))
    for directory in directories.values():
        write_report(directory)
    return directories


SMALL_EXPERIMENT = {
    "name": "small",
    "seed": 7,
    "workload": {
        "num_requests": 40,
        "arrivals": {"process": "poisson", "rate": 20.0},
        "prompt_tokens": {"distribution": "uniform", "min": 50, "max": 400},
        "output_tokens": {"distribution": "uniform", "min": 2, "max": 40},
    },
    "cluster": {"pools": [{"name": "main", "replicas": 2, "model": "llama-3.1-8b", "gpu": "h100-sxm"}]},
    "slo": {"ttft": 1.0, "tpot": 0.05, "attainment": 0.9},
}


@pytest.fixture
def small_experiment(tmp_path: Path) -> Path:
    """A file with 40 requests on two replicas."""
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(SMALL_EXPERIMENT, sort_keys=False), encoding="utf-8")
    return path


@pytest.fixture
def write_experiment(tmp_path: Path) -> Callable[[str], Path]:
    """Writes YAML text to a file `experiment.yaml` and returns its path."""

    def write(text: str) -> Path:
        path = tmp_path / "experiment.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write
