"""KV transfers and pools in the summary, where requests can be split."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sim.quantiles import describe, exact_sum

if TYPE_CHECKING:
    from sim.measured import Measured
    from sim.result import ReplicaResult, RunResult


def transfer_metrics(result: RunResult, measured: Measured) -> dict[str, Any]:
    """`kv_transfer` (null if no request was split) and `pools`; nothing where no request can be split."""
    if result.transfers is None or result.pool_roles is None:
        return {}
    split = bool(len(result.transfers["row"]))
    return {
        "kv_transfer": _kv_transfer(result.transfers, measured) if split else None,
        "pools": [_pool(name, role, result) for name, role in result.pool_roles.items()],
    }


def _kv_transfer(transfers: dict[str, np.ndarray], measured: Measured) -> dict[str, Any]:
    """Over the split requests after warm-up. `duration`: first byte sent to last byte arrived, seconds.

    `share_of_e2e`: the parts transfer_duration of finished ones (which hold the wait for blocks too) over their e2e.
    """
    counted = measured.offered[transfers["row"]]
    columns = {name: column[counted] for name, column in transfers.items()}
    finished = columns["row"][measured.finished[columns["row"]]]
    moved = columns["duration"][~np.isnan(columns["duration"])]
    e2e = exact_sum(measured.columns["e2e"][finished])
    waited = exact_sum(measured.columns["transfer_duration"][finished])
    duration = describe(moved)
    return {
        "num_transfers": len(moved),
        "num_bytes": int(columns["num_bytes"].sum()),
        "duration": {name: duration[name] for name in ("mean", "p50", "p99", "max")},
        "num_failed": int(columns["num_failed"].sum()),
        "share_of_e2e": waited / e2e if e2e else None,
    }


def _pool(name: str, role: str, result: RunResult) -> dict[str, Any]:
    replicas = [replica for replica in result.replicas if replica.pool == name]
    busy = sum(replica.busy_time for replica in replicas)
    usable = sum(_usable(replica) for replica in replicas) * result.end_time
    seconds = len(replicas) * result.end_time
    return {
        "name": name,
        "role": role,
        "num_replicas": len(replicas),
        "num_gpus": sum(replica.num_gpus for replica in replicas),
        "utilization": busy / seconds if seconds else None,
        "mean_kv_usage": sum(replica.used_block_seconds for replica in replicas) / usable if usable else None,
        "peak_kv_usage": max((replica.peak_used_blocks / _usable(replica) for replica in replicas), default=None),
        "num_tokens": sum(replica.num_tokens for replica in replicas),
        "num_preemptions": sum(replica.num_preemptions for replica in replicas),
    }


def _usable(replica: ReplicaResult) -> int:
    """Blocks that can hold tokens: without the reserved null block, of which every memory has at least one more."""
    return int(replica.num_blocks) - 1
