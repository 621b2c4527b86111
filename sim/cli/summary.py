"""The summary that `servesim run` prints: latencies in a table, one line a topic, warnings, where files are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from sim.cli.text import count, plural, seconds, share, significant, span

if TYPE_CHECKING:
    from sim.config import ExperimentConfig
    from sim.experiment import Outcome

_LATENCIES = (
    ("ttft", "time to first token"),
    ("tpot", "time per output token"),
    ("itl", "inter-token latency"),
    ("e2e", "end to end"),
    ("queueing_delay", "queueing delay"),
)
_STATISTICS = ("mean", "p50", "p90", "p99", "max")
_COLUMN = 11


def print_summary(outcome: Outcome, directory: Path) -> None:
    """Print a finished run to standard output; colours and dim words only on a terminal."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(heading(outcome.config))
    for line in latencies(outcome.summary):
        console.print(line)
    console.print()
    lines = topics(outcome)
    width = max(len(name) for name, _ in lines) + 2
    for name, text in lines:
        console.print(Text.assemble((name.ljust(width), "dim"), text))
    for warning in outcome.summary["warnings"]:
        console.print(Text.assemble(("warning".ljust(width), "yellow"), warning))
    console.print(Text.assemble(("written to".ljust(width), "dim"), str(directory)))


def heading(config: ExperimentConfig) -> Text:
    """What was run, in a line."""
    pools = ", ".join(f"{pool.replicas} x {pool.model} on {gpus(pool)}" for pool in config.cluster.pools)
    return Text.assemble((config.name, "bold"), f": {pools}, seed {config.seed}\n")


def gpus(pool: Any) -> str:
    """The GPUs of one replica: `h100-sxm`, `4 h100-sxm`."""
    number = pool.gpus_per_replica
    return f"{number} {Path(pool.gpu).stem}" if number > 1 else Path(pool.gpu).stem


def latencies(summary: Mapping[str, Any]) -> list[Text]:
    """The lines of the table of latencies."""
    width = max(len(words) for _, words in _LATENCIES) + 1
    head = " " * width + "".join(f"{statistic:>{_COLUMN}}" for statistic in _STATISTICS)
    lines = [Text(head, style="dim")]
    for name, words in _LATENCIES:
        values = summary.get(name) or {}
        cells = "".join(f"{seconds(values.get(statistic)):>{_COLUMN}}" for statistic in _STATISTICS)
        lines.append(Text.assemble((words.ljust(width), "dim"), cells))
    return lines


def topics(outcome: Outcome) -> list[tuple[str, str]]:
    """Name and text of each line below the latencies."""
    summary = outcome.summary
    lines = [
        ("requests", _requests(summary)),
        ("throughput", _throughput(summary)),
        ("SLO", _slo(summary)),
        ("replicas", _replicas(summary)),
        ("pools", _pools(summary)),
        ("KV transfers", _transfers(summary)),
        ("KV cache", _kv_cache(summary)),
        ("prefix cache", _prefix_cache(summary)),
        ("preemptions", _preemptions(summary)),
        ("cost", _cost(summary)),
        ("expectations", _expectations(outcome)),
        ("simulation", _simulation(outcome)),
    ]
    return [(name, text) for name, text in lines if text]


def _requests(summary: Mapping[str, Any]) -> str:
    kinds = ("rejected", "cancelled", "timed_out", "failed", "unservable", "unfinished")
    parts = [f"{count(summary['num_finished'])} of {count(summary['num_requests'])} finished"]
    parts += [
        f"{count(summary[f'num_{kind}'])} {kind.replace('_', ' ')}" for kind in kinds if summary.get(f"num_{kind}")
    ]
    if summary["duration"] is not None:
        parts.append(f"over {span(summary['duration'])}")
    return ", ".join(parts)


def _throughput(summary: Mapping[str, Any]) -> str:
    return (
        f"{significant(summary['request_throughput'])} requests/s, "
        f"{significant(summary['output_token_throughput'])} output tokens/s, "
        f"{significant(summary['total_token_throughput'])} tokens/s in all"
    )


def _slo(summary: Mapping[str, Any]) -> str:
    if summary.get("slo_attainment") is None:
        return ""
    met = (summary.get("slo") or {}).get("met")
    verdict = "" if met is None else ", met" if met else ", not met"
    within = f"{share(summary['slo_attainment'])} of requests within their targets"
    return f"{within}, goodput {significant(summary['goodput'])}/s{verdict}"


def _replicas(summary: Mapping[str, Any]) -> str:
    busy = [replica["utilization"] for replica in summary["replicas"] if replica["utilization"] is not None]
    if not busy:
        return ""
    text = f"{plural(len(summary['replicas']), 'replica')} busy {share(sum(busy) / len(busy))} of the time"
    return text if len(busy) == 1 else f"{text} ({share(min(busy))} to {share(max(busy))})"


def _pools(summary: Mapping[str, Any]) -> str:
    pools = [pool for pool in summary.get("pools") or [] if pool["utilization"] is not None]
    return ", ".join(f"{pool['name']} ({pool['role']}) busy {share(pool['utilization'])}" for pool in pools)


def _transfers(summary: Mapping[str, Any]) -> str:
    moved = summary.get("kv_transfer")
    if not moved:
        return ""
    text = f"{count(moved['num_transfers'])} of {significant(moved['num_bytes'] / 1e9)} GB in all"
    if moved["num_transfers"]:
        text += f", {seconds(moved['duration']['mean'])} on average, p99 {seconds(moved['duration']['p99'])}"
    if moved["share_of_e2e"] is not None:
        text += f"; with their waits {share(moved['share_of_e2e'])} of the latency"
    return text + (f"; {plural(moved['num_failed'], 'attempt')} lost" if moved["num_failed"] else "")


def _kv_cache(summary: Mapping[str, Any]) -> str:
    cache = summary.get("kv_cache")
    if not cache or cache["mean_usage"] is None:
        return ""
    size = f"{count(cache['num_blocks'])} blocks"
    size += f" of {cache['block_size']} tokens" if cache["block_size"] else ""
    return f"{share(cache['mean_usage'])} of {size} in use, {share(cache['peak_usage'])} at most on a replica"


def _prefix_cache(summary: Mapping[str, Any]) -> str:
    cache = summary.get("prefix_cache")
    if not cache or cache["hit_rate"] is None:
        return ""
    return f"{share(cache['hit_rate'])} of {count(cache['num_lookup_tokens'])} prompt tokens were cached"


def _preemptions(summary: Mapping[str, Any]) -> str:
    if not summary["num_preemptions"]:
        return "none"
    return f"{count(summary['num_preemptions'])}, {count(summary['num_recomputed_tokens'])} tokens computed again"


def _cost(summary: Mapping[str, Any]) -> str:
    cost = summary["cost"]
    price = f", {significant(cost['price'])} USD" if cost["price"] is not None else ""
    energy = f", {significant(cost['energy_kwh'])} kWh" if cost.get("energy_kwh") is not None else ""
    return f"{significant(cost['gpu_hours'])} GPU hours{price}{energy}"


def _expectations(outcome: Outcome) -> str:
    total = len(outcome.config.expect)
    return f"{total - len(outcome.failures)} of {total} hold" if total else ""


def _simulation(outcome: Outcome) -> str:
    replicas = outcome.result.replicas
    skipped = sum(replica.num_skipped_steps for replica in replicas)
    steps = outcome.summary["num_steps"]
    return (
        f"{seconds(outcome.result.wall_seconds)} for {plural(steps, 'step')}, {share(skipped / max(steps, 1))} skipped"
    )
