"""One metric of two experiments under the same random numbers: difference, intervals, verdict."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from sim.study.metrics import RequestTable, batch_metric, direction
from sim.study.statistics import (
    Interval,
    Spread,
    bootstrap,
    correlated,
    holm,
    num_batches,
    of_mean,
    of_sections,
    replications_needed,
)

BETTER, WORSE, NONE = "better", "worse", "no difference detectable"
# A difference below this share of the baseline is not worth settling: replications are counted for this much.
WORTHWHILE = 0.01


@dataclass(frozen=True)
class Contrast:
    """Candidate less baseline in one metric. Values in the metric's unit; intervals at the stated confidence."""

    metric: str
    baseline_value: float
    candidate_value: float
    difference: float
    relative: float | None  # of the baseline
    t: Interval | None = None
    bootstrap: Interval | None = None
    p_value: float | None = None
    p_adjusted: float | None = None  # for the number of metrics and pairs
    verdict: str = NONE
    method: str = "replications"  # or batches of one run
    num_values: int = 0  # replications, or batches
    deviation: float | None = None  # of one replication's (or batch's) difference
    to_settle: int | None = None  # replications (or batches of this length) that would find it in 8 of 10 cases
    negligible: bool = False  # the interval lies within 1 % of the baseline
    note: str | None = None

    def row(self) -> dict[str, Any]:
        """As one flat row; intervals as `t_low`, `t_high`, ..."""
        values = asdict(self)
        for name in ("t", "bootstrap"):
            interval = values.pop(name) or {}
            values |= {f"{name}_low": interval.get("low"), f"{name}_high": interval.get("high")}
        return values


def by_replications(
    metric: str, baseline: np.ndarray[Any, Any], candidate: np.ndarray[Any, Any], confidence: float
) -> Contrast:
    """From one value a replication of each, paired by their seeds."""
    differences = candidate - baseline
    spread = of_mean(differences)
    contrast = _contrast(metric, float(np.mean(baseline)), float(np.mean(candidate)), spread, confidence)
    generator = np.random.default_rng([len(differences), *metric.encode()])
    return replace(contrast, bootstrap=bootstrap(differences, confidence, generator))


def by_batches(
    metric: str, whole: tuple[float, float], tables: tuple[RequestTable, RequestTable], confidence: float
) -> Contrast:
    """From batches of one long run of each; `whole`: the metric of baseline and candidate over the whole run.

    Without an interval, and with a note that says why, where a run cannot be cut (few requests, other requests, a
    metric of whole runs only).
    """
    bare = replace(_bare(metric, *whole), method="batches")
    found = batch_metric(metric)
    if whole[0] == whole[1] and found is None:
        return replace(bare, note="the same in both runs")
    if found is None:
        return replace(bare, note="known for whole runs only: needs replications that differ")
    if len(tables[0]) != len(tables[1]):
        return replace(bare, note="the runs have different requests, which cannot be paired")
    number = num_batches(len(tables[0]), found.smallest, found.most)
    differences = _uncorrelated(metric, tables, number) if number else np.empty(0)
    if len(differences) == 0 or np.isnan(differences).any():
        return replace(bare, note=f"too short: a batch needs {found.smallest} requests, and there must be five")
    spread = of_sections(differences, bare.difference) if found.of_requests else _about_mean(differences, bare)
    contrast = replace(_contrast(metric, *whole, spread, confidence), method="batches")
    late = "batches are correlated: the run is too short for a trustworthy interval"
    return replace(contrast, note=late if correlated(differences) else None)


def judged(contrasts: list[Contrast], confidence: float) -> list[Contrast]:
    """The contrasts with p values adjusted for their number, and verdicts by them."""
    tested = [contrast for contrast in contrasts if contrast.p_value is not None]
    adjusted = iter(holm([contrast.p_value for contrast in tested if contrast.p_value is not None]))
    number = len(tested)
    return [c if c.p_value is None else _verdict(c, next(adjusted), confidence, number) for c in contrasts]


def _settled(contrast: Contrast, confidence: float, number: int) -> Contrast:
    """What would find a difference of this size, or of 1 % of the baseline if it is smaller, among `number` tests."""
    assert contrast.t is not None
    assert contrast.deviation is not None
    worthwhile = WORTHWHILE * abs(contrast.baseline_value)
    size = max(abs(contrast.difference), worthwhile)
    needed = replications_needed(contrast.deviation, size, 1 - (1 - confidence) / number)
    negligible = -worthwhile <= contrast.t.low and contrast.t.high <= worthwhile
    return replace(contrast, to_settle=needed, negligible=negligible)


def _verdict(contrast: Contrast, p_adjusted: float, confidence: float, number: int) -> Contrast:
    verdict = NONE
    contrast = _settled(contrast, confidence, number)
    if p_adjusted <= 1 - confidence and contrast.difference != 0:
        better = direction(contrast.metric)
        if better is None:
            verdict = "higher" if contrast.difference > 0 else "lower"
        else:
            verdict = BETTER if (contrast.difference < 0) == (better == "lower") else WORSE
    return replace(contrast, p_adjusted=p_adjusted, verdict=verdict)


def _bare(metric: str, baseline: float, candidate: float) -> Contrast:
    difference = candidate - baseline
    return Contrast(metric, baseline, candidate, difference, difference / abs(baseline) if baseline else None)


def _contrast(metric: str, baseline: float, candidate: float, spread: Spread, confidence: float) -> Contrast:
    number = spread.df + 1
    return replace(
        _bare(metric, baseline, candidate),
        t=spread.interval(confidence),
        p_value=spread.p_value(),
        num_values=number,
        deviation=spread.error * math.sqrt(number),
    )


def _about_mean(differences: np.ndarray[Any, Any], bare: Contrast) -> Spread:
    """Rates of a whole run count its run-in and drain, which its stretches leave out: their own mean is the centre."""
    spread = of_mean(differences)
    return replace(spread, centre=bare.difference if spread.error == 0 else spread.centre)


def _uncorrelated(metric: str, tables: tuple[RequestTable, RequestTable], number: int) -> np.ndarray[Any, Any]:
    """Differences by batch, with half as many batches as long as successive ones are correlated."""
    differences = _differences(metric, tables, number)
    while number >= 10 and correlated(differences):
        number //= 2
        differences = _differences(metric, tables, number)
    return differences


def _differences(metric: str, tables: tuple[RequestTable, RequestTable], number: int) -> np.ndarray[Any, Any]:
    found = batch_metric(metric)
    assert found is not None
    first, second = tables
    if found.of_requests:
        edges = [len(first) * i // number for i in range(number + 1)]
        parts = [slice(low, high) for low, high in pairwise(edges)]
        return np.array([found.of_requests(second, part) - found.of_requests(first, part) for part in parts])
    assert found.of_time is not None
    start, end = float(first.columns["arrival_time"].min()), float(first.columns["arrival_time"].max())
    times = np.linspace(start, end, number + 1)
    pairs = list(pairwise(times.tolist()))
    return np.array([found.of_time(second, a, b) - found.of_time(first, a, b) for a, b in pairs])
