"""The page of a run: what was run, the answer, and which tables and figures stand where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.report import latency_charts, load_charts, step_charts
from sim.report.data import load
from sim.report.document import Document, Section, Tile
from sim.report.run_tables import (
    cost_table,
    group_sections,
    latency_table,
    objective_table,
    pool_section,
    slowest_table,
)
from sim.report.text import count, digits, percent, rate, seconds, yaml_text

if TYPE_CHECKING:
    from sim.report.data import RunData

_LOSSES = ("rejected", "cancelled", "timed_out", "failed", "unservable", "unfinished")
_MARKS = {"stable": "●", "backlogged": "▲", "overloaded": "■"}
DEFINITIONS = """\
TTFT is first token minus arrival, E2E is end minus arrival, both with the client's latency added. TPOT is (end minus
first token) / (output tokens minus 1) and does not exist for one token. ITL is every gap between successive deliveries
of a request, pooled over requests. Percentiles interpolate linearly. Throughputs divide by the time from the first
counted arrival to the last counted end. SLO attainment is over all offered requests after warm-up. Prices are the
configured ones, otherwise the median quote of the hardware profile. These are simulated numbers: what is not modelled
(network jitter, tokenizer, failures unless configured) is not in them."""


def document(directory: Path) -> Document:
    """The page of the run in `directory`."""
    run = load(directory)
    summary, answer = run.summary, answer_of(run)
    mark = _MARKS.get(summary["stability"], "●")
    reasons = "; ".join(summary.get("stability_details", {}).get("reasons", []))
    return Document(
        kind="run",
        name=str(run.config.get("name") or "run"),
        what=what_was_run(run),
        answer=answer["text"],
        tone=answer["tone"],
        status=(mark, summary["stability"], reasons),
        tiles=tiles(run),
        warnings=summary["warnings"],
        sections=sections(run),
        facts=facts(run),
        definitions=DEFINITIONS,
        source=("Resolved configuration (config.yaml)", yaml_text(run.config)),
        footer=_footer(run),
    )


def sections(run: RunData) -> list[Section]:
    """Tables of latencies, then the figures from what users felt to what the cluster did."""
    objectives, slow = objective_table(run.summary), slowest_table(run)
    latencies = [latency_table(run.summary), *([objectives] if objectives else [])]
    prefix = load_charts.prefix_hits(run)
    return [
        Section("latencies", "Latencies", tables=latencies),
        Section.of(latency_charts.latency_cdf(run)),
        Section.of(latency_charts.latency_over_time(run)),
        Section.of(latency_charts.slowest(run), *([slow] if slow else [])),
        Section.of(load_charts.state(run)),
        Section.of(load_charts.load(run)),
        Section.of(latency_charts.itl(run)),
        Section.of(step_charts.batches(run)),
        Section.of(step_charts.gantt(run)),
        Section.of(load_charts.replicas(run)),
        Section.of(step_charts.utilization(run)),
        *([Section.of(prefix)] if prefix else []),
        *pool_section(run.summary),
        *group_sections(run.summary),
        Section("cost", "Cost", tables=[cost_table(run.summary)]),
    ]


def answer_of(run: RunData) -> dict[str, str]:
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


def tiles(run: RunData) -> list[Tile]:
    """The key numbers: label, value, and a note below."""
    s = run.summary
    busy = [row["utilization"] for row in s["replicas"] if row["utilization"] is not None]
    gpus = sum(row.get("num_gpus", 0) for row in s["replicas"])
    tokens = s["output_token_throughput"]
    each = f"{rate(tokens / gpus, 'tok/s')} a GPU" if tokens is not None and gpus else ""
    found = [
        Tile("SLO attainment", percent(s["slo_attainment"]), _target(s)),
        Tile("Goodput", rate(s["goodput"], "req/s"), f"of {rate(s['request_throughput'], 'req/s')} finished"),
        *(_latency_tile(s, key, label) for key, label in (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2e", "E2E"))),
        Tile("Output", rate(tokens, "tok/s"), each),
        Tile("Replicas busy", percent(float(np.mean(busy)) if busy else None), _range(busy)),
        Tile("KV cache used", percent(s["kv_cache"]["mean_usage"]), f"peak {percent(s['kv_cache']['peak_usage'])}"),
    ]
    if s["prefix_cache"]["hit_rate"] is not None:
        found.append(Tile("Prefix cache hits", percent(s["prefix_cache"]["hit_rate"]), "of prompt tokens"))
    if s["cost"]["price"] is not None:
        found.append(_cost_tile(s))
    return found


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


def _latency_tile(summary: Mapping[str, Any], key: str, label: str) -> Tile:
    return Tile(f"{label} p99", seconds(summary[key]["p99"]), f"p50 {seconds(summary[key]['p50'])}")


def _target(summary: Mapping[str, Any]) -> str:
    rows = (summary.get("slo") or {}).get("objectives", [])
    demanded = [row["limit"] for row in rows if row["metric"] == "attainment"]
    return f"target {percent(max(demanded))}" if demanded else ("no SLO given" if not rows else "no target share")


def _range(values: Sequence[float]) -> str:
    return f"{percent(min(values))} to {percent(max(values))}" if len(values) > 1 else ""


def _cost_tile(summary: Mapping[str, Any]) -> Tile:
    price, tokens = summary["cost"]["price"], summary["num_output_tokens"]
    note = f"{digits(1e6 * price / tokens)} USD a million output tokens" if tokens else ""
    return Tile("Price", f"{digits(price)} USD", note)


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


def _footer(run: RunData) -> str:
    versions, wall = run.summary["versions"], run.run.get("wall_seconds")
    line = f"servesim {versions['servesim']}, profiles {versions['profiles']}"
    line += "" if wall is None else f", simulated in {wall:.2f} s"
    return f"{line}. Complete numbers: summary.json and requests.parquet beside this page."
