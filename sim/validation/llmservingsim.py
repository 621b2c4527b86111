"""llmservingsim: vLLM 0.19 on RTX GPUs, 300 ShareGPT requests each, with the engine's own time stamps.

Prefix hits among these conversations (a few per cent of the tokens) are not replayed: which earlier request a prompt
continues is not recorded. The errors of the data set's own simulator on the same runs are computed from its results.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.errors import InputError
from sim.validation.case import Case, Collected, LeftOut, relative_errors, request_metrics
from sim.validation.tables import read_table
from sim.validation.workloads import replayed

if TYPE_CHECKING:
    import pandas as pd

GROUP = "llmservingsim"
_COLUMNS = (
    *("run", "input_tokens", "output_tokens", "queued_s", "first_token_s", "last_token_s"),
    *("llmservingsim_latency_ns", "llmservingsim_ttft_ns"),
)


def collect(folder: Path) -> Collected:
    """The runs of the folder; what data-parallel engines share their experts counts as one replica."""
    rows = read_table(folder / "requests.csv.gz", _COLUMNS)
    found = Collected()
    for meta in _read_meta(folder / "run_meta.json"):
        name, engine = str(meta["run"]), meta["vllm_meta"]["engine_kwargs"]
        group = rows[rows["run"] == name].sort_values("queued_s", kind="stable")
        if engine.get("data_parallel_size", 1) > 1 and not engine.get("enable_expert_parallel"):
            found.left_out.append(LeftOut("llmservingsim", name, "data parallelism without expert parallelism"))
        elif group.empty:
            found.left_out.append(LeftOut("llmservingsim", name, "no requests in the data"))
        else:
            found.cases.append(_case(name, meta["vllm_meta"], group))
    return found


def _read_meta(path: Path) -> list[dict[str, Any]]:
    try:
        runs = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as JSON ({error})") from None
    if not isinstance(runs, list):
        raise InputError(f"{path}: must be a list of runs")
    return runs


def _case(name: str, meta: dict[str, Any], rows: pd.DataFrame) -> Case:
    queued, first, last = (
        rows[key].to_numpy(dtype=np.float64) for key in ("queued_s", "first_token_s", "last_token_s")
    )
    prompt, output = (rows[key].to_numpy(dtype=np.int64) for key in ("input_tokens", "output_tokens"))
    measured = request_metrics(first - queued, last - queued, output)
    measured["output_token_throughput"] = float(output.sum() / (last.max() - queued.min()))
    theirs = [rows[f"llmservingsim_{key}_ns"].to_numpy(dtype=np.float64) * 1e-9 for key in ("ttft", "latency")]
    return Case(
        dataset="llmservingsim",
        name=name,
        workload="sharegpt",
        pool=_pool(name, meta),
        make_workload=lambda seed: replayed(queued - queued.min(), prompt, output),
        measured=measured,
        groups=frozenset({GROUP}),
        peers={"llmservingsim": relative_errors(request_metrics(theirs[0], theirs[1], output), measured)},
        client=False,
    )


def _pool(name: str, meta: dict[str, Any]) -> dict[str, Any]:
    engine = meta["engine_kwargs"]
    ranks = int(engine.get("data_parallel_size", 1))
    return {
        "model": str(meta["model"]),
        "gpu": name.split("_")[0],
        "tensor_parallel": int(engine["tensor_parallel_size"]),
        "data_parallel": ranks,
        "expert_parallel": bool(engine.get("enable_expert_parallel")),
        "max_model_len": engine.get("max_model_len"),
        "scheduler": {  # the limits of a rank are those of an engine of its own
            "max_num_seqs": ranks * int(engine["max_num_seqs"]),
            "max_num_batched_tokens": ranks * int(engine["max_num_batched_tokens"]),
        },
        "kv_cache": {"num_blocks": (meta.get("kv_cache") or {}).get("num_gpu_blocks"), "memory_of": "vllm-0.19"},
    }
