"""silicon_sample: closed loops of InferenceX type on servers of several engines, a case a row.

`concurrency` clients each send the next request when the last one ended; ten requests a client,
lengths uniform in 0.8 to 1.0 of the nominal ones, no shared prefixes. Every engine is simulated with the loop and the
constants of vLLM; KV settings are not recorded, published recipes are taken. Disaggregated rows and models whose sizes
are unknown are left out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sim.errors import InputError
from sim.seeds import Seeds
from sim.validation.case import Case, Collected, LeftOut
from sim.validation.tables import present, read_table
from sim.validation.variants import model_with_weights
from sim.validation.workloads import closed_loop

if TYPE_CHECKING:
    import pandas as pd

    from sim.workload.base import Workload

GROUP = "silicon_sample"
NOMINAL_SHARE = (0.8, 1.0)  # lengths as a share of the nominal ones
REQUESTS_PER_CLIENT = 10  # the burst at the start counts in the means, so that fewer would weigh it too much
_COLUMNS = (
    *(
        "id",
        "backend",
        "model_path",
        "system",
        "precision",
        "gemm_quant_mode",
        "mode",
        "isl",
        "osl",
        "batch_size",
        "tp_size",
        "pp_size",
    ),
    *("moe_tp_size", "moe_ep_size", "attention_dp_size", "concurrency", "silicon_ttft_ms", "silicon_tpot_ms", "origin"),
)
_MODELS = {  # checkpoints of one architecture
    "deepseek-r1": "deepseek-v3",
    "deepseek-v3.1": "deepseek-v3",
    "llama-3.1-8b-instruct": "llama-3.1-8b",
}
_GPUS = {
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200-sxm",
    "b200_sxm": "b200-sxm",
    "b300_sxm": "b300-sxm",
    "gb200": "gb200",
    "gb300": "gb300",
}


def collect(folder: Path) -> Collected:
    """The aggregated rows of the file."""
    rows = read_table(folder / "silicon_sample.csv.gz", _COLUMNS)
    found = Collected()
    for _, row in rows.iterrows():
        reason = _why_not(row)
        case = None if reason else _case_or_reason(row)
        if isinstance(case, Case):
            found.cases.append(case)
        else:
            found.left_out.append(LeftOut("silicon_sample", str(row["id"]), reason or str(case)))
    return found


def _why_not(row: pd.Series) -> str | None:
    if row["mode"] != "agg":
        return "prefill and decode on separate GPUs"
    if _data_parallel(row) > 1 and not _has_whole_experts(row):
        return "attention data parallelism without expert parallelism"
    if row["system"] not in _GPUS:
        return f"no GPU '{row['system']}' in the catalogue"
    if not (present(row["concurrency"]) and row["silicon_ttft_ms"] > 0 and row["silicon_tpot_ms"] > 0):
        return "no concurrency or no latency recorded"
    return None


def _case_or_reason(row: pd.Series) -> Case | str:
    checkpoint = re.sub(r"-(FP8|NVFP4)$", "", str(row["model_path"]).split("/")[-1]).lower()
    try:
        model = model_with_weights(_MODELS.get(checkpoint, checkpoint), _precision(row))
    except InputError:
        return f"sizes of {row['model_path']} are not in the data"
    return _case(row, model)


def _precision(row: pd.Series) -> str:
    """Of the matrices; the mode of the products where the row does not name it."""
    return str(row["precision"] if present(row["precision"]) else row["gemm_quant_mode"])


def _case(row: pd.Series, model: str) -> Case:
    concurrency, isl, osl = (int(row[key]) for key in ("concurrency", "isl", "osl"))
    fixed = "gap-analysis" in str(row["origin"])
    return Case(
        dataset="silicon_sample",
        name=str(row["id"]),
        workload=f"{isl}/{osl}",
        pool={
            "model": model,
            "gpu": _GPUS[str(row["system"])],
            "tensor_parallel": _tensor_parallel(row),
            "data_parallel": _data_parallel(row),
            "expert_parallel": _has_whole_experts(row),
            "pipeline_parallel": int(row["pp_size"]) if present(row["pp_size"]) and row["pp_size"] > 1 else 1,
            "max_model_len": isl + osl + 256,
            "scheduler": {"max_num_seqs": max(256, concurrency), "max_num_batched_tokens": max(8192, concurrency)},
            "kv_cache": {"prefix_caching": False, "dtype": _kv_dtype(row)},
            "cost_model": {"top_p": False},  # the client of these benchmarks asks for temperature 0
        },
        make_workload=lambda seed: _workload(isl, osl, concurrency, fixed, seed),
        measured={
            "ttft.mean": float(row["silicon_ttft_ms"]) * 1e-3,
            "tpot.mean": float(row["silicon_tpot_ms"]) * 1e-3,
        },
        groups=frozenset({GROUP, f"{GROUP} {row['backend']}"}),
        notes=("latencies are taken for means: the data do not say",),
    )


def _data_parallel(row: pd.Series) -> int:
    size = row["attention_dp_size"]
    return int(size) if present(size) and size > 1 else 1


def _has_whole_experts(row: pd.Series) -> bool:
    """Whether experts are spread over all GPUs of the replica; a mixture of both ways counts as slices."""
    spread = row["moe_ep_size"]
    return bool(present(spread) and spread > 1 and spread == _tensor_parallel(row) * _data_parallel(row))


def _tensor_parallel(row: pd.Series) -> int:
    """GPUs of the replica. Some rows give their product with the expert-parallel size, once too often.

    Rows (16, 4, 4) of (tp, moe_tp, moe_ep) repeat the latencies of rows (4, 1, 4), and (64, 8, 8) those of (8, 1, 8):
    the experts are spread over the same GPUs.
    """
    total, experts = int(row["tp_size"]), row["moe_ep_size"]
    repeated = present(experts) and experts > 1 and row["moe_tp_size"] == experts and total == experts * experts
    return int(experts) if repeated else total


def _kv_dtype(row: pd.Series) -> str | None:
    """Published recipes: 8-bit keys and values with TensorRT-LLM, and with every engine on Blackwell."""
    blackwell = str(row["system"]).startswith(("b", "gb"))
    return "fp8" if row["backend"] == "trtllm" or blackwell else None


def _workload(isl: int, osl: int, concurrency: int, fixed: bool, seed: int) -> Workload:
    num = REQUESTS_PER_CLIENT * concurrency
    if fixed:
        prompt, output = (np.full(num, size, dtype=np.int64) for size in (isl, osl))
        return closed_loop(prompt, output, concurrency)
    rng = Seeds(seed).generator("validation", "lengths")
    low, high = NOMINAL_SHARE
    prompt, output = (np.maximum(np.rint(rng.uniform(low * n, high * n, num)), 1).astype(np.int64) for n in (isl, osl))
    return closed_loop(prompt, output, concurrency)
