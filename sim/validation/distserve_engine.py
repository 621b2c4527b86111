"""DistServe's own engine (82831f1): prefill and decode on separate A100, with the step times that its authors fitted.

Their coefficients: a prompt step takes a + b * tokens + c * sum of squared lengths, a decode step a + b * context
tokens + c * sequences, with other coefficients from a batch size on. The tables of the cost model say the same, since a
squared length is twice the query-key pairs less the length. KV capacities are theirs, server settings those of their
benchmark scripts; the decode loop stands still during a pull. Two constants are ours, chosen on a small grid over the
runs of this set: what the engine adds to every step, and the bytes per second of a pull (without them times per token
are 20 % too low). A step passes all pipeline stages before the next one; pipelined prompts are left out.
"""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.errors import InputError
from sim.validation.tables import read_table

if TYPE_CHECKING:
    import pandas as pd

MODEL, CHECKPOINT, GPU = "opt-13b", "facebook/opt-13b", "A100-80GB"
BLOCK_SIZE = 16
MAX_MODEL_LEN = 2048
WAITING_SHARE = 0.05  # of the decode side's tokens: from there on no more prompts are pulled
PULL_BANDWIDTH = 35e9  # bytes per second: 18 ms for a mean prompt
STEP_OVERHEAD = 2e-3  # seconds; the coefficients were fitted on forward passes without the engine
MOST_TOKENS, MOST_SEQUENCES = 8192, 1024  # of a prompt step, of a decode step
_PLACEMENT = re.compile(r"c(\d)(\d)d(\d)(\d)")  # context and decoding: tensor parallel, pipeline parallel


@dataclass(frozen=True)
class Placement:
    """GPUs of the two stages: tensor parallel and pipeline parallel of prefill, then of decode."""

    prefill: tuple[int, int]
    decode: tuple[int, int]

    @property
    def num_gpus(self) -> int:
        return self.prefill[0] * self.prefill[1] + self.decode[0] * self.decode[1]


def placement_of(name: str) -> Placement | None:
    """The placement that a run states (such as c21d11), or None."""
    found = _PLACEMENT.fullmatch(name)
    if found is None:
        return None
    a, b, c, d = map(int, found.groups())
    return Placement((a, b), (c, d))


def cluster(folder: Path, placement: Placement, replicas: int = 1) -> dict[str, Any]:
    """The `cluster` section of a placement; `folder` holds the authors' coefficients and capacities.

    `InputError` for prompts in a pipeline and for parallelism without coefficients.
    """
    if placement.prefill[1] > 1:
        raise InputError("pipelined prompts are not modelled")
    prefill = _pool(folder, "prefill", placement.prefill, replicas)
    decode = _pool(folder, "decode", placement.decode, replicas)
    waiting = int(WAITING_SHARE * BLOCK_SIZE * decode["kv_cache"]["num_blocks"])
    return {
        "pools": [prefill, decode],
        "network": {"bandwidth": PULL_BANDWIDTH},
        "disaggregation": {
            "policy": "always_split",
            "kv_transfer": {"max_inflight_tokens": waiting, "blocking": True},
        },
    }


def _pool(folder: Path, role: str, parallel: tuple[int, int], replicas: int) -> dict[str, Any]:
    tensor, stages = parallel
    prompts = role == "prefill"
    return {
        "name": role,
        "role": role,
        "replicas": replicas,
        "model": MODEL,
        "gpu": GPU,
        "tensor_parallel": tensor,
        "pipeline_parallel": stages,
        "max_model_len": MAX_MODEL_LEN,
        "engine": "distserve",
        "scheduler": {
            "max_num_seqs": 128 if prompts else MOST_SEQUENCES,
            "max_num_batched_tokens": MOST_TOKENS if prompts else 65536,
        },
        "kv_cache": {"num_blocks": 1 + _capacity(folder, parallel) // BLOCK_SIZE},
        "preemption": {"mode": "recompute" if prompts else "swap", "swap_space": 16},
        "cost_model": cost_section(folder, tensor),
    }


def _capacity(folder: Path, parallel: tuple[int, int]) -> int:
    """Tokens of KV on all GPUs of a stage."""
    rows = read_table(folder / "max_num_tokens.csv", ("model", "tp", "pp", "max_num_tokens"))
    own = rows[(rows["model"] == CHECKPOINT) & (rows["tp"] == parallel[0]) & (rows["pp"] == parallel[1])]
    if own.empty:
        raise InputError(f"{folder / 'max_num_tokens.csv'}: has no {CHECKPOINT} on {parallel[0]} x {parallel[1]} GPUs")
    return int(own["max_num_tokens"].iloc[0])


@cache
def cost_section(folder: Path, tensor_parallel: int) -> dict[str, Any]:
    """The `cost_model` section of one degree of tensor parallelism; its table lies in a temporary folder."""
    file = folder / "a100_profile_coefficients.csv"
    rows = read_table(file, ("backend", "model", "tp", "phase", "a", "b", "c", "large_small_bs_threshold"))
    own = rows[(rows["backend"] == "distserve") & (rows["model"] == CHECKPOINT) & (rows["tp"] == tensor_parallel)]
    if own.empty:
        raise InputError(f"{file}: has no coefficients of {CHECKPOINT} on {tensor_parallel} GPUs")
    table = _tables_of(folder) / f"{CHECKPOINT.split('/')[1]}-tp{tensor_parallel}.csv"
    table.write_text(_table(own), encoding="utf-8")
    squared = float(own.loc[own["phase"] == "prefill", "c"].iloc[0])
    return {"kind": "tabulated", "table": str(table), "per_prefill_pair": 2e-3 * squared}


def _table(rows: pd.DataFrame) -> str:
    """The table of a cost model; coefficients are in milliseconds."""
    lines = ["phase,num_tokens,seconds,per_context_token"]
    threshold = int(rows["large_small_bs_threshold"].iloc[0])
    ends = {"decoding_smallbs": (1, threshold - 1), "decoding_largebs": (threshold, MOST_SEQUENCES)}
    for _, row in rows.iterrows():
        a, b, c = (1e-3 * float(row[key]) for key in ("a", "b", "c"))
        a += STEP_OVERHEAD
        if row["phase"] == "prefill":
            lines += [f"prefill,{n},{a + (b - c) * n!r}," for n in (1, MOST_TOKENS)]
        else:
            lines += [f"decode,{n},{a + c * n!r},{b!r}" for n in ends[str(row["phase"])]]
    return "\n".join(lines) + "\n"


@cache
def _tables_of(folder: Path) -> Path:
    """A temporary folder for the tables of one data folder."""
    path = Path(tempfile.mkdtemp(prefix="servesim-tables-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path
