"""Demo runs of inference-perf: Llama-3.1-8B on one H100, vLLM 0.11, seven stages of rising load each, a case a stage.

That version scheduled synchronously. Quantised, speculative and pre-V1 runs are left out. Recorded ITL is half the real
one (two time stamps an event): the corrected mean is used.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sim.validation.blis import NUM_PROMPTS
from sim.validation.case import Case, Collected, LeftOut
from sim.validation.tables import present, read_table
from sim.validation.workloads import Stage, replayed, staged_arrivals

if TYPE_CHECKING:
    import pandas as pd

    from sim.workload.base import Workload

GROUP = "inference-perf"
LEAST_SENT = 0.97  # of the requested rate, for a stage to be replayed
_STATISTICS = {"mean": "mean", "median": "p50", "p90": "p90", "p99": "p99"}
_COLUMNS = (
    *("run", "model", "gpu", "tp", "max_model_len", "stage", "vllm_version", "max_num_seqs", "prefix_caching"),
    *(
        "quantization",
        "speculative",
        "requested_rate",
        "achieved_rate",
        "send_duration_s",
        "count",
        "n_failed",
        "prompt_len_mean",
    ),
    *("output_len_requested", "itl_true_mean_s"),
    *(f"{name}_{s}_s" for name in ("ttft", "e2e") for s in _STATISTICS),
)


def collect(folder: Path) -> Collected:
    """Every load stage of the plain V1 runs."""
    rows = read_table(folder / "inference_perf_kubecon2025.csv", _COLUMNS)
    found = Collected()
    for _, row in rows[rows["stage"] >= 0].iterrows():
        name, reason = f"{row['run']}-{int(row['stage'])}", _why_not(row)
        if reason:
            found.left_out.append(LeftOut("inference_perf", name, reason))
        else:
            found.cases.append(_case(name, row))
    return found


def _why_not(row: pd.Series) -> str | None:
    if "V0" in str(row["vllm_version"]):
        return "the engine before V1"
    if present(row["speculative"]):
        return "speculative decoding"
    if str(row["quantization"]) != "none":
        return f"quantization {row['quantization']}"
    if row["achieved_rate"] < LEAST_SENT * row["requested_rate"]:
        return "saturated: the client could not send at the rate asked for, its limit is not recorded"
    return None


def _case(name: str, row: pd.Series) -> Case:
    caching = str(row["prefix_caching"]) == "True"
    stage = Stage(int(row["count"]), float(row["send_duration_s"]))
    prompt, output = round(float(row["prompt_len_mean"])), int(row["output_len_requested"])
    return Case(
        dataset="inference_perf",
        name=name,
        workload=f"{float(row['requested_rate']):.0f} req/s",
        pool={
            "model": str(row["model"]),
            "gpu": str(row["gpu"]),
            "tensor_parallel": int(row["tp"]),
            "max_model_len": int(row["max_model_len"]),
            "scheduler": {
                "max_num_seqs": int(row["max_num_seqs"]),
                "async_scheduling": False,
                "scheduler_reserve_full_isl": False,
            },
            "kv_cache": {"prefix_caching": caching},
        },
        make_workload=lambda seed: _workload(stage, prompt, output, caching, seed),
        measured=_measured(row),
        seeds=(1,),
        groups=frozenset({GROUP}),
    )


def _workload(stage: Stage, prompt: int, output: int, caching: bool, seed: int) -> Workload:
    arrival = staged_arrivals([stage], seed)
    prompts, outputs = (np.full(len(arrival), size, dtype=np.int64) for size in (prompt, output))
    return replayed(arrival, prompts, outputs, period=NUM_PROMPTS if caching else 0)


def _measured(row: pd.Series) -> dict[str, float]:
    values = {
        f"{name}.{ours}": float(row[f"{name}_{theirs}_s"])
        for name in ("ttft", "e2e")
        for theirs, ours in _STATISTICS.items()
    }
    return values | {"tpot.mean": float(row["itl_true_mean_s"])}
