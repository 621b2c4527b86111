"""sim2real: vLLM runs with aggregate results only, and the published predictions of peer simulators for them.

Arrivals are regenerated: exponential gaps stretched to each stage, predictions averaged over seeds. Prompts are
longer than asked for by a re-tokenization that the per-request runs of the same campaign show. A run without a
recorded number of KV blocks takes the memory model's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sim.validation import blis
from sim.validation.blis import CLIENT_TIMEOUT, NUM_PROMPTS
from sim.validation.case import REGENERATED_SEEDS, Case, Collected, LeftOut
from sim.validation.tables import integer, present, read_table
from sim.validation.workloads import Stage, replayed, staged_arrivals

if TYPE_CHECKING:
    import pandas as pd

    from sim.workload.base import Workload

TOKENS_PER_ASKED = 1.047  # measured prompt tokens per token asked for, blis_training
EVALUATED = "sim2real eval38"
OTHERS = "sim2real trainval15"
_STATISTICS = ("mean", "p90", "p99")
_TWIN = re.compile(r"identical run in \S+: ([^;\s]+)")
_COLUMNS = (
    *("dataset", "exp_id", "experiment", "model", "hardware", "tp", "max_num_batched_tokens", "max_num_seqs"),
    *("gpu_mem_util", "kv_blocks_gpu", "workload", "stage_index", "duration_s", "num_requests_expected"),
    *("system_prompt_len", "question_len", "output_len", "itl_mean_from_requested_len_ms", "cpu_offload"),
    "config_provenance",
    *(f"actual_{name}_{s}_ms" for name in ("ttft", "e2e") for s in _STATISTICS),
)
_PEER_COLUMNS = ("dataset", "simulator", "experiment", "stage_index", "metric_name", "signed_error_pct")
_PEER_METRICS = {f"{name}_{s}": f"{name}.{s}" for name in ("ttft", "e2e") for s in _STATISTICS} | {
    "itl_mean": "tpot.mean"
}


def collect(folder: Path) -> Collected:
    """All runs of the folder with the peers' errors; true arrivals where blis_training beside it has the run."""
    rows = read_table(folder / "experiments.csv", _COLUMNS)
    peers, twins = peer_errors(folder), _twins(folder.parent / "blis_training")
    found = Collected()
    for (dataset, experiment), group in rows.groupby(["dataset", "experiment"], sort=False):
        stages = group[group["stage_index"] >= 0]
        summary = group[group["stage_index"] == -1]
        if summary.empty or stages.empty:
            found.left_out.append(LeftOut("sim2real", str(experiment), "no summary or no stages in the data"))
            continue
        errors = peers.get((str(dataset), str(experiment)), {})
        case = _case(summary.iloc[0], stages, errors)
        named = _TWIN.search(str(summary.iloc[0]["config_provenance"]))
        twin = twins.get(named[1]) if named else None
        found.cases.append(case if twin is None else _with_arrivals_of(twin, case))
    return found


def _twins(folder: Path) -> dict[str, Case]:
    """The runs of blis_training by name; empty where the folder is absent."""
    return {case.name: case for case in blis.collect(folder).cases} if folder.is_dir() else {}


def _with_arrivals_of(twin: Case, case: Case) -> Case:
    """The same run measured request by request: its arrivals, lengths and TTFT without warm-up."""
    settled = {name: value for name, value in twin.measured.items() if name.startswith("ttft_settled")}
    return replace(
        case, make_workload=twin.make_workload, seeds=(1,), measured={**case.measured, **settled}, notes=twin.notes
    )


def peer_errors(folder: Path) -> dict[tuple[str, str], dict[str, dict[str, float]]]:
    """Published relative errors of the summary stage: (data set, experiment) -> simulator -> metric."""
    rows = read_table(folder / "peer_predictions.csv.gz", _PEER_COLUMNS)
    rows = rows[(rows["stage_index"] == -1) & rows["metric_name"].isin(_PEER_METRICS)]
    if "duplicate_artifact" in rows.columns:
        rows = rows[rows["duplicate_artifact"] != True]  # noqa: E712  (a column that may hold strings or gaps)
    found: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    columns = ("dataset", "experiment", "simulator", "metric_name", "signed_error_pct")
    for dataset, experiment, simulator, metric, error in zip(*(rows[name] for name in columns), strict=True):
        if present(error):
            errors = found.setdefault((str(dataset), str(experiment)), {}).setdefault(str(simulator), {})
            errors[_PEER_METRICS[str(metric)]] = float(error) / 100.0
    return found


def _case(run: pd.Series, stages: pd.DataFrame, peers: Mapping[str, Mapping[str, float]]) -> Case:
    parts = [
        Stage(int(n), float(d)) for n, d in zip(stages["num_requests_expected"], stages["duration_s"], strict=True)
    ]
    asked = int(run["system_prompt_len"]) + int(run["question_len"])
    prompt, output = round(TOKENS_PER_ASKED * asked), int(run["output_len"])
    offload = present(run["cpu_offload"]) and float(run["cpu_offload"]) > 0
    return Case(
        dataset="sim2real",
        name=str(run["experiment"]),
        workload=str(run["workload"]),
        pool=_pool(run),
        make_workload=lambda seed: _workload(parts, prompt, output, seed),
        measured=_measured(run),
        seeds=REGENERATED_SEEDS,
        timeout=CLIENT_TIMEOUT,
        groups=frozenset({EVALUATED if str(run["dataset"]) == "eval38" else OTHERS}),
        peers=peers,
        notes=("the CPU tier for evicted blocks is not simulated",) if offload else (),
    )


def _pool(run: pd.Series) -> dict[str, object]:
    utilization = float(run["gpu_mem_util"]) if present(run["gpu_mem_util"]) and float(run["gpu_mem_util"]) > 0 else 0.9
    return {
        "model": str(run["model"]),
        "gpu": str(run["hardware"]),
        "tensor_parallel": int(run["tp"]),
        "max_model_len": 4096,  # stated for the campaign
        "scheduler": {
            "max_num_seqs": integer(run["max_num_seqs"]) or 128,
            "max_num_batched_tokens": int(run["max_num_batched_tokens"]),
            "scheduler_reserve_full_isl": False,  # came with a later version
        },
        "kv_cache": {"num_blocks": integer(run["kv_blocks_gpu"]), "gpu_memory_utilization": utilization},
    }


def _workload(stages: Sequence[Stage], prompt: int, output: int, seed: int) -> Workload:
    arrival = staged_arrivals(stages, seed)
    prompts, outputs = (np.full(len(arrival), size, dtype=np.int64) for size in (prompt, output))
    return replayed(arrival, prompts, outputs, period=NUM_PROMPTS)


def _measured(run: pd.Series) -> dict[str, float]:
    values = {
        f"{name}.{s}": float(run[f"actual_{name}_{s}_ms"]) * 1e-3 for name in ("ttft", "e2e") for s in _STATISTICS
    }
    values["tpot.mean"] = float(run["itl_mean_from_requested_len_ms"]) * 1e-3
    return {name: value for name, value in values.items() if present(value)}
