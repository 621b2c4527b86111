"""silicon_sample: closed loops of InferenceX type on servers of several engines, a case a row.

`concurrency` clients each send the next request when the last one ended; ten requests a client,
lengths uniform in 0.8 to 1.0 of the nominal ones, no shared prefixes. Every engine is simulated with the loop and the
constants of vLLM; KV settings are not recorded, published recipes are taken. Disaggregated rows are simulated where
they state the number of workers of both sides, each a replica, on the nodes that the GPU usually comes in; the prefill
side emits the first token (vLLM: the decode side). Models whose sizes are unknown are left out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
SPLIT = "silicon_sample split"
SIDES = ("prefill", "decode")
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
    *(
        f"{side}_{name}"
        for side in SIDES
        for name in ("num_workers", "tp_size", "pp_size", "moe_tp_size", "moe_ep_size", "attention_dp_size")
    ),
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
    """The rows of the file that can be simulated."""
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
    sides = [""] if row["mode"] == "agg" else [f"{side}_" for side in SIDES]
    if any(_data_parallel(row, side) > 1 and not _has_whole_experts(row, side) for side in sides):
        return "attention data parallelism without expert parallelism"
    if row["mode"] != "agg" and not all(present(row[f"{side}_num_workers"]) for side in SIDES):
        return "prefill and decode on separate GPUs, their number not stated"
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
    cluster = None if row["mode"] == "agg" else _cluster(row, model)
    return Case(
        dataset="silicon_sample",
        name=str(row["id"]),
        workload=f"{isl}/{osl}",
        pool=cluster["pools"][0] if cluster else _pool(row, model),
        make_workload=lambda seed: _workload(isl, osl, concurrency, fixed, seed),
        measured={
            "ttft.mean": float(row["silicon_ttft_ms"]) * 1e-3,
            "tpot.mean": float(row["silicon_tpot_ms"]) * 1e-3,
        },
        groups=frozenset({SPLIT if cluster else GROUP, f"{SPLIT if cluster else GROUP} {row['backend']}"}),
        notes=("latencies are taken for means: the data do not say",),
        cluster=cluster,
    )


def _data_parallel(row: pd.Series, side: str = "") -> int:
    size = row[f"{side}attention_dp_size"]
    return int(size) if present(size) and size > 1 else 1


def _has_whole_experts(row: pd.Series, side: str = "") -> bool:
    """Whether experts are spread over all GPUs of the replica; a mixture of both ways counts as slices."""
    spread = row[f"{side}moe_ep_size"]
    return bool(present(spread) and spread > 1 and spread == _tensor_parallel(row, side) * _data_parallel(row, side))


def _pool(row: pd.Series, model: str, side: str = "") -> dict[str, Any]:
    """A pool of the row; `side` is the beginning of its columns."""
    concurrency, isl, osl = (int(row[key]) for key in ("concurrency", "isl", "osl"))
    stages = row[f"{side}pp_size"]
    return {
        "model": model,
        "gpu": _GPUS[str(row["system"])],
        "tensor_parallel": _tensor_parallel(row, side),
        "data_parallel": _data_parallel(row, side),
        "expert_parallel": _has_whole_experts(row, side),
        "pipeline_parallel": int(stages) if present(stages) and stages > 1 else 1,
        "max_model_len": isl + osl + 256,
        "scheduler": {"max_num_seqs": max(256, concurrency), "max_num_batched_tokens": max(8192, concurrency)},
        "kv_cache": {"prefix_caching": False, "dtype": _kv_dtype(row)},
        "cost_model": {"top_p": False},  # the client of these benchmarks asks for temperature 0
    }


def _cluster(row: pd.Series, model: str) -> dict[str, Any]:
    pools = [
        {"name": side, "role": side, "replicas": int(row[f"{side}_num_workers"]), **_pool(row, model, f"{side}_")}
        for side in SIDES
    ]
    first_token = "decode" if row["backend"] == "vllm" else "prefill"
    return {"pools": pools, "disaggregation": {"policy": "always_split", "first_token": first_token}}


def _tensor_parallel(row: pd.Series, side: str = "") -> int:
    """GPUs of a replica. Some rows give their product with the expert-parallel size, once too often.

    Rows (16, 4, 4) of (tp, moe_tp, moe_ep) repeat the latencies of rows (4, 1, 4), and (64, 8, 8) those of (8, 1, 8):
    the experts are spread over the same GPUs.
    """
    total, experts = int(row[f"{side}tp_size"]), row[f"{side}moe_ep_size"]
    repeated = present(experts) and experts > 1 and row[f"{side}moe_tp_size"] == experts and total == experts * experts
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
