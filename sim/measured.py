"""One row a request: the columns of requests.parquet as arrays, before any statistic is taken.

Semantics: contract.md, "Parts". Times lie on the time grid, so the parts of a latency add up to it exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.deliveries import Gaps, request_gaps
from sim.result import Status
from sim.units import array_to_grid
from sim.warmup import warmup_mask

if TYPE_CHECKING:
    import numpy.typing as npt

    from sim.result import RunResult
    from sim.units import FloatArray
    from sim.workload.base import Workload

    BoolArray = npt.NDArray[np.bool_]
    Columns = dict[str, npt.NDArray[Any]]

PARTS = (
    "admission_delay",
    "waiting_duration",
    "prefill_duration",
    "transfer_duration",
    "decode_duration",
    "preempted_duration",
    "client_latency",
)


@dataclass(frozen=True)
class Measured:
    """The columns of requests.parquet as arrays, the gaps between deliveries, and who counts.

    `offered`: arrived, after warm-up. `finished`: those of them that finished.
    """

    columns: Columns
    gaps: Gaps
    offered: BoolArray
    finished: BoolArray


def measure(result: RunResult, workload: Workload, config: object) -> Measured:
    """Compute the columns of requests.parquet (NumPy arrays in contract order) and the gaps between deliveries."""
    raw = result.requests
    gaps = request_gaps(raw["first_token_time"], result.spans)
    columns: Columns = _identity(workload, config) | _course(raw, workload) | _as_seen(raw, config)
    columns["max_itl"] = gaps.max_itl
    columns["queueing_delay"] = raw["first_scheduled_time"] - raw["arrival_time"]
    columns |= _parts(raw, config)
    if "predicted_output_tokens" in raw:
        columns["predicted_output_tokens"] = raw["predicted_output_tokens"]
    offered = ~np.isnan(raw["arrival_time"]) & ~warmup_mask(raw["arrival_time"], config, columns)
    return Measured(columns, gaps, offered, offered & (raw["status"] == Status.FINISHED))


def _identity(workload: Workload, config: object) -> Columns:
    size = len(workload)
    request_id = np.arange(size) if workload.request_id is None else _plain(workload.request_id)
    return {
        "request_id": request_id,
        "session_id": _plain(workload.session_id, size),
        "tenant": _objects(workload.tenant, size),
        "request_class": _objects(workload.request_class, size),
        "priority": np.zeros(size, dtype=np.int64) if workload.priority is None else np.asarray(workload.priority),
        "adapter": _objects(workload.adapter, size),
        "model": _objects(workload.model, size, _only_model(config)),
    }


def _course(raw: Mapping[str, npt.NDArray[Any]], workload: Workload) -> Columns:
    names = np.array([status.name.lower() for status in Status], dtype=object)
    times = ("arrival_time", "admission_time", "first_scheduled_time", "first_token_time", "finish_time")
    counts = ("num_cached_tokens", "num_preemptions", "num_recomputed_tokens", "prefill_replica", "decode_replica")
    return {
        "status": names[raw["status"]],
        "reject_reason": raw["reject_reason"],
        **{name: raw[name] for name in times},
        "num_prompt_tokens": workload.num_prompt_tokens,
        "num_output_tokens": raw["num_output_tokens"],
        "max_output_tokens": workload.max_output_tokens,
        **{name: raw[name] for name in counts},
    }


def _as_seen(raw: Mapping[str, npt.NDArray[Any]], config: object) -> Columns:
    """ttft, tpot and e2e as the client sees them; nan where they do not exist."""
    latency = _client_latency(raw, config)
    finished = raw["status"] == Status.FINISHED
    several = finished & (raw["num_output_tokens"] > 1)
    gaps = np.where(several, raw["num_output_tokens"] - 1, 1)
    return {
        "ttft": raw["first_token_time"] - raw["arrival_time"] + latency,
        "tpot": np.where(several, (raw["finish_time"] - raw["first_token_time"]) / gaps, np.nan),
        "e2e": np.where(finished, raw["finish_time"] - raw["arrival_time"] + latency, np.nan),
    }


def _parts(raw: Mapping[str, npt.NDArray[Any]], config: object) -> Columns:
    """Every instant from arrival to end has one label; what did not happen ends with the request and lasts 0."""
    end = raw["finish_time"]
    admitted = _or_end(raw["admission_time"], end)
    scheduled = _or_end(raw["first_scheduled_time"], end)
    first_token = _or_end(raw["first_token_time"], end)
    preempted, transfer = np.nan_to_num(raw["preempted_duration"]), np.nan_to_num(raw["transfer_duration"])
    transfer_before = raw.get("transfer_before_first_token", 0.0)  # there where requests can be split
    came = ~np.isnan(raw["first_token_time"])
    before = np.where(came, np.nan_to_num(raw["preempted_before_first_token"]), preempted)
    return {
        "admission_delay": admitted - raw["arrival_time"],
        "waiting_duration": scheduled - admitted,
        "prefill_duration": first_token - scheduled - before - transfer_before,
        "transfer_duration": transfer,
        "decode_duration": end - first_token - (transfer - transfer_before) - (preempted - before),
        "preempted_duration": preempted,
        "client_latency": _client_latency(raw, config),
        "interference_duration": np.nan_to_num(raw["interference_duration"]),
    }


def _client_latency(raw: Mapping[str, npt.NDArray[Any]], config: object) -> FloatArray:
    """Seconds between server and client, on the time grid; 0 for requests without a first token."""
    client = getattr(config, "client", None)
    base = getattr(client, "base_latency", None) or 0.0
    each = getattr(client, "latency_per_running_sequence", None) or 0.0
    came = ~np.isnan(raw["first_token_time"])
    running = np.where(came, raw["num_running_at_first_token"], 0)
    return np.where(came, array_to_grid(base + each * running.astype(np.float64)), 0.0)


def _or_end(time: FloatArray, end: FloatArray) -> FloatArray:
    return np.where(np.isnan(time), end, time)


def _objects(values: Sequence[Any] | None, size: int, default: str | None = None) -> npt.NDArray[np.object_]:
    column = np.full(size, default, dtype=object)
    if values is not None:
        column[:] = values
    return column


def _plain(values: Sequence[Any] | None, size: int = 0) -> npt.NDArray[Any]:
    """Ids as integers when all are, otherwise as strings (None stays None): one type a column."""
    if values is None:
        return np.full(size, None, dtype=object)
    if all(isinstance(value, (int, np.integer)) for value in values):
        return np.array(values, dtype=np.int64)
    return _objects([None if value is None else str(value) for value in values], len(values))


def _only_model(config: object) -> str | None:
    """The model of all pools, None when they differ or the configuration names none."""
    pools = getattr(getattr(config, "cluster", None), "pools", None) or []
    models = {str(getattr(pool, "model", None)) for pool in pools if getattr(pool, "model", None) is not None}
    return models.pop() if len(models) == 1 else None
