"""Published TensorRT-LLM tables: offline throughput with all requests queued at once, a case a row.

The published batch limits are only partly known: 2048 sequences and 8192 tokens a step are taken, and vLLM's step
constants; the KV cache has 8 bits. At most `MOST_REQUESTS` of a row's requests are simulated. Pipelines and unknown
models are left out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from sim.errors import InputError
from sim.validation.case import Case, Collected, LeftOut
from sim.validation.tables import integer, read_table
from sim.validation.variants import model_with_weights
from sim.validation.workloads import all_at_once

if TYPE_CHECKING:
    import pandas as pd

GROUP = "TensorRT-LLM tables"
MOST_REQUESTS = 4096
_COLUMNS = (
    *("source", "model", "gpu", "precision", "parallelism", "tp", "dep", "pp", "isl", "osl", "num_requests"),
    "total_output_tok_s",
)
_MODELS = {
    "DeepSeek-R1-0528": "deepseek-v3",
    "Llama-3.1-405B": "llama-3.1-405b",
    "Llama-3.1-8B": "llama-3.1-8b",
    "Llama-3.3-70B": "llama-3.1-70b",  # the same architecture
    "Llama-4-Scout-17B-16E": "llama-4-scout",
    "Qwen3-235B-A22B": "qwen3-235b-a22b",
    "Qwen3-30B-A3B": "qwen3-30b-a3b",
    "gpt-oss-120b": "gpt-oss-120b",
    "gpt-oss-20b": "gpt-oss-20b",
}


def collect(folder: Path) -> Collected:
    """The rows of the table."""
    rows = read_table(folder / "trtllm_perf_overview.csv", _COLUMNS)
    found = Collected()
    for _, row in rows.iterrows():
        version = re.search(r"@(\w{4})", str(row["source"]))
        name = "-".join(str(row[key]) for key in ("model", "gpu", "precision", "parallelism"))
        name += f"-{row['isl']}x{row['osl']}@{version[1] if version else row.name}"
        case = _case_or_reason(name.replace(",", "").replace(" ", ""), row)
        if isinstance(case, Case):
            found.cases.append(case)
        else:
            found.left_out.append(LeftOut("trtllm", name, case))
    return found


def _case_or_reason(name: str, row: pd.Series) -> Case | str:
    if (integer(row["pp"]) or 1) > 1:
        return "pipeline stages that work at the same time are not modelled"
    if str(row["model"]) not in _MODELS:
        return f"sizes of {row['model']} are not in the data"
    try:
        model = model_with_weights(_MODELS[str(row["model"])], str(row["precision"]).lower())
    except InputError as error:
        return str(error)
    return _case(name, row, model)


def _case(name: str, row: pd.Series, model: str) -> Case:
    isl, osl = int(row["isl"]), int(row["osl"])
    num = min(integer(row["num_requests"]) or MOST_REQUESTS, MOST_REQUESTS)
    ranks = integer(row["dep"]) or 1  # attention ranks that spread the experts
    return Case(
        dataset="trtllm",
        name=name,
        workload=f"{isl}/{osl}",
        pool={
            "model": model,
            "gpu": str(row["gpu"]),
            "tensor_parallel": 1 if ranks > 1 else integer(row["tp"]) or 1,
            "data_parallel": ranks,
            "expert_parallel": ranks > 1,
            "max_model_len": isl + osl,
            "scheduler": {"max_num_seqs": 2048 * ranks, "max_num_batched_tokens": 8192 * ranks},
            "kv_cache": {"prefix_caching": False, "gpu_memory_utilization": 0.9, "dtype": "fp8"},
            "cost_model": {"top_p": False},
        },
        make_workload=lambda seed: all_at_once(num, isl, osl),
        measured={"output_token_throughput": float(row["total_output_tok_s"])},
        groups=frozenset({GROUP}),
        client=False,
    )
