"""From a finished run to its tables: one row a request (requests.parquet) and the summary (summary.json).

Pure functions of the run, the workload and the configuration. Semantics: contract.md, "Parts" and "Metrics". Everything
here is exact or has a fixed order, so that equal runs give equal bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.deliveries import pooled_gaps
from sim.errors import InputError
from sim.isolation import is_isolated, isolation_price
from sim.measured import PARTS, Measured, measure
from sim.memory_shares import cache_details, concurrency, memory_shares
from sim.network_metrics import network_metrics
from sim.quantiles import describe, describe_weighted, exact_sum, jain_index
from sim.result import Status
from sim.slo import meets, owned_by, read_slo, verdicts
from sim.stability import Stability, judge
from sim.transfer_metrics import transfer_metrics
from sim.warmup import found_warmup, is_auto

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd

    from sim.measured import BoolArray, Columns
    from sim.result import ReplicaResult, RunResult
    from sim.units import IntArray
    from sim.workload.base import Workload

LATENCIES = ("ttft", "tpot", "e2e", "queueing_delay")
# Groups (classes, tenants) listed one by one in the summary; a workload with more has the largest ones listed.
MAX_GROUPS = 100
_MANY_PREEMPTIONS = 0.05  # preemptions a request
_SHORT_RUN = 3.0  # arrivals shorter than this many mean latencies never reach a steady state


def requests_frame(
    result: RunResult, workload: Workload, config: object, measured: Measured | None = None
) -> pd.DataFrame:
    """The table of requests.parquet, one row a request in workload order, columns as in contract.md.

    Times in seconds from the start, server side; ttft (wherever a first token came) and e2e (finished requests) as the
    client sees them. The PARTS of a request that ended add up exactly to its time from arrival to end plus
    client_latency; transfer_duration lies after the first token, or before it where the decode side emits that. Pass
    `measured` to share the work with `summarize`.
    """
    import pandas as pd

    return pd.DataFrame((measured or measure(result, workload, config)).columns)


def summarize(
    result: RunResult, workload: Workload, config: object, measured: Measured | None = None
) -> dict[str, Any]:
    """summary.json: JSON-able, no NaN (null, with a line in `warnings` that says why)."""
    measured = measured or measure(result, workload, config)
    warnings = list(dict.fromkeys([*workload.warnings, *result.warnings]))
    summary = _counts(measured)
    summary |= _latencies(result, measured, warnings)
    summary |= _throughputs(result, summary, measured, config, warnings)
    summary |= _work(result, measured)
    summary["kv_cache"] = _kv_cache(result, warnings)
    summary["prefix_cache"] = _prefix_cache(result, workload, measured, warnings)
    if is_isolated(config):
        summary["prefix_cache"]["isolation"] = isolation_price(workload)
    summary |= _speculation(result)
    if "predicted_output_tokens" in measured.columns:
        summary["length_prediction"] = _length_prediction(measured)
    summary |= transfer_metrics(result, measured)
    summary |= network_metrics(result)
    summary["replicas"] = [_replica(replica, result.end_time) for replica in result.replicas]
    summary["cost"] = _cost(result, config, warnings)
    summary |= _groups(measured, config, warnings)
    summary |= _stability(result, measured)
    if is_auto(config):
        summary["warmup"] = _warmup(measured, warnings)
    summary["warnings"] = warnings + _run_warnings(summary, measured, config)
    summary["versions"] = versions()
    return summary


# --- the summary ------------------------------------------------------------------------------------------------------


def _counts(measured: Measured) -> dict[str, Any]:
    columns, status = measured.columns, measured.columns["status"][measured.offered]
    summary: dict[str, Any] = {"num_requests": len(status)}
    for name in ("finished", "rejected", "cancelled", "timed_out", "failed", "unservable", "unfinished"):
        summary[f"num_{name}"] = int((status == name).sum())
    for name in ("num_prompt_tokens", "num_output_tokens"):
        summary[name] = int(columns[name][measured.finished].sum())
    return summary


def _latencies(result: RunResult, measured: Measured, warnings: list[str]) -> dict[str, Any]:
    summary: dict[str, Any] = {"duration": _duration(measured)}
    summary |= _latency_block(measured.columns, measured.finished)
    mean_itl = measured.gaps.mean_itl[measured.finished]
    summary["itl"] = describe_weighted(*pooled_gaps(measured.gaps, result.spans, measured.finished))
    summary["itl_request_mean"] = describe(mean_itl[~np.isnan(mean_itl)])
    missing = [name for name in (*LATENCIES, "itl", "itl_request_mean") if summary[name]["mean"] is None]
    if missing:
        why = "has two output tokens" if measured.finished.any() else "was counted"
        warnings.append(f"{_listed(missing)} null: no finished request {why}")
    return summary


def _latency_block(columns: Columns, finished: BoolArray) -> dict[str, Any]:
    values = {name: columns[name][finished] for name in LATENCIES}
    return {name: describe(column[~np.isnan(column)]) for name, column in values.items()}


def _duration(measured: Measured) -> float | None:
    """First counted arrival to last counted end, seconds."""
    arrivals = measured.columns["arrival_time"][measured.offered]
    ends = measured.columns["finish_time"][measured.offered]
    ends = ends[~np.isnan(ends)]
    return float(ends.max() - arrivals.min()) if len(ends) else None


def _throughputs(
    result: RunResult, summary: Mapping[str, Any], measured: Measured, config: object, warnings: list[str]
) -> dict[str, Any]:
    duration = summary["duration"]
    totals = {
        "request_throughput": summary["num_finished"],
        "output_token_throughput": summary["num_output_tokens"],
        "total_token_throughput": summary["num_prompt_tokens"] + summary["num_output_tokens"],
    }
    rates: dict[str, Any] = {name: total / duration if duration else None for name, total in totals.items()}
    if not duration:
        warnings.append("throughputs are null: the counted requests take no time")
    return rates | _attainment(result, measured, duration, config, warnings)


def _attainment(
    result: RunResult, measured: Measured, duration: float | None, config: object, warnings: list[str]
) -> dict[str, Any]:
    objectives = read_slo(getattr(config, "slo", None))
    if not objectives:
        warnings.append("goodput and slo_attainment are null: the experiment states no slo")
        return {"goodput": None, "slo_attainment": None, "slo": None}
    good = int(meets(objectives, measured.columns, measured.finished).sum())
    offered = int(measured.offered.sum())
    rows = verdicts(objectives, measured, lambda mask: pooled_gaps(measured.gaps, result.spans, mask))
    judged = [row["met"] for row in rows if row["met"] is not None]
    return {
        "goodput": good / duration if duration else None,
        "slo_attainment": good / offered if offered else None,
        "slo": {"met": all(judged) if judged else None, "objectives": rows},
    }


def _work(result: RunResult, measured: Measured) -> dict[str, Any]:
    columns, offered = measured.columns, measured.offered
    return {
        "num_preemptions": int(columns["num_preemptions"][offered].sum()),
        "num_recomputed_tokens": int(columns["num_recomputed_tokens"][offered].sum()),
        "num_steps": sum(replica.num_steps for replica in result.replicas),
    }


def _kv_cache(result: RunResult, warnings: list[str]) -> dict[str, Any]:
    """Usage is time-weighted over usable blocks and replicas; the shares are those of `sim.memory_shares`."""
    replicas = result.replicas
    sizes = {replica.block_size for replica in replicas}
    usable = sum(_usable(replica) for replica in replicas) * result.end_time
    used = sum(replica.used_block_seconds for replica in replicas)
    shares = memory_shares(replicas)
    if shares["token_share"] is None:
        warnings.append("kv_cache shares are null: no block was in use")
    if len(sizes) > 1:
        warnings.append(f"kv_cache.block_size is null: the replicas differ ({', '.join(map(str, sorted(sizes)))})")
    return {
        "num_blocks": sum(replica.num_blocks for replica in replicas),
        "block_size": sizes.pop() if len(sizes) == 1 else None,
        "mean_usage": used / usable if usable > 0 else None,
        "peak_usage": max((r.peak_used_blocks / _usable(r) for r in replicas if _usable(r) > 0), default=None),
        **shares,
        **concurrency(replicas, result.end_time),
    }


def _prefix_cache(result: RunResult, workload: Workload, measured: Measured, warnings: list[str]) -> dict[str, Any]:
    """Hits at the first admission of the requests after warm-up; evictions are those of the whole run."""
    names = ("num_lookup_tokens", "num_hit_tokens", "hit_rate", "saved_prefill_seconds", "num_evicted_blocks")
    if not any(replica.prefix_caching for replica in result.replicas):
        warnings.append("prefix_cache metrics are null: prefix caching is off")
        return {"enabled": False} | dict.fromkeys(names)
    if workload.hash_ids is None:
        warnings.append("prefix_cache metrics are null: the workload has no prefix ids, every prompt is unique")
        return {"enabled": True} | dict.fromkeys(names)
    looked = _looked_up(result, measured)
    lookups = int(measured.columns["num_prompt_tokens"][looked].sum())
    hits = int(measured.columns["num_cached_tokens"][looked].sum())
    evicted = sum(replica.num_evicted_blocks for replica in result.replicas)
    if lookups == 0:
        warnings.append("prefix_cache.hit_rate is null: no prompt was looked up")
    rate = hits / lookups if lookups else None
    saved = _saved(result, looked, warnings)
    found = {"enabled": True} | dict(zip(names, (lookups, hits, rate, saved, evicted), strict=True))
    return found | cache_details(result, measured, looked)


def _speculation(result: RunResult) -> dict[str, Any]:
    """Drafts of the whole run: acceptance rate = accepted / drafted, length = 1 + accepted a step (as vLLM reports)."""
    totals = [replica.speculation for replica in result.replicas if replica.speculation is not None]
    if not totals:
        return {}
    steps, drafted = sum(t.num_drafts for t in totals), sum(t.num_draft_tokens for t in totals)
    accepted = sum(t.num_accepted_tokens for t in totals)
    block = {"num_drafts": steps, "num_draft_tokens": drafted, "num_accepted_tokens": accepted}
    rates = {"acceptance_rate": accepted / drafted, "acceptance_length": 1 + accepted / steps} if steps else {}
    return {"speculation": block | {"acceptance_rate": None, "acceptance_length": None} | rates}


def _length_prediction(measured: Measured) -> dict[str, Any]:
    """Predicted minus true output tokens of the finished requests that had a prediction."""
    rows = measured.finished & ~np.isnan(measured.columns["predicted_output_tokens"])
    true = measured.columns["num_output_tokens"][rows]
    error = measured.columns["predicted_output_tokens"][rows] - true
    count = len(error)
    return {
        "num_predicted": count,
        "mean_error": exact_sum(error) / count if count else None,
        "mean_absolute_error": exact_sum(np.abs(error)) / count if count else None,
        "median_relative_error": float(np.median(np.abs(error) / np.maximum(true, 1))) if count else None,
        "share_too_short": float(np.count_nonzero(error < 0) / count) if count else None,
    }


def _looked_up(result: RunResult, measured: Measured) -> BoolArray:
    """Counted requests whose prompt was looked up: first scheduled on a replica with a prefix cache."""
    caching = np.array([replica.prefix_caching for replica in result.replicas], dtype=bool)
    replica = measured.columns["prefill_replica"]
    cached: BoolArray = (replica >= 0) & caching[np.maximum(replica, 0)]
    return measured.offered & cached


def _saved(result: RunResult, looked: BoolArray, warnings: list[str]) -> float | None:
    seconds = result.requests.get("saved_prefill_seconds")
    known = np.empty(0) if seconds is None else seconds[looked & ~np.isnan(seconds)]
    if len(known) == 0:
        warnings.append("prefix_cache.saved_prefill_seconds is null: the cost model gave no prefill times to compare")
        return None
    return exact_sum(known)


def _replica(replica: ReplicaResult, end_time: float) -> dict[str, Any]:
    usable = _usable(replica) * end_time
    return {
        "name": replica.name,
        "pool": replica.pool,
        "busy_time": float(replica.busy_time),
        "utilization": float(replica.busy_time / end_time) if end_time > 0 else None,
        "num_steps": int(replica.num_steps),
        "num_tokens": int(replica.num_tokens),
        "num_preemptions": int(replica.num_preemptions),
        "mean_kv_usage": float(replica.used_block_seconds / usable) if usable > 0 else None,
        "peak_kv_usage": float(replica.peak_used_blocks / _usable(replica)) if _usable(replica) > 0 else None,
        "gpu": replica.gpu,
        "num_gpus": int(replica.num_gpus),
    }


def _usable(replica: ReplicaResult) -> int:
    """Blocks that can hold tokens: without the reserved null block."""
    return max(int(replica.num_blocks) - 1, 0)


def _cost(result: RunResult, config: object, warnings: list[str]) -> dict[str, Any]:
    """GPU hours of all replicas over the whole run; USD by the configuration's prices or the profiles' median quote."""
    hours = [replica.num_gpus * result.end_time / 3600 for replica in result.replicas]
    prices = getattr(config, "prices", None) or {}
    rates = [_hourly_price(replica.gpu, prices) for replica in result.replicas]
    unpriced = sorted({r.gpu for r, rate in zip(result.replicas, rates, strict=True) if rate is None})
    if unpriced:
        warnings.append(f"cost.price is null: no price is known for {', '.join(unpriced)}")
    energy = _energy(result, config, warnings)
    return {
        "gpu_hours": sum(hours),
        "price": None if unpriced else sum(h * (rate or 0.0) for h, rate in zip(hours, rates, strict=True)),
        "energy_kwh": energy,
        "carbon_kg": _carbon(energy, config, warnings),
    }


def _energy(result: RunResult, config: object, warnings: list[str]) -> float | None:
    """kWh of all GPUs over the whole run; None with a warning where a GPU's power is unknown."""
    from sim.energy import replica_kwh

    pools = {pool.name: pool for pool in getattr(getattr(config, "cluster", None), "pools", ())}
    known = [replica for replica in result.replicas if replica.pool in pools]
    energies = [replica_kwh(replica, pools[replica.pool], float(result.end_time)) for replica in known]
    if len(known) < len(result.replicas) or None in energies:
        warnings.append("cost.energy_kwh is null: the power of a GPU or its pool's model is unknown")
        return None
    return exact_sum(np.array(energies, dtype=np.float64))


def _carbon(energy: float | None, config: object, warnings: list[str]) -> float | None:
    """kg of CO2 by the grid's intensity; None with a warning where that or the energy is unknown."""
    intensity = getattr(getattr(config, "cost", None), "carbon_intensity", None)
    if energy is None or intensity is None:
        warnings.append("cost.carbon_kg is null: needs cost.carbon_intensity (kg a kWh) and the energy")
        return None
    return float(energy * intensity)


def _hourly_price(gpu: str, prices: Mapping[str, float]) -> float | None:
    """USD per GPU hour: as configured, otherwise the profile's median quote; None when nobody knows."""
    if gpu in prices:
        return float(prices[gpu])
    from sim.hardware import load_gpu

    try:
        price = load_gpu(gpu).get("price_median")
    except InputError:
        return None
    return None if price is None else float(price)


# --- classes, tenants, verdicts ---------------------------------------------------------------------------------------


def _groups(measured: Measured, config: object, warnings: list[str]) -> dict[str, Any]:
    """`request_classes` and `tenants` (with `fairness`), each only when the workload has them."""
    summary: dict[str, Any] = {}
    objectives = read_slo(getattr(config, "slo", None))
    good = meets(objectives, measured.columns, measured.finished) if objectives else None
    for key, column in (("request_classes", "request_class"), ("tenants", "tenant")):
        given = [label is not None for label in measured.columns[column]]
        named = measured.offered & np.array(given, dtype=bool)
        if named.any():
            names, members = _members(measured.columns[column], named)
            largest = _largest(names, members, key, warnings)
            summary[key] = {str(names[i]): _group(measured, good, members[i]) for i in largest}
            if column == "tenant":
                summary["fairness"] = _fairness(measured, members)
    return summary


def _members(labels: npt.NDArray[np.object_], named: BoolArray) -> tuple[npt.NDArray[Any], list[IntArray]]:
    """Sorted names and the row numbers of each, in workload order."""
    rows = np.flatnonzero(named)
    names, code = np.unique(labels[rows].astype(str), return_inverse=True)
    order = np.argsort(code, kind="stable")
    return names, np.split(rows[order], np.cumsum(np.bincount(code))[:-1])


def _largest(names: npt.NDArray[Any], members: list[IntArray], key: str, warnings: list[str]) -> list[int]:
    if len(names) <= MAX_GROUPS:
        return list(range(len(names)))
    warnings.append(f"{key} lists the {MAX_GROUPS} of {len(names)} with the most requests")
    return sorted(sorted(range(len(names)), key=lambda i: (-len(members[i]), i))[:MAX_GROUPS])


def _group(measured: Measured, good: BoolArray | None, rows: IntArray) -> dict[str, Any]:
    columns, finished = measured.columns, rows[measured.finished[rows]]
    return {
        "num_requests": len(rows),
        "num_finished": len(finished),
        "num_prompt_tokens": int(columns["num_prompt_tokens"][finished].sum()),
        "num_output_tokens": int(columns["num_output_tokens"][finished].sum()),
        "slo_attainment": None if good is None else int(good[rows].sum()) / len(rows),
        **{name: describe(values[~np.isnan(values)]) for name in LATENCIES for values in (columns[name][finished],)},
    }


def _fairness(measured: Measured, members: Sequence[IntArray]) -> dict[str, float | None]:
    """Jain's index over tenants: of tokens served (prompt and output), and of mean latency per output token."""
    columns = measured.columns
    served, slowness = [], []
    for rows in members:
        done = rows[measured.finished[rows]]
        output = columns["num_output_tokens"][done]
        served.append(float(columns["num_prompt_tokens"][done].sum() + output.sum()))
        if len(done):
            slowness.append(exact_sum(columns["e2e"][done] / np.maximum(output, 1)) / len(done))
    return {
        "jain_index_tokens": jain_index(np.array(served)),
        "jain_index_latency_per_token": jain_index(np.array(slowness)),
    }


def _stability(result: RunResult, measured: Measured) -> dict[str, Any]:
    """`stability` (stable, backlogged, overloaded) and the reasons and figures behind it."""
    found = _judge(result, measured)
    return {
        "stability": found.verdict,
        "stability_details": {
            "reasons": found.reasons,
            "queue_by_quarter": found.queue_by_quarter,
            "waiting_at_last_arrival": found.waiting_at_last_arrival,
            "queue_growth_per_second": found.queue_growth_per_second,
            "drain_duration": found.drain_duration,
        },
    }


def _warmup(measured: Measured, warnings: list[str]) -> dict[str, Any]:
    """What `metrics.warmup: auto` left out, and whether ttft and tpot settled."""
    columns = measured.columns
    number, settled = found_warmup(columns["arrival_time"], columns)
    if not settled:
        warnings.append(
            "warm-up: ttft or tpot does not settle within the first half of the run, so its cut is left out"
        )
    return {"method": "MSER-5", "num_requests": number, "settled": settled}


def _judge(result: RunResult, measured: Measured) -> Stability:
    raw, offered = result.requests, measured.offered
    left = np.fmin(raw["first_scheduled_time"][offered], raw["finish_time"][offered])
    status = raw["status"][offered]
    lost = [int((status == kind).sum()) for kind in (Status.REJECTED, Status.TIMED_OUT)]
    return judge(raw["arrival_time"][offered], np.where(np.isnan(left), np.inf, left), *lost)


def _run_warnings(summary: Mapping[str, Any], measured: Measured, config: object) -> list[str]:
    """What the reader of the numbers has to know about the run as a whole."""
    warnings = [*_warmup_warnings(summary, measured), *_negative_parts(measured)]
    if summary["stability"] != "stable":
        reasons = "; ".join(summary["stability_details"]["reasons"])
        warnings.append(f"{summary['stability']}: {reasons}; the latencies describe no steady state")
    many = summary["num_preemptions"] > _MANY_PREEMPTIONS * max(summary["num_requests"], 1)
    if many:
        warnings.append(
            f"{summary['num_preemptions']:,} preemptions in {summary['num_requests']:,} requests: KV memory is short "
            f"({summary['num_recomputed_tokens']:,} tokens were computed again)"
        )
    if summary["num_unservable"]:
        warnings.append(f"{summary['num_unservable']} requests can never be served: longer than the model or the cache")
    if measured.offered.any():
        warnings += _unmatched_classes(measured, config)
    return warnings


def _warmup_warnings(summary: Mapping[str, Any], measured: Measured) -> list[str]:
    arrival = measured.columns["arrival_time"]
    arrived = int((~np.isnan(arrival)).sum())
    warnings = []
    if summary["num_requests"] * 2 < arrived:
        warnings.append(f"warm-up leaves only {summary['num_requests']} of {arrived} requests in the statistics")
    latency, counted = summary["e2e"]["mean"], arrival[measured.offered]
    if latency and len(counted) > 1 and (span := float(counted.max() - counted.min())) < _SHORT_RUN * latency:
        warnings.append(
            f"a short run: requests arrive over {span:.3g} s and take {latency:.3g} s on average, "
            "so most of it is filling up and draining"
        )
    return warnings


def _negative_parts(measured: Measured) -> list[str]:
    """A part below zero means that the engine recorded times that contradict each other."""
    warnings = []
    for name in PARTS:
        wrong = np.flatnonzero(measured.columns[name] < 0)
        if len(wrong):
            warnings.append(f"{name} is negative for {len(wrong)} requests (first: row {wrong[0]}): an engine error")
    return warnings


def _unmatched_classes(measured: Measured, config: object) -> list[str]:
    objectives = read_slo(getattr(config, "slo", None))
    masks = owned_by(objectives, measured.columns["request_class"])
    empty = [
        str(o.request_class) for o, mask in zip(objectives, masks, strict=True) if o.request_class and not mask.any()
    ]
    return [f"slo names request classes that no request has: {', '.join(empty)}"] if empty else []


def _listed(names: Sequence[str]) -> str:
    return f"{names[0]} is" if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]} are"


@cache
def versions() -> dict[str, str]:
    """Version of servesim and a short digest of the hardware profiles it was run with."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        servesim = version("servesim")
    except PackageNotFoundError:  # a checkout that was not installed
        servesim = "unknown"
    return {"servesim": servesim, "profiles": _profiles_digest()}


def _profiles_digest() -> str:
    """First 12 hex digits of the SHA-256 over the names and bytes of all profile files, in order of name."""
    import hashlib
    from pathlib import Path

    import hardware_profiles

    digest = hashlib.sha256()
    for folder in sorted(hardware_profiles.__path__):
        for path in sorted(Path(folder).rglob("*.yaml")):
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]
