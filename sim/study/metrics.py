"""The metrics that experiments are compared by: where they stand in a summary, which way is better, and in batches.

A batch is a run of successive requests (for latencies and shares) or a stretch of time (for rates).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.config import ExperimentConfig
from sim.errors import InputError, nearest
from sim.study.table import flatten

if TYPE_CHECKING:
    from sim.measured import BoolArray, Columns
    from sim.units import FloatArray

DEFAULT_METRICS = (
    *(f"{latency}.{statistic}" for latency in ("ttft", "tpot", "itl", "e2e") for statistic in ("mean", "p50", "p99")),
    "queueing_delay.mean",
    "request_throughput",
    "output_token_throughput",
    "slo_attainment",
    "goodput",
    "num_preemptions",
    "prefix_cache.hit_rate",
    "cost.price",
)
_LOWER = {
    "ttft", "tpot", "itl", "itl_request_mean", "e2e", "queueing_delay", "cost", "num_preemptions", "duration",
    "num_recomputed_tokens", "num_rejected", "num_cancelled", "num_timed_out", "num_failed", "num_unservable",
}  # fmt: skip
_HIGHER = {
    "request_throughput", "output_token_throughput", "total_token_throughput", "goodput", "slo_attainment",
    "num_finished", "prefix_cache", "fairness",
}  # fmt: skip
_SMALLEST = {"mean": 20, "p50": 40, "p90": 100, "p95": 150, "p99": 250}  # requests a batch, by statistic
_COLUMNS = ("ttft", "tpot", "e2e", "queueing_delay")


def direction(metric: str) -> str | None:
    """`lower` or `higher` is better; None for a metric that is neither good nor bad."""
    head = metric.split(".")[0]
    return "lower" if head in _LOWER else "higher" if head in _HIGHER else None


def values_of(summaries: list[dict[str, Any]], metric: str) -> FloatArray | None:
    """The metric in each summary; None where one has none. `InputError` for a name that is in none of them."""
    flat = [flatten(summary) for summary in summaries]
    if not any(metric in values for values in flat):
        known = [name for name, value in flat[0].items() if isinstance(value, int | float)]
        raise InputError(f"there is no metric '{metric}'{nearest(metric, known)}; every number of summary.json is one")
    found = [values.get(metric) for values in flat]
    if any(value is None or isinstance(value, str) for value in found):
        return None
    return np.array(found, dtype=np.float64)


@dataclass(frozen=True)
class RequestTable:
    """The counted requests of one run, in workload order."""

    columns: Columns
    finished: BoolArray
    good: BoolArray | None  # finished within the SLO; None without an SLO

    def __len__(self) -> int:
        return len(self.finished)


def read_requests(folder: Path, config: ExperimentConfig) -> RequestTable:
    """The counted requests of the run in `folder`."""
    import pandas as pd

    from sim.slo import meets, read_slo
    from sim.warmup import warmup_mask

    frame = pd.read_parquet(folder / "requests.parquet")
    columns: Columns = {str(name): frame[name].to_numpy() for name in frame.columns}
    counted = ~np.isnan(columns["arrival_time"]) & ~warmup_mask(columns["arrival_time"], config, columns)
    columns = {name: column[counted] for name, column in columns.items()}
    finished = np.array(columns["status"] == "finished", dtype=bool)
    objectives = read_slo(config.slo)
    return RequestTable(columns, finished, meets(objectives, columns, finished) if objectives else None)


@dataclass(frozen=True)
class BatchMetric:
    """How a metric is taken from part of a run: of a slice of requests, or of a stretch of time."""

    smallest: int  # requests a batch
    most: int = 20  # batches: longer ones for a quantile, whose estimate needs more than a mean's
    of_requests: Callable[[RequestTable, slice], float] | None = None
    of_time: Callable[[RequestTable, float, float], float] | None = None


def batch_metric(metric: str) -> BatchMetric | None:
    """None for a metric that only a whole run has (pooled gaps, preemptions, money)."""
    name, _, statistic = metric.partition(".")
    if name in _COLUMNS and statistic in _SMALLEST:
        most = 20 if statistic == "mean" else 7
        return BatchMetric(_SMALLEST[statistic], most, of_requests=_latency(name, statistic))
    if metric == "slo_attainment":
        return BatchMetric(20, of_requests=_attainment)
    if metric in _RATES:
        return BatchMetric(20, of_time=_RATES[metric])
    return None


def _latency(name: str, statistic: str) -> Callable[[RequestTable, slice], float]:
    def of(table: RequestTable, part: slice) -> float:
        values = table.columns[name][part][table.finished[part]]
        values = values[~np.isnan(values)]
        if len(values) == 0:
            return float("nan")
        return float(values.mean() if statistic == "mean" else np.quantile(values, float(statistic[1:]) / 100))

    return of


def _attainment(table: RequestTable, part: slice) -> float:
    return float("nan") if table.good is None else float(table.good[part].mean())


def _rate(weight: Callable[[RequestTable], FloatArray | None]) -> Callable[[RequestTable, float, float], float]:
    def of(table: RequestTable, start: float, end: float) -> float:
        weights, ends = weight(table), table.columns["finish_time"]
        if weights is None:
            return float("nan")
        inside = table.finished & (ends >= start) & (ends < end)
        return float(weights[inside].sum() / (end - start))

    return of


def _goodness(table: RequestTable) -> FloatArray | None:
    return None if table.good is None else table.good.astype(np.float64)


_RATES: Mapping[str, Callable[[RequestTable, float, float], float]] = {
    "request_throughput": _rate(lambda table: np.ones(len(table))),
    "output_token_throughput": _rate(lambda table: table.columns["num_output_tokens"].astype(np.float64)),
    "goodput": _rate(_goodness),
}
