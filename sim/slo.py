"""Service level objectives: which requests met them, and whether the run as a whole did.

Forms (contract.md): limits per request {ttft: 1.0, tpot: 0.05, attainment: 0.99}; limits on a statistic
{ttft: {p99: 1.0}} (percentiles, mean, max); either for single request classes, which then replace the general ones.
A request that did not finish misses; one output token has no TPOT and no ITL and cannot miss them. A plain limit on
`itl` holds for every gap of a request, a percentile of `itl` for the gaps pooled over requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.errors import InputError, nearest
from sim.quantiles import mean, weighted_mean, weighted_quantile

if TYPE_CHECKING:
    import numpy.typing as npt

    from sim.measured import BoolArray, Columns, Measured
    from sim.units import FloatArray, IntArray

    # Gaps of the finished requests of a mask as (value, multiplicity), values increasing.
    PooledGaps = Callable[[BoolArray], tuple[FloatArray, IntArray]]

COLUMN_OF = {"ttft": "ttft", "tpot": "tpot", "itl": "max_itl", "e2e": "e2e"}


@dataclass(frozen=True)
class Target:
    """One limit in seconds on a statistic (p99, mean, max); statistic None: every request is held to it."""

    metric: str
    limit: float
    statistic: str | None = None

    @property
    def percentile(self) -> float | None:
        """0 to 100; None for a mean and for a limit on every request."""
        if self.statistic == "max":
            return 100.0
        return float(self.statistic[1:]) if self.statistic and self.statistic != "mean" else None

    @property
    def of_requests(self) -> bool:
        """Whether a single request can be held to it: not to a mean, nor to a percentile of pooled gaps."""
        return self.statistic is None or (self.metric != "itl" and self.percentile is not None)


@dataclass(frozen=True)
class Objective:
    """The targets of one request class (None: of all classes without an objective of their own)."""

    request_class: str | None
    targets: tuple[Target, ...]
    attainment: float | None = None  # share of the offered requests that has to meet the targets of requests

    def limits(self) -> dict[str, float]:
        """The limit that one request is held to, by metric: of several percentiles that of the highest."""
        held = [target for target in self.targets if target.of_requests]
        ordered = sorted(held, key=lambda t: 100.0 if t.percentile is None else t.percentile)
        return {target.metric: target.limit for target in ordered}


def read_slo(slo: object) -> list[Objective]:
    """Objectives from the `slo` of an experiment: None, a mapping (with `classes`), a list of mappings, or its model.

    Raises InputError for an unknown metric or statistic.
    """
    if slo is None:
        return []
    if hasattr(slo, "model_dump"):
        slo = slo.model_dump(exclude_none=True)
    if isinstance(slo, Mapping):
        return _of_mapping(slo)
    if not isinstance(slo, Sequence) or isinstance(slo, str):
        raise InputError(f"slo: expected a mapping or a list of mappings, got {slo!r}")
    return [objective for entry in slo for objective in _of_mapping(entry)]


def owned_by(objectives: Sequence[Objective], classes: npt.NDArray[np.object_]) -> list[BoolArray]:
    """For every objective the mask of the requests it holds for."""
    masks = [np.array(classes == o.request_class, dtype=bool) for o in objectives]
    others = np.ones(len(classes), dtype=bool)
    for objective, mask in zip(objectives, masks, strict=True):
        others &= ~mask | (objective.request_class is None)
    return [others if o.request_class is None else mask for o, mask in zip(objectives, masks, strict=True)]


def meets(objectives: Sequence[Objective], columns: Columns, finished: BoolArray) -> BoolArray:
    """Mask of the requests that finished within every limit of their class."""
    good = finished.copy()
    for objective, mine in zip(objectives, owned_by(objectives, columns["request_class"]), strict=True):
        for metric, limit in objective.limits().items():
            good &= ~mine | ~(columns[COLUMN_OF[metric]] > limit)
    return good


def verdicts(objectives: Sequence[Objective], measured: Measured, pooled: PooledGaps) -> list[dict[str, Any]]:
    """One row a target and one a demanded attainment: request_class, metric, statistic, limit, value, share, met.

    `share`: offered requests within the limit. `value`: the statistic over offered requests, misses counting as
    infinitely late (None then). `met`: None for a limit that only the attainment judges.
    """
    good = meets(objectives, measured.columns, measured.finished)
    rows: list[dict[str, Any]] = []
    for objective, mine in zip(objectives, owned_by(objectives, measured.columns["request_class"]), strict=True):
        mine = mine & measured.offered
        rows += [_target_row(objective, target, measured, mine, pooled) for target in objective.targets]
        if objective.attainment is not None:
            rows.append(_attainment_row(objective, good, mine))
    return rows


def _target_row(
    objective: Objective, target: Target, measured: Measured, mine: BoolArray, pooled: PooledGaps
) -> dict[str, Any]:
    values = measured.columns[COLUMN_OF[target.metric]]
    applies = mine & ~(measured.finished & np.isnan(values))  # one output token: no TPOT
    done, count = applies & measured.finished, int(applies.sum())
    share = int((values[done] <= target.limit).sum()) / count if count and target.of_requests else None
    if target.statistic is None or not done.any():
        value = None
    elif target.metric == "itl":
        value = _pooled_value(target, *pooled(done))
    else:
        value = _value(target, values[done], count)
    met = None if target.statistic is None or not count else value is not None and value <= target.limit
    return _row(objective, target.metric, target.statistic, target.limit, value, share, met)


def _attainment_row(objective: Objective, good: BoolArray, mine: BoolArray) -> dict[str, Any]:
    count, limit = int(mine.sum()), objective.attainment
    share = int((mine & good).sum()) / count if count else None
    met = None if share is None or limit is None else share >= limit
    return _row(objective, "attainment", None, limit, share, share, met)


def _row(objective: Objective, *values: object) -> dict[str, Any]:
    names = ("request_class", "metric", "statistic", "limit", "value", "share", "met")
    return dict(zip(names, (objective.request_class, *values), strict=True))


def _value(target: Target, values: FloatArray, count: int) -> float | None:
    """The statistic of `values` and of `count - len(values)` infinitely late ones; None when that is infinite."""
    missed = count - len(values)
    if target.percentile is None:
        return None if missed else mean(values)
    if math.ceil((count - 1) * target.percentile / 100) >= len(values):
        return None
    return float(np.quantile(np.append(values, np.full(missed, values.max())), target.percentile / 100))


def _pooled_value(target: Target, values: FloatArray, multiplicities: IntArray) -> float | None:
    if len(values) == 0:
        return None
    if target.percentile is None:
        return weighted_mean(values, multiplicities)
    return float(weighted_quantile(values, multiplicities, [target.percentile / 100])[0])


def _of_mapping(slo: Mapping[str, Any]) -> list[Objective]:
    general = {key: value for key, value in slo.items() if value is not None}
    classes = general.pop("classes", {})
    own = [_objective({"attainment": general.get("attainment"), **entry}, name) for name, entry in classes.items()]
    return own + ([_objective(general, general.pop("request_class", None))] if general else [])


def _objective(entry: Mapping[str, Any], request_class: str | None) -> Objective:
    targets = {key: value for key, value in entry.items() if value is not None}
    attainment = targets.pop("attainment", None)
    read = [target for metric, limit in targets.items() for target in _targets(metric, limit)]
    return Objective(request_class, tuple(read), None if attainment is None else float(attainment))


def _targets(metric: str, limit: Any) -> list[Target]:
    if metric not in COLUMN_OF:
        raise InputError(f"slo: unknown metric '{metric}'{nearest(metric, COLUMN_OF)}; known: {', '.join(COLUMN_OF)}")
    if isinstance(limit, Mapping):
        return [Target(metric, float(v), _statistic(metric, key)) for key, v in limit.items() if v is not None]
    return [Target(metric, float(limit))]


def _statistic(metric: str, key: str) -> str:
    try:
        known = key in ("mean", "max") or (key[:1] == "p" and 0 <= float(key[1:]) <= 100)
    except ValueError:
        known = False
    if not known:
        raise InputError(f"slo.{metric}: unknown statistic '{key}'; allowed: mean, max, and percentiles such as p99")
    return key
