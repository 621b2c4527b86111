"""Workloads made to break an engine, through the configuration of every preset: each request ends, once, with a reason
where it is not served, and fast-forward equals stepping to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from sim.config import experiment_from_values
from sim.experiment import Outcome, RunOptions, run

PRESETS = sorted(path.stem for path in (Path(__file__).parents[2] / "policies" / "presets").glob("*.yaml"))
RESERVE_ALL = ("orca-max", "static")  # memory for the longest sequence that the model allows
NO_CHUNKS = ("distserve", "iteration-level", "orca-max", "orca-oracle", "orca-pow2", "sglang", "static", "vllm-v0")


@dataclass(frozen=True)
class Case:
    """Rows of (arrival, prompt, output), the memory in tokens, and how many must finish."""

    rows: Sequence[tuple[float, int, int]]
    memory: int
    finished: int
    longest: int = 64  # tokens of a sequence
    budget: int | None = None  # tokens of a step


CASES = {
    "one request larger than memory among others": Case(
        [(0.0, 20, 10), (0.0, 900, 10), (1.0, 20, 10)], 256, 2, longest=1024, budget=2048
    ),
    "memory for hardly more than one": Case([(0.0, 40, 24)] * 5, 80, 5),  # SGLang wants some tokens to spare
    "all identical": Case([(0.5, 33, 17)] * 40, 1024, 40),
    "all at one instant": Case([(1.0, 1 + 7 * i % 40, 1 + 11 * i % 24) for i in range(60)], 512, 60),
    "prompts and outputs of one token": Case([(0.25 * i, 1, 1) for i in range(40)], 256, 40),
    "thousands of tiny requests": Case([(0.001 * i, 1 + i % 3, 1 + i % 2) for i in range(2000)], 2048, 2000),
    "one token a step": Case([(0.0, 5, 4), (0.0, 3, 6), (7.0, 1, 1)], 512, 3, budget=1),
}


def simulate(preset: str, case: Case, folder: Path, step_by_step: bool = False) -> Outcome:
    """One replica with a cost that depends on everything in a step."""
    trace = folder / "trace.csv"
    lines = ["arrival_time,num_prompt_tokens,num_output_tokens", *(",".join(map(str, row)) for row in case.rows)]
    trace.write_text("\n".join(lines) + "\n", encoding="utf-8")
    blocks, kv = case.memory // 16, preset_values(preset).get("kv_cache", {})
    slots = {"parallel": 1} if kv.get("allocator") == "slots" else {}
    pool: dict[str, Any] = {
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "engine": preset,
        "max_model_len": case.longest,
        "kv_cache": {"num_blocks": blocks * 16 // kv.get("block_size", 16) + 1, **slots},
        "cost_model": {"kind": "constant", "step_duration": 0.01, "per_prefill_token": 1e-4, "per_sequence": 1e-4},
    }
    if case.budget is not None:
        pool["scheduler"] = {"max_num_batched_tokens": case.budget, "max_num_seqs": min(case.budget, 16)}
    values = {"workload": {"trace": str(trace)}, "cluster": {"pools": [pool]}}
    return run(experiment_from_values(values, folder), RunOptions(step_by_step=step_by_step))


def preset_values(preset: str) -> dict[str, Any]:
    text = (Path(__file__).parents[2] / "policies" / "presets" / f"{preset}.yaml").read_text(encoding="utf-8")
    values: dict[str, Any] = yaml.safe_load(text)
    return values


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("preset", PRESETS)
def test_nothing_is_lost_and_nothing_hangs(preset: str, name: str, tmp_path: Path) -> None:
    case = CASES[name]
    if case.budget == 1 and preset in NO_CHUNKS:
        pytest.skip(f"{preset} computes whole prompts: a budget below the longest is refused")
    outcome = simulate(preset, case, tmp_path)
    table = outcome.requests
    assert len(table) == len(case.rows)
    hopeless = preset in RESERVE_ALL and case.longest > case.memory
    assert (table["status"] == "finished").sum() == (0 if hopeless else case.finished)
    assert set(table["status"]) <= {"finished", "unservable"}
    assert table.loc[table["status"] == "unservable", "reject_reason"].str.len().gt(0).all()
    done = table["status"] == "finished"
    wanted = np.array([row[2] for row in case.rows])[done]
    assert table.loc[done, "num_output_tokens"].tolist() == wanted.tolist()
    stepped = simulate(preset, case, tmp_path, step_by_step=True)
    assert stepped.requests.equals(table)
