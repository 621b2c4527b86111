"""A measured run: the configuration that reproduces it, its workload, and what was measured.

Metrics are named `what.statistic`: ttft, tpot, e2e in seconds with mean, p50, p90, p99; `ttft_settled` is ttft
without the first 100 requests (the server's warm-up); `output_token_throughput` and `request_throughput` per second;
`finished` counts completed requests. tpot is (e2e - ttft) / (output tokens - 1) of each request, which is what the
data sets call ITL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from sim.units import FloatArray
    from sim.validation.early import HostTimes
    from sim.workload.base import Workload

STATISTICS = ("mean", "p50", "p90", "p99")
LATENCIES = ("ttft", "tpot", "e2e")
WARMUP_REQUESTS = 100
REGENERATED_SEEDS = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Observed:
    """What was measured of each request, in the order of the workload's rows. Seconds; nan: not finished."""

    ttft: FloatArray
    e2e: FloatArray
    stage_starts: tuple[int, ...] = (0,)  # first row of each load stage


@dataclass(frozen=True)
class Case:
    """One measured run. `pool` holds the YAML keys of its pool, `measured` its metrics (see the module).

    `cluster` holds the whole section of a cluster with several pools, of which `pool` is the first one.
    """

    dataset: str
    name: str
    workload: str  # the kind of traffic, for grouping
    pool: Mapping[str, Any]
    make_workload: Callable[[int], Workload]  # by seed
    measured: Mapping[str, float]
    seeds: tuple[int, ...] = (1,)
    timeout: float | None = None  # seconds until a client gives up
    groups: frozenset[str] = frozenset()  # sets of runs that are averaged together
    peers: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # simulator -> metric -> relative error
    client: bool = True  # measured by a client over HTTP, whose latency counts
    requests: Observed | None = None
    host: HostTimes | None = None  # of an engine whose host the step time waits for
    cluster: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """`dataset/name`, what `--runs` matches."""
        return f"{self.dataset}/{self.name}"

    @property
    def model(self) -> str:
        return str(self.pool["model"])

    @property
    def gpu(self) -> str:
        return str(self.pool["gpu"])


@dataclass(frozen=True)
class LeftOut:
    """A measured run that is not simulated, and why."""

    dataset: str
    name: str
    reason: str


@dataclass(frozen=True)
class Collected:
    """What a data set holds."""

    cases: list[Case] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)


def describe_latency(name: str, values: FloatArray) -> dict[str, float]:
    """mean, p50, p90 and p99 of finite values as `name.statistic`; empty without any."""
    import numpy as np

    values = values[np.isfinite(values)]
    if not len(values):
        return {}
    quantiles = np.percentile(values, [50, 90, 99])
    return dict(zip((f"{name}.{s}" for s in STATISTICS), (float(values.mean()), *map(float, quantiles)), strict=True))


def request_metrics(ttft: FloatArray, e2e: FloatArray, outputs: np.ndarray) -> dict[str, float]:
    """Latency metrics of finished requests in order of arrival (nan: not finished). Seconds and tokens."""
    import numpy as np

    several = outputs > 1
    tpot = np.where(several, (e2e - ttft) / np.where(several, outputs - 1, 1), np.nan)
    metrics = {"finished": float(np.isfinite(e2e).sum())}
    for name, values in (("ttft", ttft), ("tpot", tpot), ("e2e", e2e), ("ttft_settled", ttft[WARMUP_REQUESTS:])):
        metrics |= describe_latency(name, values)
    return metrics


def relative_errors(predicted: Mapping[str, float], measured: Mapping[str, float]) -> dict[str, float]:
    """predicted / measured - 1 of every metric that both have and that was not measured as 0."""
    return {name: predicted[name] / value - 1.0 for name, value in measured.items() if name in predicted and value}
