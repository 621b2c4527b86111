"""The rows of a plan's table: what a candidate costs, or why it is not the answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sim.study import economics
from sim.study.points import shown
from sim.study.search import Candidate, Trial

INFEASIBLE, DEARER, FEASIBLE, WINNER, OPEN = "infeasible", "dearer", "feasible", "winner", "not met"
_MISSING = (INFEASIBLE, OPEN)
_METRICS = ("ttft.p50", "ttft.p99", "tpot.p50", "tpot.p99", "e2e.p99", "goodput", "output_token_throughput")


def candidate_row(
    candidate: Candidate, winner: Candidate | None, money: Mapping[str, Any], change: str | None = None
) -> dict[str, Any]:
    """One row: the varied values, status, replicas and money, the metrics of the decisive trial, and why not.

    `change`: what would make another candidate of it that meets the SLO, for one that does not.
    """
    status, reason = _status(candidate, winner)
    trial = _decisive(candidate)
    row: dict[str, Any] = {key: shown(v) if isinstance(v, dict | list) else v for key, v in candidate.values.items()}
    row |= {"status": status, "replicas": candidate.high, "at_least_replicas": _at_least(candidate)}
    row |= {name: money.get(name) for name in (*MONEY, *economics.COLUMNS)}
    row |= _metrics(trial)
    row |= {"reason": reason, "nearest_change": candidate.change or (change if status in _MISSING else None)}
    return row | {f"load_{name}": value for name, value in candidate.load.items()}


MONEY = (
    "num_gpus", "cost_per_hour", "cost_per_million_tokens", "cost_per_million_output_tokens", "cost_per_request",
    "cost_per_hour_at_least", "cost_per_hour_with_one_spare",
)  # fmt: skip


def price_row(candidate: Candidate, price: float, gpus: int, spare: int) -> dict[str, Any]:
    """USD of a candidate. `price`: per GPU hour; `gpus`: of a replica; `spare`: replicas on top."""
    row: dict[str, Any] = {"cost_per_hour_at_least": (_at_least(candidate) + spare) * gpus * price}
    if candidate.high is None:
        return row
    number = (candidate.high + spare) * gpus
    row |= {"num_gpus": number, "cost_per_hour": number * price}
    row["cost_per_hour_with_one_spare"] = number * price + (gpus * price if spare == 0 else 0.0)
    trial = candidate.trial(candidate.high)
    return row | _per_use(number * price / 3600, trial.summaries[0] if trial and trial.summaries else None)


def _per_use(usd_a_second: float, summary: Mapping[str, Any] | None) -> dict[str, Any]:
    """USD for what was served, the GPUs being paid for the duration of the run."""
    if summary is None or not summary["request_throughput"]:
        return {}
    return {
        "cost_per_request": usd_a_second / summary["request_throughput"],
        "cost_per_million_tokens": 1e6 * usd_a_second / summary["total_token_throughput"],
        "cost_per_million_output_tokens": 1e6 * usd_a_second / summary["output_token_throughput"],
    }


def trial_rows(candidate: Candidate, price: float, gpus: int, spare: int) -> list[dict[str, Any]]:
    """One row a number of replicas that was simulated: what it costs, whether it does, its metrics (null if unknown).

    `price`: USD per GPU hour; `gpus`: of a replica; `spare`: replicas on top.
    """
    return [
        {
            "candidate": candidate.index,
            "replicas": trial.replicas,
            "num_gpus": (trial.replicas + spare) * gpus,
            "cost_per_hour": (trial.replicas + spare) * gpus * price,
            "met": trial.met,
            **_metrics(trial),
        }
        for trial in sorted(candidate.trials, key=lambda trial: trial.replicas)
        if trial.error is None
    ]


def load_row(load: float, trial: Trial) -> dict[str, Any]:
    """What the winner did at so many times the load of the plan."""
    return {"load": load, "met": trial.met, **_metrics(trial)}


def _at_least(candidate: Candidate) -> int:
    return candidate.high if candidate.high is not None else candidate.low + 1


def _decisive(candidate: Candidate) -> Trial | None:
    """The trial with the fewest replicas that do, else the one with the most that do not."""
    if candidate.high is not None:
        return candidate.trial(candidate.high)
    return max((t for t in candidate.trials if t.error is None), key=lambda t: t.replicas, default=None)


def _status(candidate: Candidate, winner: Candidate | None) -> tuple[str, str | None]:
    if candidate is winner:
        return WINNER, None
    if candidate.problem is not None:
        return INFEASIBLE, candidate.problem
    trial = _decisive(candidate)
    if candidate.high is not None:
        return FEASIBLE, f"with {_replicas(candidate.high)} it meets the SLO, at no less than the winner costs"
    missed = f"{_replicas(trial.replicas)} will not do: {missed_targets(trial)}" if trial else "by its bounds"
    if winner is None:
        return OPEN, missed
    return DEARER, f"needs {_replicas(_at_least(candidate))} or more, which cost no less than the winner; {missed}"


def _replicas(number: int) -> str:
    return "1 replica" if number == 1 else f"{number} replicas"


def missed_targets(trial: Trial) -> str:
    """Which targets the trial missed, and by how much."""
    if trial.note is not None:
        return trial.note
    parts = dict.fromkeys(part for summary in trial.summaries for part in _missed(summary))
    return "; ".join(parts) or "a replication missed it"


def _missed(summary: Mapping[str, Any]) -> list[str]:
    found = [_phrase(row) for row in summary["slo"]["objectives"] if row["met"] is False]
    late = [row for row in summary["slo"]["objectives"] if row["met"] is None and row["share"] is not None]
    if found and late:
        worst = min(late, key=lambda row: row["share"])
        found.append(f"worst is {worst['metric']} <= {worst['limit']:g} s, which {worst['share']:.1%} meet")
    if summary["num_unservable"]:
        found.append(f"{summary['num_unservable']} requests can never be served")
    return found


def _phrase(row: Mapping[str, Any]) -> str:
    who = f"{row['request_class']}: " if row["request_class"] else ""
    if row["metric"] == "attainment":
        return f"{who}attainment {row['value']:.1%} < {row['limit']:.1%}"
    value = "infinite" if row["value"] is None else f"{row['value']:.3g} s"
    return f"{who}{row['metric']} {row['statistic']} {value} > {row['limit']:g} s"


def _metrics(trial: Trial | None) -> dict[str, Any]:
    from sim.study.table import flatten

    if trial is None or not trial.summaries:
        return dict.fromkeys((*_METRICS, "slo_attainment", "mean_utilization"))
    flat = flatten(trial.summaries[0])
    busy = [replica["utilization"] for replica in trial.summaries[0]["replicas"]]
    attained = [summary["slo_attainment"] for summary in trial.summaries]
    return {
        **{name: flat.get(name) for name in _METRICS},
        "slo_attainment": min(attained) if None not in attained else None,
        "mean_utilization": math.fsum(busy) / len(busy) if busy and None not in busy else None,
    }
