"""Errors over groups of runs: mean and median size, signed bias, and the peers' errors on the same runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sim.validation.case import LeftOut
from sim.validation.replay import Prediction

OURS = "servesim"


@dataclass(frozen=True)
class Score:
    """Relative errors of one metric over a group of runs."""

    group: str
    simulator: str
    metric: str
    num_runs: int
    mean: float  # of absolute errors
    median: float  # of absolute errors
    bias: float  # mean of signed errors
    worst: float  # largest by size, signed


def score(group: str, simulator: str, metric: str, errors: Sequence[float]) -> Score:
    """Summarize signed relative errors (at least one)."""
    values = np.array(errors)
    sizes = np.abs(values)
    worst = float(values[int(sizes.argmax())])
    return Score(
        group, simulator, metric, len(values), float(sizes.mean()), float(np.median(sizes)), float(values.mean()), worst
    )


def scores(predictions: Iterable[Prediction], groups: Callable[[Prediction], Iterable[str]]) -> list[Score]:
    """A score for every group, metric and simulator, ours first; `groups` names the groups of a prediction."""
    collected: dict[tuple[str, str, str], list[float]] = {}
    for prediction in predictions:
        for group in groups(prediction):
            for simulator, errors in ((OURS, prediction.errors), *prediction.case.peers.items()):
                for metric, error in errors.items():
                    collected.setdefault((group, simulator, metric), []).append(error)
    return [score(*key, errors) for key, errors in collected.items()]


def by_set(prediction: Prediction) -> list[str]:
    """The sets of runs that a prediction belongs to."""
    return sorted(prediction.case.groups)


def by_kind(prediction: Prediction) -> list[str]:
    """Its model, GPU and workload, within its data set."""
    case = prediction.case
    names = [f"model {_short(case.model)}", f"GPU {case.gpu}"]
    if case.dataset not in ("splitwise", "trtllm", "silicon_sample"):  # there it is a grid of lengths
        names.append(f"workload {case.workload}")
    return [f"{case.dataset}: {name}" for name in names]


def reasons(left_out: Iterable[LeftOut]) -> list[tuple[str, str, int, str]]:
    """(data set, reason, number of runs, one of them), most frequent first within a data set."""
    counted: dict[tuple[str, str], list[str]] = {}
    for item in left_out:
        counted.setdefault((item.dataset, item.reason), []).append(item.name)
    rows = [(dataset, reason, len(names), names[0]) for (dataset, reason), names in counted.items()]
    return sorted(rows, key=lambda row: (row[0], -row[2], row[1]))


def _short(model: str) -> str:
    """The name without organisation, folder and suffix."""
    return model.rsplit("/", 1)[-1].removesuffix(".yaml")
