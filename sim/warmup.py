"""How many requests belong to the warm-up of a run: stated, or found by MSER-5 from the latencies themselves.

MSER (White, 1997; with batches of five: Spratt, 1998) leaves out the first values of a series so that the standard
error of the mean of the rest is least. A cut beyond half of the series means that it never settled: then nothing may be
left out, for the rest would be no better.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from sim.units import FloatArray

    BoolArray = npt.NDArray[np.bool_]

BATCH = 5  # values that are averaged before the search, which makes it robust
SERIES = ("ttft", "tpot")  # a queue that fills shows in the one, a batch that fills in the other


def mser(values: FloatArray, batch: int = BATCH) -> int | None:
    """Values at the beginning of a series that belong to its transient; None when the series does not settle."""
    means = values[: len(values) // batch * batch].reshape(-1, batch).mean(axis=1)
    if len(means) < 4:
        return None
    left = np.arange(len(means), 0, -1)  # batches from each one on
    shifted = means - means.mean()  # the variance of large, nearly equal values would cancel out
    sums, squares = np.cumsum(shifted[::-1])[::-1], np.cumsum((shifted * shifted)[::-1])[::-1]
    errors = (squares - sums * sums / left) / (left * left)
    # The last few batches agree by chance: a rule of the method, not of ours.
    cut = int(np.argmin(errors[: len(means) - BATCH])) if len(means) > BATCH else 0
    return cut * batch if cut <= len(means) // 2 else None


def found_warmup(arrival: FloatArray, columns: Mapping[str, npt.NDArray[Any]]) -> tuple[int, bool]:
    """Requests (first to arrive) of the warm-up, the larger cut of the `SERIES`; and whether all of them settled."""
    order = np.argsort(arrival, kind="stable")
    cuts = []
    for name in SERIES:
        series = columns[name][order].astype(np.float64)
        there = np.flatnonzero(~np.isnan(series))
        cut = mser(series[there])
        cuts.append(None if cut is None else int(there[cut]) if cut else 0)
    settled = [cut for cut in cuts if cut is not None]
    return max(settled, default=0), len(settled) == len(cuts)


def warmup_mask(arrival: FloatArray, config: object, columns: Mapping[str, npt.NDArray[Any]]) -> BoolArray:
    """Mask of the warm-up: the first `warmup_requests` to arrive, whoever arrives before `warmup_duration`, or `auto`.

    `columns`: those of requests.parquet, of which `auto` looks at `SERIES`.
    """
    metrics = getattr(config, "metrics", None)
    number = getattr(metrics, "warmup_requests", None) or 0
    if is_auto(config):
        number = max(number, found_warmup(arrival, columns)[0])
    first = np.zeros(len(arrival), dtype=bool)
    first[np.argsort(arrival, kind="stable")[:number]] = True
    return first | (arrival < (getattr(metrics, "warmup_duration", None) or 0.0))


def is_auto(config: object) -> bool:
    """Whether the warm-up is to be found."""
    return getattr(getattr(config, "metrics", None), "warmup", None) == "auto"
