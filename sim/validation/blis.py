"""blis_training: vLLM 0.15 on H100, every request with its arrival and latencies.

The client cycled 100 fixed prompts, so that after the first hundred every prompt is in the prefix cache. Recorded
output lengths are a re-tokenization; the true length is what was asked for. Failed rows carry no prompt length: it is
that of the prompt at the same place of the cycle. The server's CPU tier for evicted blocks is not simulated.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sim.validation.case import Case, Collected, Observed, request_metrics
from sim.validation.tables import read_table
from sim.validation.workloads import replayed

if TYPE_CHECKING:
    import pandas as pd

    from sim.units import IntArray

NUM_PROMPTS = 100  # fixed prompts that the client cycled
CLIENT_TIMEOUT = 300.0  # seconds
CLEAN = "blis clean"
OVERLOADED = "blis overloaded"
_RUN_COLUMNS = (
    *("experiment", "scope", "model", "workload", "gpu", "tp", "max_model_len", "max_num_batched_tokens"),
    *("max_num_seqs", "kv_blocks_gpu", "kv_block_size", "output_len_requested", "num_failed"),
)
_REQUEST_COLUMNS = ("experiment", "stage", "arrival_us", "input_tokens", "ok", "ttft_us", "e2e_us")


def collect(folder: Path) -> Collected:
    """All runs of the folder, the overloaded ones marked."""
    runs = read_table(folder / "experiments.csv", _RUN_COLUMNS)
    requests = read_table(folder / "requests.csv.gz", _REQUEST_COLUMNS)
    rows = {str(name): group for name, group in requests.groupby("experiment", sort=False)}
    summaries = runs[runs["scope"] == "summary"]
    return Collected([_case(run, rows[str(run["experiment"])]) for _, run in summaries.iterrows()])


def pool_of(run: pd.Series) -> dict[str, object]:
    """The pool of a run of this campaign."""
    return {
        "model": str(run["model"]),
        "gpu": str(run["gpu"]),
        "tensor_parallel": int(run["tp"]),
        "max_model_len": int(run["max_model_len"]),
        "scheduler": {
            "max_num_seqs": int(run["max_num_seqs"]),
            "max_num_batched_tokens": int(run["max_num_batched_tokens"]),
            "scheduler_reserve_full_isl": False,  # came with a later version
        },
        "kv_cache": {"num_blocks": int(run["kv_blocks_gpu"]), "block_size": int(run["kv_block_size"])},
    }


def prompt_lengths(input_tokens: IntArray, period: int = NUM_PROMPTS) -> IntArray:
    """Tokens of each prompt: the median of the recorded (non-zero) lengths at the same place of the cycle."""
    place = np.arange(len(input_tokens)) % period
    known = input_tokens > 0
    overall = int(np.median(input_tokens[known]))
    lengths = np.full(period, overall, dtype=np.int64)
    for i in range(min(period, len(input_tokens))):
        here = input_tokens[known & (place == i)]
        lengths[i] = int(np.median(here)) if len(here) else overall
    return lengths[place]


def _case(run: pd.Series, rows: pd.DataFrame) -> Case:
    arrival = rows["arrival_us"].to_numpy(dtype=np.float64) * 1e-6
    prompt = prompt_lengths(rows["input_tokens"].to_numpy(dtype=np.int64))
    output = np.full(len(rows), int(run["output_len_requested"]), dtype=np.int64)
    observed = _observed(rows)
    return Case(
        dataset="blis_training",
        name=str(run["experiment"]),
        workload=str(run["workload"]),
        pool=pool_of(run),
        make_workload=lambda seed: replayed(arrival, prompt, output, period=NUM_PROMPTS),
        measured=_measured(rows, observed, output),
        timeout=CLIENT_TIMEOUT,
        groups=frozenset({OVERLOADED if str(run["workload"]) == "reasoning" else CLEAN}),
        requests=observed,
        notes=("the 8 GiB CPU tier for evicted blocks is not simulated",),
    )


def _observed(rows: pd.DataFrame) -> Observed:
    ok = rows["ok"].to_numpy() == 1
    ttft, e2e = (np.where(ok, rows[key].to_numpy(dtype=np.float64) * 1e-6, np.nan) for key in ("ttft_us", "e2e_us"))
    stage = rows["stage"].to_numpy()
    starts = np.flatnonzero(np.diff(stage, prepend=stage[0] - 1))
    return Observed(ttft, e2e, tuple(int(row) for row in starts))


def _measured(rows: pd.DataFrame, observed: Observed, output: IntArray) -> dict[str, float]:
    arrival, latency = (rows[key].to_numpy(dtype=np.float64) * 1e-6 for key in ("arrival_us", "e2e_us"))
    ok = np.isfinite(observed.e2e)
    duration = float(np.max(arrival + latency) - arrival.min())
    metrics = request_metrics(observed.ttft, observed.e2e, output)
    metrics["output_token_throughput"] = float(output[ok].sum()) / duration
    metrics["request_throughput"] = float(ok.sum()) / duration
    return metrics
