"""Small folders of a run, a sweep, a comparison and a plan, made by the simulator itself, for tests of their pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from sim.config import load_experiment
from sim.experiment import RunOptions, run, write
from sim.study.compare import CompareOptions, compare
from sim.study.plan import make_plan
from sim.study.sweep import Workers, sweep

EXPERIMENT: dict[str, Any] = {
    "seed": 1,
    "workload": {
        "num_requests": 80,
        "arrivals": {"process": "poisson", "rate": 8.0},
        "prompt_tokens": {"distribution": "lognormal", "mean": 600, "p99": 3000, "max": 4000},
        "output_tokens": {"distribution": "lognormal", "mean": 60, "p99": 200, "max": 300},
    },
    "cluster": {
        "pools": [{"name": "main", "replicas": 2, "model": "llama-3.1-8b", "gpu": "h100-sxm", "engine": "vllm-v1"}]
    },
    "slo": {"ttft": 0.3, "tpot": 0.03, "attainment": 0.9},
}
BUDGET = "cluster.pools.0.scheduler.max_num_batched_tokens"
STUDY: dict[str, Any] = {
    "name": "load",
    "experiment": {**EXPERIMENT, "workload": {**EXPERIMENT["workload"], "num_requests": 50}},
    "vary": {
        "cluster.router.policy": ["round_robin", "least_outstanding_requests"],
        BUDGET: [512, 2048],
        "workload.arrivals.rate": [10, 40, 80, 160],
    },
    "replications": 2,
    "columns": {"usd_per_million": "1e6 * cost.price / num_output_tokens"},
    "expect": ["row(max_num_batched_tokens=512).itl.p99 < row(max_num_batched_tokens=2048).itl.p99", "ttft.p99 < 0.3"],
}
# A study without a number: its points stand side by side.
NAMES: dict[str, Any] = {
    "name": "engines",
    "vary": {"cluster.pools.0.engine": ["vllm-v1", "vllm-v0", "sarathi", "sglang", "static"]},
    "replications": 1,
    "expect": [],
}
PLAN: dict[str, Any] = {
    "name": "small-plan",
    "workload": {**EXPERIMENT["workload"], "num_requests": 300, "arrivals": {"process": "poisson", "rate": 40.0}},
    "slo": {"ttft": 0.5, "tpot": 0.05, "attainment": 0.95},
    "candidates": {"model": "llama-3.1-8b", "gpu": ["h100-sxm", "l40s", "l4"], "tensor_parallel": [1, 2]},
    "prices": {"h100-sxm": 2.5, "l40s": 1.0, "l4": 0.5},
}


def write_yaml(path: Path, values: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    return path


def run_folder(parent: Path, recorded: bool = True, **changes: Any) -> Path:
    """The output of a run with everything recorded."""
    config = load_experiment(write_yaml(parent / "run.yaml", {"name": "small", **EXPERIMENT, **changes}))
    options = RunOptions.of(config.output, step_log=recorded, timeline=recorded)
    write(run(config, options), parent / "run")
    return parent / "run"


def sweep_folder(parent: Path, **changes: Any) -> Path:
    """The output of a sweep."""
    return sweep(
        write_yaml(parent / "study.yaml", {**STUDY, **changes}), parent / "sweep", workers=Workers(1)
    ).directory


def compare_folder(parent: Path, replications: int = 3) -> Path:
    """The output of a comparison of three experiments."""
    pool = EXPERIMENT["cluster"]["pools"][0]
    small = {**pool, "scheduler": {"max_num_batched_tokens": 512}}
    one = write_yaml(parent / "a.yaml", {"name": "round-robin", **EXPERIMENT})
    two = write_yaml(parent / "b.yaml", {"name": "small-budget", **EXPERIMENT, "cluster": {"pools": [small]}})
    options = CompareOptions(replications=replications)
    return compare([one, two], parent / "compare", options=options, workers=Workers(1)).directory


def plan_folder(parent: Path, **changes: Any) -> Path:
    """The output of a plan."""
    return make_plan(write_yaml(parent / "plan.yaml", {**PLAN, **changes}), parent / "plan", Workers(1)).directory


def all_folders(parent: Path) -> dict[str, Path]:
    """One of each kind."""
    make = {"run": run_folder, "sweep": sweep_folder, "compare": compare_folder, "plan": plan_folder}
    found = {kind: function(parent) for kind, function in make.items()}
    (parent / "of_names").mkdir()
    return {**found, "names": sweep_folder(parent / "of_names", **NAMES)}
