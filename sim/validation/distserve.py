"""distserve: OPT-13B on A100 under ShareGPT requests with arrivals and lengths, a row a request.

vLLM of early 2024 scheduled synchronously, ran prompts in steps of their own (scheduler `vllm_v0`) and had no CUDA
graphs. DistServe's own engine ran prefill and decode on separate GPUs: see `distserve_engine`. Runs of it that do not
state their placement are simulated with the one of the other runs, and stand in a group of their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.errors import InputError
from sim.validation import distserve_engine
from sim.validation.case import Case, Collected, LeftOut, request_metrics
from sim.validation.early import HostTimes
from sim.validation.tables import read_table
from sim.validation.workloads import replayed

if TYPE_CHECKING:
    import pandas as pd

GROUP = "distserve vllm"
SPLIT = "distserve split"
UNSTATED = "distserve split, placement not stated"
USUAL = distserve_engine.Placement((2, 1), (1, 1))  # of the authors' comparison script
_COLUMNS = ("run", "system", "placement", "arrival_s", "prompt_len", "output_len", "ttft_ms", "tpot_ms", "latency_ms")
# vLLM 0.2 and 0.3: defaults of the time. Prefix caching came later.
EARLY_VLLM: dict[str, Any] = {
    "scheduler": {
        "policy": "vllm_v0",
        "max_num_seqs": 256,
        "max_num_batched_tokens": 2560,
        "async_scheduling": False,
        "enable_chunked_prefill": False,
        "watermark": 0.01,
    },
    "kv_cache": {"prefix_caching": False},
    "cost_model": {
        "kind": "fitted",
        "cuda_graphs": False,
        "small_ops_scale": 4.5,  # chosen with the time per sequence on a small grid over the runs of this set
        "mixed_step_per_layer": 0.0,
        "eager_step_per_layer": 0.0,
    },
}
# The time per layer is the floor of decode steps in splitwise's cells on 4 and 8 GPUs, which no GPU work explains.
EARLY_HOSTS = {"A100-80GB": HostTimes(5.6e-4, 4e-4), "H100-80GB": HostTimes(3.7e-4, 4e-4)}


def collect(folder: Path) -> Collected:
    """The runs of the folder, those of vLLM first."""
    rows = read_table(folder / "opt13b_sharegpt_requests.csv.gz", _COLUMNS)
    found = Collected()
    for name, group in rows.groupby("run", sort=False):
        ordered = group.sort_values("arrival_s", kind="stable")
        try:
            how = _EARLY if str(group["system"].iloc[0]) == "vllm" else _split(folder, str(group["placement"].iloc[0]))
            found.cases.append(_case(str(name), ordered, how))
        except InputError as error:
            found.left_out.append(LeftOut("distserve", str(name), str(error)))
    found.cases.sort(key=lambda case: case.cluster is not None)
    return found


_EARLY: dict[str, Any] = {
    "pool": {"model": "opt-13b", "gpu": "A100-80GB", "max_model_len": 2048, **EARLY_VLLM},
    "groups": frozenset({GROUP}),
    "host": EARLY_HOSTS["A100-80GB"],
}


def _split(folder: Path, name: str) -> dict[str, Any]:
    """What a case of DistServe's engine has of its own."""
    placement = distserve_engine.placement_of(name)
    cluster = distserve_engine.cluster(folder, placement or USUAL)
    notes = () if placement else ("the placement is not stated",)
    group = SPLIT if placement else UNSTATED
    return {"pool": cluster["pools"][0], "cluster": cluster, "groups": frozenset({group}), "notes": notes}


def _case(name: str, rows: pd.DataFrame, how: dict[str, Any]) -> Case:
    arrival = rows["arrival_s"].to_numpy(dtype=np.float64)
    prompt, output = (rows[key].to_numpy(dtype=np.int64) for key in ("prompt_len", "output_len"))
    ttft, e2e = (rows[key].to_numpy(dtype=np.float64) * 1e-3 for key in ("ttft_ms", "latency_ms"))
    return Case(
        dataset="distserve",
        name=name,
        workload="sharegpt",
        make_workload=lambda seed: replayed(arrival, prompt, output),
        measured=request_metrics(ttft, e2e, output),
        client=False,
        **how,
    )
