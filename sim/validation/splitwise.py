"""splitwise: batches of equal prompts on A100 and H100 machines with an engine of late 2023, a case a cell.

A cell is one batch of 1 to 64 prompts, all there at once, generated to the end; its prompt time is TTFT, its time per
token TPOT. Cells are medians over the repeats. Power-capped machines are left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sim.validation.case import Case, Collected, LeftOut
from sim.validation.distserve import EARLY_HOSTS, EARLY_VLLM
from sim.validation.tables import read_table
from sim.validation.workloads import all_at_once

if TYPE_CHECKING:
    import pandas as pd

GROUP = "splitwise"
MAX_OUTPUT = 512  # longer generations of the set stopped early
_KEY = ("model", "hardware", "tensor_parallel", "prompt_size", "batch_size", "token_size")
_COLUMNS = (*_KEY, "prompt_time", "token_time")
_GPUS = {"a100-80gb": "A100-80GB", "h100-80gb": "H100-80GB"}
_MODELS = {"llama2-70b": "llama-2-70b", "bloom-176b": "bloom-176b"}


def collect(folder: Path) -> Collected:
    """The cells of machines at full power."""
    rows = read_table(folder / "perf_model.csv", _COLUMNS)
    found = Collected()
    for _, group in rows.groupby(list(_KEY), sort=False):
        model, hardware, parallel, prompt, batch, tokens = group.iloc[0][list(_KEY)]
        name = f"{model}-{hardware}-tp{parallel}-{prompt}x{batch}-{tokens}"
        if hardware not in _GPUS:
            found.left_out.append(LeftOut("splitwise", name, "power-capped machine"))
        elif int(tokens) > MAX_OUTPUT:
            found.left_out.append(LeftOut("splitwise", name, "generation stopped before the stated length"))
        else:
            found.cases.append(_case(name, group))
    return found


def _case(name: str, cell: pd.DataFrame) -> Case:
    first = cell.iloc[0]
    prompt, batch, tokens = (int(first[key]) for key in ("prompt_size", "batch_size", "token_size"))
    scheduler = {
        **EARLY_VLLM["scheduler"],
        "max_num_batched_tokens": max(prompt * batch, 256),
    }
    return Case(
        dataset="splitwise",
        name=name,
        workload=f"batch {batch}",
        pool={
            "model": _MODELS[str(first["model"])],
            "gpu": _GPUS[str(first["hardware"])],
            "tensor_parallel": int(first["tensor_parallel"]),
            "max_model_len": prompt + tokens,
            **{**EARLY_VLLM, "scheduler": scheduler},
        },
        make_workload=lambda seed: all_at_once(batch, prompt, tokens),
        measured={
            "ttft.mean": float(cell["prompt_time"].median()) * 1e-3,
            "tpot.mean": float(cell["token_time"].median()) * 1e-3,
        },
        groups=frozenset({GROUP}),
        client=False,
        host=EARLY_HOSTS[_GPUS[str(first["hardware"])]],
    )
