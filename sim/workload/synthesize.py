"""Statistics of a trace, small enough to publish, and requests drawn to be like it.

What is kept: quantiles of both lengths and their rank correlation; quantiles of the gaps between arrivals, their serial
correlation and how they change over the trace; the prefix model where the trace has hash_ids. What is not: which
request came when, sessions, tenants, and any dependence of lengths on time or on each other.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sim.errors import InputError
from sim.seeds import Seeds
from sim.units import array_to_grid
from sim.workload.base import Workload
from sim.workload.prefix_model import PrefixModel, draw_prefixes, fit_prefixes

if TYPE_CHECKING:
    from sim.units import FloatArray, IntArray

_NUM_GROUPS = 60
_MIN_ROWS = 50


def _points() -> FloatArray:
    """Probabilities of the quantile tables: every half per cent, denser towards both ends."""
    tail = 10.0 ** np.linspace(-5, -2.35, 28)
    return np.unique(np.concatenate([[0.0], tail, np.arange(1, 200) / 200, 1 - tail, [1.0]]))


class ArrivalStatistics(BaseModel):
    """Gaps between arrivals and how they follow each other, in standard normal scores of their ranks."""

    model_config = ConfigDict(extra="forbid", defer_build=True)
    gaps: list[float]  # quantiles, seconds
    levels: list[float] = Field(min_length=1)  # mean score in consecutive groups of as many requests
    score_std: float = Field(ge=0)  # of the scores within their groups
    score_autocorrelation: float = Field(gt=-1, lt=1)  # from one gap to the next, within groups


class Statistics(BaseModel):
    """Statistics of a trace; the JSON files in traces/statistics hold one each."""

    model_config = ConfigDict(extra="forbid", defer_build=True)
    kind: Literal["servesim trace statistics"] = "servesim trace statistics"
    version: Literal[1] = 1
    source: str
    num_requests: int = Field(ge=1)
    rate: float = Field(gt=0)  # requests per second
    prompt_tokens: list[float]  # quantiles at the probabilities of this version
    output_tokens: list[float]
    length_rank_correlation: float = Field(ge=-1, le=1)
    arrivals: ArrivalStatistics
    prefixes: PrefixModel | None = None


def fit(workload: Workload, source: str | None = None) -> Statistics:
    """Fit the statistics of a workload with arrival times; at least 50 requests."""
    n = len(workload)
    duration = float(workload.arrival_time[-1])
    if n < _MIN_ROWS:
        raise InputError(f"{workload.name}: {n} requests are too few to fit, at least {_MIN_ROWS} are needed")
    if workload.closed_loop is not None or duration <= 0:
        raise InputError(f"{workload.name}: has no arrival process to fit (all arrivals are at one time)")
    prompt, output = workload.num_prompt_tokens, workload.num_output_tokens
    return Statistics(
        source=source or workload.name,
        num_requests=n,
        rate=(n - 1) / duration,
        prompt_tokens=_quantiles(prompt),
        output_tokens=_quantiles(output),
        length_rank_correlation=round(rank_correlation(prompt, output), 5),
        arrivals=_fit_arrivals(workload.arrival_time),
        prefixes=None if workload.hash_ids is None else fit_prefixes(workload),
    )


def _quantiles(values: Any) -> list[float]:
    return [round(float(x), 6) for x in np.quantile(values, _points())]


def _fit_arrivals(times: FloatArray) -> ArrivalStatistics:
    gaps = np.diff(times)
    scores = _normal_scores(gaps)
    groups = np.array_split(scores, min(_NUM_GROUPS, max(1, len(gaps) // 20)))
    levels = [float(group.mean()) for group in groups]
    rest = np.concatenate([group - level for group, level in zip(groups, levels, strict=True)])
    return ArrivalStatistics(
        gaps=_quantiles(gaps),
        levels=[round(level, 5) for level in levels],
        score_std=round(float(rest.std()), 5),
        score_autocorrelation=round(_correlation(rest[:-1], rest[1:]), 5),
    )


def _normal_scores(values: FloatArray) -> FloatArray:
    """Standard normal scores of the ranks of `values`, ties at their mean rank."""
    normal, n = NormalDist(), len(values)
    return np.array([normal.inv_cdf((rank - 0.5) / n) for rank in _ranks(values).tolist()])


def _ranks(values: FloatArray | IntArray) -> FloatArray:
    """Ranks with ties at their mean."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: FloatArray = (last - (counts - 1) / 2.0)[inverse]
    return ranks


def _correlation(x: FloatArray, y: FloatArray) -> float:
    a, b = x - x.mean(), y - y.mean()
    scale = math.sqrt(float((a * a).sum()) * float((b * b).sum()))
    return float((a * b).sum()) / scale if scale > 0 else 0.0


def rank_correlation(x: FloatArray | IntArray, y: FloatArray | IntArray) -> float:
    """Spearman's rank correlation; 0 where one of the two is constant."""
    return _correlation(_ranks(x), _ranks(y))


def load_statistics(path: Path) -> Statistics:
    """Read a statistics file; `InputError` names the file and what is wrong in it."""
    try:
        return Statistics.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}: is not JSON: {error.msg}") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{path}: is not a file of trace statistics: {key}: {first['msg']}") from None


def synthesize(statistics: Statistics, num_requests: int, seeds: Seeds) -> Workload:
    """`num_requests` requests like the fitted trace, at its rate.

    The slow change of the gaps is stretched over the new number of requests. Quantiles are drawn evenly (stratified): a
    small sample keeps the means and tails of the trace.
    """
    _check_tables(statistics)
    prompt, output = _draw_lengths(statistics, num_requests, seeds.generator("synthesize", "lengths"))
    arrival = _draw_arrivals(statistics, num_requests, seeds.generator("synthesize", "arrivals"))
    ids, block_size = None, 512
    if statistics.prefixes is not None:
        prompt, ids = draw_prefixes(statistics.prefixes, prompt, seeds.generator("synthesize", "prefixes"))
        block_size = statistics.prefixes.hash_block_size
    return Workload(
        array_to_grid(arrival),
        prompt,
        output,
        output,
        hash_ids=ids,
        hash_block_size=block_size,
        name=f"like {statistics.source}",
        notes=[f"{num_requests} requests drawn from the statistics of {statistics.source}"],
    )


def _check_tables(statistics: Statistics) -> None:
    wanted = len(_points())
    tables = {"prompt_tokens": statistics.prompt_tokens, "output_tokens": statistics.output_tokens}
    for name, table in (tables | {"arrivals.gaps": statistics.arrivals.gaps}).items():
        if len(table) != wanted or table != sorted(table):
            raise InputError(f"statistics of {statistics.source}: {name}: expected {wanted} rising quantiles")


def _stratified(scores: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Uniform numbers in the order of `scores`, one from each of n equal strata."""
    n = len(scores)
    result = np.empty(n)
    result[np.argsort(scores, kind="stable")] = (np.arange(n) + rng.random(n)) / n
    return result


def _draw_lengths(statistics: Statistics, n: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Lengths with the marginals of the tables and the rank correlation, by a Gaussian copula."""
    r = 2 * math.sin(math.pi / 6 * statistics.length_rank_correlation)
    x, noise = rng.standard_normal(n), rng.standard_normal(n)
    y = r * x + math.sqrt(max(0.0, 1 - r * r)) * noise
    lengths = []
    for scores, table in ((x, statistics.prompt_tokens), (y, statistics.output_tokens)):
        values = np.interp(_stratified(scores, rng), _points(), table)
        lengths.append(np.maximum(1, np.rint(values)).astype(np.int64))
    return lengths[0], lengths[1]


def _draw_arrivals(statistics: Statistics, n: int, rng: np.random.Generator) -> FloatArray:
    """Gaps of the table, short and long ones following each other as in the trace; the first arrival is 0."""
    if n == 1:
        return np.zeros(1)
    table = statistics.arrivals
    level = np.array(table.levels)[np.arange(n - 1) * len(table.levels) // (n - 1)]
    scores = level + table.score_std * _autoregressive(n - 1, table.score_autocorrelation, rng)
    gaps = np.interp(_stratified(scores, rng), _points(), table.gaps)
    times = np.concatenate([[0.0], np.cumsum(gaps)])
    scaled: FloatArray = times * ((n - 1) / statistics.rate / times[-1])
    return scaled


def _autoregressive(n: int, r: float, rng: np.random.Generator) -> FloatArray:
    noise = rng.standard_normal(n).tolist()
    if abs(r) < 1e-3:
        return np.array(noise)
    keep, value, result = math.sqrt(max(0.0, 1 - r * r)), noise[0], []
    for x in noise:
        value = r * value + keep * x
        result.append(value)
    return np.array(result)
