"""The tables of a run's page: latencies, objectives, the slowest requests, classes and tenants, cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.measured import PARTS
from sim.report.document import Cell, Section, Table
from sim.report.latency_charts import PART_NAMES
from sim.report.text import NONE, count, digits, percent, seconds

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
_MOST_LINKS = 20


def latency_table(summary: Mapping[str, Any]) -> Table:
    """All statistics of all latencies."""
    rows: list[list[Cell | str]] = [
        [Cell(name, short), *(seconds(summary[key][statistic]) for statistic in _STATISTICS)]
        for key, name, short in _ROWS
    ]
    return Table("Finished requests after warm-up, as the client sees them", ("Latency", *_STATISTICS), rows)


def objective_table(summary: Mapping[str, Any]) -> Table | None:
    """One row a target of the SLO: whom it holds for, the limit, what was reached. None without an SLO."""
    rows = [_objective_row(row) for row in (summary.get("slo") or {}).get("objectives", [])]
    caption = "Service level objectives; a request that did not finish misses"
    return Table(caption, ("Requests", "Target", "Reached", "Verdict"), rows, frozenset({1, 2, 3})) if rows else None


def slowest_table(run: RunData) -> Table | None:
    """The finished requests with the longest E2E and the parts of it; parts that are zero in all are left out."""
    rows = np.flatnonzero(run.finished)
    rows = rows[np.argsort(-run.column("e2e")[rows], kind="stable")][:_SLOWEST]
    if len(rows) == 0:
        return None
    parts = [part for part in (*PARTS, "interference_duration") if run.column(part)[rows].any()]
    names = {**PART_NAMES, "interference_duration": "(of decode: prefills of others)"}
    head: tuple[str, ...] = (
        "Request",
        "arrived at",
        "prompt tokens",
        "output tokens",
        "TTFT",
        "TPOT",
        "E2E",
        "preempted",
    )
    head += (*(names[part] for part in parts), "most of it was")
    caption = f"The {len(rows)} slowest requests, by end-to-end latency, and what it consisted of"
    return Table(caption, head, [_slow_row(run, int(row), parts) for row in rows], frozenset({len(head) - 1}))


def group_sections(summary: Mapping[str, Any]) -> list[Section]:
    """Tables by request class and by tenant, where the workload has them."""
    titles = {"request_classes": "Request classes", "tenants": "Tenants"}
    return [
        Section(key, title, tables=[_group_table(title, summary[key])], notes=_fairness(key, summary.get("fairness")))
        for key, title in titles.items()
        if summary.get(key)
    ]


def pool_section(summary: Mapping[str, Any]) -> list[Section]:
    """Pools, KV transfers between them and the links they went over, where there are several or any."""
    tables = []
    pools, network = summary.get("pools") or [], summary.get("network") or {}
    if len(pools) > 1:
        head = ("Pool", "role", "replicas", "GPUs", "busy", "KV used, mean", "KV used, peak", "tokens", "preemptions")
        tables.append(Table("Pools", head, [_pool_row(pool) for pool in pools], frozenset({1})))
    links = network.get("links") or []
    if links:
        shown = sorted(links, key=lambda link: -(link["busy_share"] or 0.0))[:_MOST_LINKS]
        caption = f"The busiest of {network['num_links']} links" if len(links) > len(shown) else "Links of the network"
        tables.append(
            Table(caption, ("Link", "GB carried", "busy", "of its bandwidth"), [_link_row(link) for link in shown])
        )
    transfers = summary.get("kv_transfer") or {}
    return [Section("pools", "Pools and network", tables=tables, notes=_transfers(transfers))] if tables else []


def _pool_row(pool: Mapping[str, Any]) -> list[Cell | str]:
    shares = (percent(pool[key]) for key in ("utilization", "mean_kv_usage", "peak_kv_usage"))
    counts = (count(pool["num_tokens"]), count(pool["num_preemptions"]))
    return [pool["name"], pool["role"], count(pool["num_replicas"]), count(pool["num_gpus"]), *shares, *counts]


def _link_row(link: Mapping[str, Any]) -> list[Cell | str]:
    return [link["link"], digits(link["num_bytes"] / 1e9), percent(link["busy_share"]), percent(link["utilization"])]


def _transfers(transfers: Mapping[str, Any]) -> list[str]:
    if not transfers.get("num_transfers"):
        return []
    lasted = transfers["duration"]
    return [
        f"{count(transfers['num_transfers'])} KV transfers of {digits(transfers['num_bytes'] / 1e9)} GB in all: "
        f"{seconds(lasted['mean'])} each on average, {seconds(lasted['p99'])} at p99; "
        f"{percent(transfers['share_of_e2e'])} of the end-to-end latency."
    ]


def cost_table(summary: Mapping[str, Any]) -> Table:
    """GPU hours and USD of the run, of a request and of tokens; how much of it was for GPUs at work."""
    cost, price = summary["cost"], summary["cost"]["price"]
    busy = sum(row["busy_time"] * row.get("num_gpus", 1) for row in summary["replicas"]) / 3600
    rows = [_cost_row("the whole run", cost["gpu_hours"], price)]
    rows.append(_cost_row("while a step ran", busy, _part(price, busy, cost["gpu_hours"])))
    rows.append(_cost_row("idle", cost["gpu_hours"] - busy, _part(price, cost["gpu_hours"] - busy, cost["gpu_hours"])))
    for name, key, per in (
        ("a finished request", "num_finished", 1),
        ("a million output tokens", "num_output_tokens", 1e6),
        ("a million prompt tokens and output tokens", None, 1e6),
    ):
        number = summary["num_prompt_tokens"] + summary["num_output_tokens"] if key is None else summary[key]
        if number:
            rows.append(_cost_row(name, cost["gpu_hours"] * per / number, _part(price, per, number)))
    return Table("Hours are of all GPUs from start to end of the simulation", ("Of", "GPU hours", "USD"), rows)


def _cost_row(name: str, hours: float, price: float | None) -> list[Cell | str]:
    return [name, digits(hours), NONE if price is None else digits(price)]


def _part(price: float | None, part: float, whole: float) -> float | None:
    return None if price is None or not whole else price * part / whole


def _objective_row(row: Mapping[str, Any]) -> list[Cell | str]:
    share = row["metric"] == "attainment"
    statistic = f" {row['statistic']}" if row["statistic"] else ""
    limit = percent(row["limit"]) if share else seconds(row["limit"])
    name = "attainment" if share else row["metric"].upper()
    reached = percent(row["share"]) if share or row["statistic"] is None else _reached(row)
    met = {True: "met", False: "missed", None: ""}[row["met"]]
    return [
        row["request_class"] or "all",
        f"{name}{statistic} {'≥' if share else '≤'} {limit}",
        reached + (" of requests" if share or row["statistic"] is None else ""),
        Cell(met, tone={"met": "good", "missed": "bad"}.get(met, "")),
    ]


def _reached(row: Mapping[str, Any]) -> str:
    return "beyond the last finished request" if row["value"] is None else seconds(row["value"])


def _slow_row(run: RunData, row: int, parts: list[str]) -> list[Cell | str]:
    spent = {part: float(run.column(part)[row]) for part in PARTS}
    most, total = max(spent, key=lambda part: spent[part]), float(run.column("e2e")[row])
    return [
        str(run.requests["request_id"].iloc[row]),
        seconds(float(run.column("arrival_time")[row])),
        count(run.column("num_prompt_tokens")[row]),
        count(run.column("num_output_tokens")[row]),
        *(seconds(float(run.column(name)[row])) for name in ("ttft", "tpot", "e2e")),
        count(run.column("num_preemptions")[row]),
        *(seconds(float(run.column(part)[row])) for part in parts),
        f"{PART_NAMES[most]} ({percent(spent[most] / total if total > 0 else None)})",
    ]


def _group_table(title: str, groups: Mapping[str, Any]) -> Table:
    names = [f"{key.upper()} {statistic}" for key in ("ttft", "tpot", "e2e") for statistic in ("p50", "p99")]
    rows = [_group_row(name, group) for name, group in groups.items()]
    return Table(f"Finished requests by {title.lower()}", ("Name", "requests", "SLO attainment", *names), rows)


def _group_row(name: str, group: Mapping[str, Any]) -> list[Cell | str]:
    cells: list[Cell | str] = [name, count(group["num_requests"]), percent(group["slo_attainment"])]
    return cells + [seconds(group[key][statistic]) for key in ("ttft", "tpot", "e2e") for statistic in ("p50", "p99")]


def _fairness(key: str, fairness: Mapping[str, Any] | None) -> list[str]:
    if key != "tenants" or not fairness:
        return []
    shown = {name: NONE if value is None else f"{value:.3f}" for name, value in fairness.items()
             if name.startswith("jain")}  # fmt: skip
    return [
        f"Jain's fairness index over tenants (1 is equal): {shown['jain_index_tokens']} of tokens served, "
        f"{shown['jain_index_latency_per_token']} of latency per output token."
    ]
