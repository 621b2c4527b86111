"""The words and numbers of a report's page: what was run, the answer, the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.measured import PARTS
from sim.report.latency_charts import PART_NAMES
from sim.report.text import count, digits, percent, rate, seconds

if TYPE_CHECKING:
    from sim.report.data import RunData

_ROWS = (
    ("ttft", "Time to first token", "TTFT"),
    ("tpot", "Time per output token", "TPOT"),
    ("itl", "Gap between tokens", "ITL"),
    ("itl_request_mean", "Mean gap of a request", "ITL mean"),
    ("e2e", "End to end", "E2E"),
    ("queueing_delay", "Waiting for the first batch", "queueing"),
)
_STATISTICS = ("mean", "std", "min", "p50", "p90", "p95", "p99", "max")
_SLOWEST = 10
_LOSSES = ("rejected", "cancelled", "timed_out", "failed", "unservable", "unfinished")
_MARKS = {"stable": "●", "backlogged": "▲", "overloaded": "■"}


def of(run: RunData) -> dict[str, Any]:
    """Everything that the template names."""
    summary = run.summary
    return {
        "name": str(run.config.get("name") or "run"),
        "what": what_was_run(run),
        "answer": answer(run),
        "tiles": tiles(run),
        "stability": summary["stability"],
        "stability_mark": _MARKS.get(summary["stability"], "●"),
        "reasons": summary.get("stability_details", {}).get("reasons", []),
        "warnings": summary["warnings"],
        "latencies": latency_table(summary),
        "statistics": _STATISTICS,
        "objectives": objective_table(summary),
        "groups": group_tables(summary),
        "fairness": summary.get("fairness"),
        "slowest": slowest_table(run),
        "facts": facts(run),
        "config": config_text(run.config),
        "versions": summary["versions"],
        "run": run.run,
    }


def answer(run: RunData) -> dict[str, str]:
    """The sentence on top and its tone: good, bad or plain."""
    summary = run.summary
    offered, share = count(summary["num_requests"]), summary["slo_attainment"]
    if share is None:
        sentence = f"{count(summary['num_finished'])} of {offered} requests finished"
        if summary["ttft"]["p50"] is not None:
            sentence += f"; half saw a first token within {seconds(summary['ttft']['p50'])}"
            sentence += f", 99 % within {seconds(summary['ttft']['p99'])}"
        return {"text": sentence + ".", "tone": "plain"}
    met = (summary.get("slo") or {}).get("met")
    tone = {True: "good", False: "bad", None: "plain"}[met]
    verdict = {True: ": the objective is met.", False: ": the objective is missed.", None: "."}[met]
    return {"text": f"{percent(share)} of {offered} offered requests met the SLO{verdict}", "tone": tone}


def what_was_run(run: RunData) -> list[str]:
    """Pools and workload, one line each."""
    pools = (run.config.get("cluster") or {}).get("pools") or []
    return [_pool_line(pool) for pool in pools] + [_workload_line(run)]


def tiles(run: RunData) -> list[dict[str, str]]:
    """The key numbers: label, value, and a note below."""
    s = run.summary
    busy = [row["utilization"] for row in s["replicas"] if row["utilization"] is not None]
    gpus = sum(row.get("num_gpus", 0) for row in s["replicas"])
    tokens = s["output_token_throughput"]
    each = f"{rate(tokens / gpus, 'tok/s')} a GPU" if tokens is not None and gpus else ""
    found = [
        _tile("SLO attainment", percent(s["slo_attainment"]), _target(s)),
        _tile("Goodput", rate(s["goodput"], "req/s"), f"of {rate(s['request_throughput'], 'req/s')} finished"),
        *(_latency_tile(s, key, label) for key, label in (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2e", "E2E"))),
        _tile("Output", rate(tokens, "tok/s"), each),
        _tile("Replicas busy", percent(float(np.mean(busy)) if busy else None), _range(busy)),
        _tile("KV cache used", percent(s["kv_cache"]["mean_usage"]), f"peak {percent(s['kv_cache']['peak_usage'])}"),
    ]
    if s["prefix_cache"]["hit_rate"] is not None:
        found.append(_tile("Prefix cache hits", percent(s["prefix_cache"]["hit_rate"]), "of prompt tokens"))
    if s["cost"]["price"] is not None:
        found.append(_cost_tile(s))
    return found


def latency_table(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of the table of latencies."""
    return [
        {"name": name, "short": short, "cells": [seconds(summary[key][statistic]) for statistic in _STATISTICS]}
        for key, name, short in _ROWS
    ]


def objective_table(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """One row a target of the SLO: whom it holds for, the limit, what was reached."""
    return [_objective_row(row) for row in (summary.get("slo") or {}).get("objectives", [])]


def group_tables(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Tables by request class and by tenant, where the workload has them."""
    titles = {"request_classes": "Request classes", "tenants": "Tenants"}
    return [
        {"title": title, "rows": [_group_row(name, group) for name, group in summary[key].items()]}
        for key, title in titles.items()
        if summary.get(key)
    ]


def slowest_table(run: RunData) -> list[dict[str, str]]:
    """The finished requests with the longest E2E, and what each spent most of its time on."""
    rows = np.flatnonzero(run.finished)
    rows = rows[np.argsort(-run.column("e2e")[rows], kind="stable")][:_SLOWEST]
    return [_slow_row(run, int(row)) for row in rows]


def facts(run: RunData) -> list[tuple[str, str]]:
    """Counts and totals that are on no tile."""
    s = run.summary
    lost = [f"{count(s[f'num_{how}'])} {how.replace('_', ' ')}" for how in _LOSSES if s.get(f"num_{how}")]
    found = [
        ("Requests", ", ".join([f"{count(s['num_requests'])} offered", f"{count(s['num_finished'])} finished", *lost])),
        ("Tokens", f"{count(s['num_prompt_tokens'])} prompt, {count(s['num_output_tokens'])} output"),
        ("Duration", f"{seconds(s['duration'])} from first arrival to last end"),
        ("Steps", count(s["num_steps"])),
        ("Preemptions", f"{count(s['num_preemptions'])} ({count(s['num_recomputed_tokens'])} tokens computed again)"),
        ("KV blocks", _kv_line(s["kv_cache"])),
        ("Prefix cache", _prefix_line(s["prefix_cache"])),
        ("Cost", _cost_line(s["cost"])),
    ]
    return found


def config_text(config: Mapping[str, Any]) -> str:
    """The resolved configuration as YAML."""
    import yaml

    return str(yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True, width=100))


def _pool_line(pool: Mapping[str, Any]) -> str:
    tensor, pipeline = pool.get("tensor_parallel") or 1, pool.get("pipeline_parallel") or 1
    parallel = [f"TP {tensor}"] * (tensor > 1) + [f"PP {pipeline}"] * (pipeline > 1)
    role = pool.get("role") or "mixed"
    scheduler = pool.get("scheduler") or {}
    details = [
        *parallel,
        *([f"{role} pool"] if role != "mixed" else []),
        *([str(pool["engine"])] if pool.get("engine") else []),
        *([f"{scheduler['policy']} scheduler"] if scheduler.get("policy") else []),
    ]
    gpu = PurePath(str(pool.get("gpu"))).name
    model = PurePath(str(pool.get("model"))).name
    return f"{pool.get('replicas', 1)} x {model} on {gpu}" + (f" ({', '.join(details)})" if details else "")


def _workload_line(run: RunData) -> str:
    workload = run.config.get("workload") or {}
    source = f"trace {PurePath(str(workload['trace'])).name}" if workload.get("trace") else "generated workload"
    arrival = run.column("arrival_time")[run.counted]
    line = f"{source}: {count(len(arrival))} requests"
    if len(arrival) > 1 and arrival.max() > arrival.min():
        span = float(arrival.max() - arrival.min())
        line += f" over {seconds(span)} ({rate(len(arrival) / span, 'req/s')})"
    prompt, output = run.values("num_prompt_tokens"), run.values("num_output_tokens")
    if len(prompt):
        line += f", {digits(prompt.mean())} prompt and {digits(output.mean())} output tokens on average"
    return line


def _tile(label: str, value: str, note: str = "") -> dict[str, str]:
    return {"label": label, "value": value, "note": note}


def _latency_tile(summary: Mapping[str, Any], key: str, label: str) -> dict[str, str]:
    return _tile(f"{label} p99", seconds(summary[key]["p99"]), f"p50 {seconds(summary[key]['p50'])}")


def _target(summary: Mapping[str, Any]) -> str:
    rows = (summary.get("slo") or {}).get("objectives", [])
    demanded = [row["limit"] for row in rows if row["metric"] == "attainment"]
    return f"target {percent(max(demanded))}" if demanded else ("no SLO given" if not rows else "no target share")


def _range(values: Sequence[float]) -> str:
    return f"{percent(min(values))} to {percent(max(values))}" if len(values) > 1 else ""


def _cost_tile(summary: Mapping[str, Any]) -> dict[str, str]:
    price, tokens = summary["cost"]["price"], summary["num_output_tokens"]
    note = f"{digits(1e6 * price / tokens)} USD a million output tokens" if tokens else ""
    return _tile("Price", f"{digits(price)} USD", note)


def _objective_row(row: Mapping[str, Any]) -> dict[str, str]:
    share = row["metric"] == "attainment"
    statistic = f" {row['statistic']}" if row["statistic"] else ""
    sign = "≥" if share else "≤"
    reached = percent(row["share"]) if share or row["statistic"] is None else _reached(row)
    return {
        "group": row["request_class"] or "all",
        "target": f"{'attainment' if share else row['metric'].upper()}{statistic} {sign} "
        + (percent(row["limit"]) if share else seconds(row["limit"])),
        "reached": reached + (" of requests" if share or row["statistic"] is None else ""),
        "met": {True: "met", False: "missed", None: ""}[row["met"]],
    }


def _reached(row: Mapping[str, Any]) -> str:
    return "beyond the last finished request" if row["value"] is None else seconds(row["value"])


def _group_row(name: str, group: Mapping[str, Any]) -> dict[str, Any]:
    cells = [count(group["num_requests"]), percent(group["slo_attainment"])]
    for key in ("ttft", "tpot", "e2e"):
        cells += [seconds(group[key]["p50"]), seconds(group[key]["p99"])]
    return {"name": name, "cells": cells}


def _slow_row(run: RunData, row: int) -> dict[str, str]:
    parts = {part: float(run.column(part)[row]) for part in PARTS}
    most = max(parts, key=lambda part: parts[part])
    total = float(run.column("e2e")[row])
    return {
        "id": str(run.requests["request_id"].iloc[row]),
        "arrival": seconds(float(run.column("arrival_time")[row])),
        "prompt": count(run.column("num_prompt_tokens")[row]),
        "output": count(run.column("num_output_tokens")[row]),
        "ttft": seconds(float(run.column("ttft")[row])),
        "tpot": seconds(float(run.column("tpot")[row])),
        "e2e": seconds(total),
        "preemptions": count(run.column("num_preemptions")[row]),
        "mostly": f"{PART_NAMES[most]} ({percent(parts[most] / total if total else None)})",
    }


def _kv_line(kv: Mapping[str, Any]) -> str:
    blocks = f"{count(kv['num_blocks'])} in all"
    if kv["block_size"] is not None:
        blocks += f", {kv['block_size']} tokens each"
    if kv["token_share"] is None:
        return blocks
    return blocks + f"; {percent(kv['token_share'])} of the memory in use held tokens"


def _prefix_line(cache: Mapping[str, Any]) -> str:
    if not cache["enabled"]:
        return "off"
    if cache["hit_rate"] is None:
        return "on; hits unknown (see warnings)"
    line = f"{count(cache['num_hit_tokens'])} of {count(cache['num_lookup_tokens'])} prompt tokens hit"
    if cache["saved_prefill_seconds"] is not None:
        line += f", {seconds(cache['saved_prefill_seconds'])} of prefill saved"
    return line + f"; {count(cache['num_evicted_blocks'])} blocks evicted"


def _cost_line(cost: Mapping[str, Any]) -> str:
    price = "" if cost["price"] is None else f", {digits(cost['price'])} USD"
    return f"{digits(cost['gpu_hours'])} GPU hours{price}"
