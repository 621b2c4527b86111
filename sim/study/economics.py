"""What a deployment earns, saves by caching, and draws at most; how sure its size is; what would make another do.

Every figure is null where a fact is missing (a price, a rated power, an intensity), never guessed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sim.study.points import shown
from sim.study.search import Candidate

if TYPE_CHECKING:
    from sim.study.plan_config import Facility, TokenPrices

_HOUR = 3600.0
_MILLION = 1e6

COLUMNS = (
    "cached_input_share", "token_value_per_hour", "cache_discount_per_hour", "margin_per_hour",
    "gpu_cost_saved_by_cache_per_hour", "max_power_kw", "energy_kwh_per_million_output_tokens",
    "carbon_kg_per_million_output_tokens",
)  # fmt: skip


def economics_row(
    summary: Mapping[str, Any] | None,
    cost_per_hour: float,
    gpu_price: float,
    gpus_per_replica: int,
    tokens: TokenPrices | None,
) -> dict[str, float | None]:
    """Money of a run, an hour. `cost_per_hour`: of the deployment, spares included; prices in USD."""
    if summary is None or not summary["duration"]:
        return {}
    row = _caching(summary, gpu_price * gpus_per_replica)
    if tokens is None:
        return row
    an_hour = _HOUR / summary["duration"] / _MILLION
    cached = summary["prefix_cache"]["num_hit_tokens"] or 0
    discount = cached * (tokens.input - tokens.cached)
    value = summary["num_prompt_tokens"] * tokens.input - discount + summary["num_output_tokens"] * tokens.output
    row |= {"token_value_per_hour": value * an_hour, "cache_discount_per_hour": discount * an_hour}
    return row | {"margin_per_hour": value * an_hour - cost_per_hour}


def _caching(summary: Mapping[str, Any], replica_price: float) -> dict[str, float | None]:
    """The share of prompt tokens that was cached, and the GPU time that computing them would have cost."""
    cache, prompts = summary["prefix_cache"], summary["num_prompt_tokens"]
    hits, saved = cache["num_hit_tokens"], cache["saved_prefill_seconds"]
    return {
        "cached_input_share": None if hits is None or not prompts else hits / prompts,
        "gpu_cost_saved_by_cache_per_hour": None if saved is None else saved / summary["duration"] * replica_price,
    }


def power_row(
    summary: Mapping[str, Any] | None, num_gpus: int, rated_watts: float | None, facility: Facility | None
) -> dict[str, float | None]:
    """`max_power_kw`: every GPU at its rated power, spares included, an upper bound. Energy: the run's model of it.

    With a `facility` its overhead (power usage effectiveness) counts, and the carbon of its grid.
    """
    if summary is None:
        return {}
    overhead = facility.pue if facility else 1.0
    row: dict[str, float | None] = {}
    if rated_watts is not None:
        row["max_power_kw"] = num_gpus * rated_watts / 1000 * overhead
    used, tokens = summary["cost"]["energy_kwh"], summary["num_output_tokens"]
    if used is None or not tokens:
        return row
    energy = used * overhead * _MILLION / tokens
    row["energy_kwh_per_million_output_tokens"] = energy
    if facility is not None and facility.carbon_intensity is not None:
        row["carbon_kg_per_million_output_tokens"] = energy * facility.carbon_intensity
    return row


def error_band(
    replicas: int, headroom: float | None, error: Mapping[str, float] | None, cost_per_replica_hour: float, spare: int
) -> dict[str, Any] | None:
    """Replicas and cost when all steps took longer or shorter than predicted by the profile's p90 error.

    A deployment that meets the SLO up to `1 + headroom` times the load is taken to do so at the load when its steps
    take that much longer, and capacity to grow with the number of replicas. None without a headroom or a known error.
    """
    if headroom is None or error is None:
        return None
    share = error["p90"]
    slow = math.ceil(round(replicas * (1 + share) / (1 + headroom), 9))
    fast = max(1, math.ceil(round(replicas * (1 - share) / (1 + headroom), 9)))
    bounds = [min(fast, replicas), max(slow, replicas)]
    cost = [(number + spare) * cost_per_replica_hour for number in bounds]
    return {"step_time_error": share, "replicas": bounds, "cost_per_hour": cost}


def nearest_feasible(candidate: Candidate, candidates: Sequence[Candidate]) -> str | None:
    """The fewest changed values that make a candidate one that meets the SLO; None where no candidate does."""
    feasible = [other for other in candidates if other.high is not None]
    if not feasible:
        return None

    def differing(other: Candidate) -> list[str]:
        return [key for key, value in candidate.values.items() if other.values[key] != value]

    best = min(feasible, key=lambda other: (len(differing(other)), other.key(other.high or 1), other.index))
    changes = ", ".join(f"{key}: {shown(best.values[key])}" for key in differing(best))
    number = "1 replica does" if best.high == 1 else f"{best.high} replicas do"
    return f"{changes}: {number}"
