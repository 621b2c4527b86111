"""The files of a run: the same bytes stepped or fast-forwarded, in any process, beside any other simulation."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scenarios import Row, Scenario, make_simulation
from test_fast_forward import assert_same_result

from sim.config import experiment_from_values
from sim.engine import Simulation
from sim.experiment import RunOptions, run, write
from sim.result import RunResult

FILES = ("summary.json", "requests.parquet", "steps.parquet", "timeline.parquet", "config.yaml")

POOL = {"replicas": 2, "model": "llama-3.1-8b", "gpu": "h100-sxm"}
SHORT_OF_MEMORY: dict[str, Any] = {
    "name": "short-of-memory",
    "seed": 11,
    "workload": {
        "num_requests": 60,
        "arrivals": {"process": "gamma", "rate": 40.0, "cv": 2.0},
        "prompt_tokens": {"distribution": "uniform", "min": 20, "max": 200},
        "output_tokens": {"distribution": "uniform", "min": 1, "max": 60},
        "max_output_tokens": {"factor": 1.5},
        "prefix": {"groups": 3, "tokens": 70, "zipf": 1.0},
        "priorities": {0: 1.0, 2: 3.0},
        "cancel_after": {"fraction": 0.2, "after": {"distribution": "uniform", "min": 0.05, "max": 0.6}},
    },
    "cluster": {
        "router": {"policy": "random"},
        "pools": [
            {
                **POOL,
                "scheduler": {"policy": "priority", "max_num_seqs": 16, "max_num_batched_tokens": 128},
                "preemption": {"victim": "lowest_priority"},
                "kv_cache": {"num_blocks": 60},
            }
        ],
    },
    "slo": {"ttft": 0.2},
}
SESSIONS: dict[str, Any] = {
    "name": "sessions",
    "seed": 5,
    "workload": {
        "num_requests": 40,
        "arrivals": {"process": "poisson", "rate": 8.0},
        "prompt_tokens": {"distribution": "uniform", "min": 10, "max": 90},
        "output_tokens": {"distribution": "uniform", "min": 5, "max": 90},
        "sessions": {
            "turns": {"distribution": "uniform", "min": 1, "max": 4},
            "think_time": {"distribution": "exponential", "mean": 0.3},
        },
    },
    "cluster": {
        "router": {"policy": "least_outstanding_tokens"},
        "pools": [{**POOL, "scheduler": {"async_scheduling": False}, "kv_cache": {"num_blocks": 90}}],
    },
    "client": {"timeout": 1.5},
}
CLOSED_LOOP: dict[str, Any] = {
    "name": "closed-loop",
    "seed": 2,
    "workload": {
        "num_requests": 50,
        "arrivals": {"process": "closed_loop", "concurrency": 6},
        "prompt_tokens": {"distribution": "uniform", "min": 10, "max": 300},
        "output_tokens": {"distribution": "uniform", "min": 1, "max": 200},
    },
    "cluster": {"pools": [{**POOL, "cost_model": {"kind": "constant", "step_duration": 0.0123}}]},
}
EXPERIMENTS = (SHORT_OF_MEMORY, SESSIONS, CLOSED_LOOP)


def write_run(values: dict[str, Any], folder: Path, step_by_step: bool) -> None:
    config = experiment_from_values(copy.deepcopy(values), folder.parent)
    options = RunOptions(step_by_step=step_by_step, step_log=True, timeline=True, timeline_interval=0.1)
    write(run(config, options), folder)


def assert_same_files(one: Path, other: Path) -> None:
    for name in FILES:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.mark.parametrize("values", EXPERIMENTS, ids=lambda values: values["name"])
def test_files_are_the_same_bytes_with_and_without_step_by_step(values: dict[str, Any], tmp_path: Path) -> None:
    """Requests, steps, timeline and summary of a run from a configuration."""
    write_run(values, tmp_path / "fast", step_by_step=False)
    write_run(values, tmp_path / "stepped", step_by_step=True)
    assert_same_files(tmp_path / "fast", tmp_path / "stepped")


def test_two_processes_write_the_same_bytes(tmp_path: Path, repository: Path) -> None:
    """Other hash seeds, one of the processes stepping."""
    path = tmp_path / "experiment.yaml"
    path.write_text(yaml.safe_dump(SHORT_OF_MEMORY, sort_keys=False), encoding="utf-8")
    for name, seed, more in (("one", "0", []), ("two", "4321", ["--step-by-step"])):
        command = [sys.executable, "-m", "sim", "run", str(path), "--out", str(tmp_path / name), "--step-log"]
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(repository)}
        done = subprocess.run([*command, "--timeline", *more], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert_same_files(tmp_path / "one", tmp_path / "two")


# --- two simulations in one process -----------------------------------------------------------------------------------

BUSY = Scenario(
    rows=tuple(Row(gap=i % 3, prompt=5 + i, output=3 + 2 * i, stream=i % 2, shared=6) for i in range(12)),
    cost="uneven",
    hashed=True,
    num_blocks=24,
    num_replicas=2,
    router="random",
    timeline_interval=1.0,
)
OTHER = Scenario(rows=tuple(Row(gap=0.7, prompt=9, output=11) for _ in range(10)), num_replicas=3, router="random")


def test_a_simulation_run_in_the_middle_of_another_changes_neither() -> None:
    """Built together, one run while the other is under way."""
    alone = make_simulation(BUSY).run(), make_simulation(OTHER).run()
    outer, inner = make_simulation(BUSY), make_simulation(OTHER)
    results: list[RunResult] = []

    def run_inner(simulation: Simulation = inner) -> None:
        if not results:
            results.append(simulation.run())

    found = outer.run(lambda now, ended: run_inner())
    assert_same_result(found, alone[0])
    assert_same_result(results[0], alone[1])


def test_a_run_does_not_write_to_its_workload() -> None:
    """All columns are read-only during the run."""
    simulation = make_simulation(BUSY)
    for column in vars(simulation.workload).values():
        if isinstance(column, np.ndarray):
            column.flags.writeable = False
    assert_same_result(simulation.run(), make_simulation(BUSY).run())


def test_the_seed_decides_the_random_router(tmp_path: Path) -> None:
    """Another seed, another placement: the comparison above is not of constants."""
    results = []
    for seed in (11, 12):
        config = experiment_from_values({**copy.deepcopy(SHORT_OF_MEMORY), "seed": seed}, tmp_path)
        results.append(run(config).result.requests["prefill_replica"].tolist())
    assert results[0] != results[1]
