"""The constants of an engine and its client, fitted on measured servers: few, the same for all models and GPUs.

Kernel coefficients come from kernel measurements and are not touched here. Each load stage of each clean run gives
its mean time per output token and its median TTFT, each run the median TTFT of its last cold prompts; least squares
on the relative errors, by Gauss-Newton with the simulator itself on the first requests of each stage. The client's
two constants add to TTFT and are exact in that. Standard errors are those of the linearised problem with independent
errors of equal size: they say what the data can tell apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from sim.cost.profile import load_fitted
from sim.errors import InputError
from sim.hardware import load_gpu
from sim.validation.case import Case, Observed, relative_errors, request_metrics
from sim.validation.replay import ENGINE, Prediction, Replay, predict, replay
from sim.workload.rows import select_rows

if TYPE_CHECKING:
    from sim.units import FloatArray, IntArray

SIMULATED = ("small_ops_scale", "mixed_step_per_layer", "eager_step_per_layer")  # change the course of a run
CLIENT = ("client_latency", "client_latency_per_sequence")  # add to TTFT afterwards
CONSTANTS = (*SIMULATED, *CLIENT)
SAMPLER = ("sampler", "sampler_per_logit")  # can only be told on models that are sampled with top_p or top_k
STAGE_REQUESTS = 1500  # of each stage are simulated for a fit
TRAILING = 250  # of them only keep up the load: not compared
# Of time per token, TTFT, and TTFT of cold prompts: repeated runs agree within 0.3, 1 and several per cent.
WEIGHTS = (1.0, 0.5, 0.25)
COLD = slice(50, 100)  # rows of a run whose prompts are new while the server is warm
STEP = 0.1  # relative step of the difference quotients
CONVERGED = 0.01  # relative change of every constant
MOST_ROUNDS = 4


@dataclass(frozen=True)
class ServerFit:
    """Fitted constants (seconds, but `small_ops_scale`), their standard errors and correlations."""

    values: dict[str, float]
    standard_errors: dict[str, float]
    correlations: FloatArray  # in the order of `values`
    condition: float  # of the scaled problem
    residual: float  # root mean square of the relative errors that were fitted
    num_residuals: int
    jacobian: FloatArray = field(repr=False)
    residuals: FloatArray = field(repr=False)
    owners: tuple[str, ...] = field(repr=False)  # model of each residual
    rounds: int = 0
    gpus: frozenset[str] = frozenset()  # whose runs were fitted, by catalogue name

    def without(self, model: str) -> dict[str, float]:
        """The constants that the other models alone give, by one step from the full fit."""
        keep = np.array([owner != model for owner in self.owners])
        if not keep.any():
            raise InputError(f"no run is left when those of {model} are taken out")
        names = tuple(self.values)
        start = np.array(list(self.values.values()))
        step = _solve(self.jacobian[keep], self.residuals[keep], names, start)
        return dict(zip(names, _positive(start + step).tolist(), strict=True))


def fit_server_constants(
    cases: Sequence[Case],
    progress: Callable[[str], None] | None = None,
    *,
    names: tuple[str, ...] = CONSTANTS,
    others: Mapping[str, float] | None = None,
) -> ServerFit:
    """Fit the constants `names`, starting from the profile's own; `others` are held at the values given.

    Runs that were measured request by request are shortened; of others the means are compared, over the first seed.
    Overloaded runs must not be among them (their latencies multiply every error). Raises `InputError` for fewer
    residuals than constants.
    """
    cases = [case if case.requests is None else shortened(case) for case in cases]
    start = _start(cases) | dict(others or {})
    values = np.array([start[name] for name in names])
    say = progress or (lambda text: None)
    jacobian, residuals, rounds = np.empty((0, 0)), np.empty(0), 0
    owners: tuple[str, ...] = ()
    for rounds in range(1, MOST_ROUNDS + 1):
        jacobian, residuals, owners = _linearised(cases, names, values, start, say)
        if len(residuals) < len(names):
            raise InputError(f"{len(residuals)} measured values cannot fix {len(names)} constants")
        step = _solve(jacobian, residuals, names, values)
        moved = _positive(values + step)
        change = np.max(np.abs(moved - values) / np.maximum(np.abs(values), 1e-12))
        values, residuals = moved, residuals + jacobian @ (moved - values)
        say(f"round {rounds}: " + ", ".join(f"{n} {v:.3g}" for n, v in zip(names, values, strict=True)))
        if change < CONVERGED:
            break
    fit = _fit(names, values, jacobian, residuals, owners, rounds)
    return replace(fit, gpus=frozenset(load_gpu(case.gpu).name for case in cases))


def leave_one_model_out(cases: Sequence[Case], fit: ServerFit) -> list[Prediction]:
    """Every case predicted with constants to which its own model gave nothing."""
    by_model = {model: fit.without(model) for model in dict.fromkeys(case.model for case in cases)}
    return [predict(case, constants=by_model[case.model]) for case in cases]


def _start(cases: Sequence[Case]) -> dict[str, float]:
    if not cases:
        raise InputError("no runs to fit the server constants on")
    constants = load_fitted(load_gpu(cases[0].gpu).name).engines[ENGINE]
    return {name: float(getattr(constants, name)) for name in (*CONSTANTS, *SAMPLER)}


def _linearised(
    cases: Sequence[Case],
    names: tuple[str, ...],
    values: FloatArray,
    start: Mapping[str, float],
    say: Callable[[str], None],
) -> tuple[FloatArray, FloatArray, tuple[str, ...]]:
    """Jacobian and residuals of all cases at `values`, and the model of each residual."""
    jacobians, residuals, owners = [], [], []
    for case in cases:
        jacobian, residual = _case_linearised(case, names, values, start)
        jacobians.append(jacobian)
        residuals.append(residual)
        owners += [case.model] * len(residual)
        say(f"{case.key}: root mean square error {np.sqrt(np.mean(residual**2)):.1%}")
    return np.concatenate(jacobians), np.concatenate(residuals), tuple(owners)


def _case_linearised(
    case: Case, names: tuple[str, ...], values: FloatArray, start: Mapping[str, float]
) -> tuple[FloatArray, FloatArray]:
    at = {**start, **dict(zip(names, values.tolist(), strict=True))}
    base, run = _residuals(case, at)
    columns = []
    for name in names:
        step = STEP * max(at[name], _SCALES[name])
        other, _ = _residuals(case, {**at, name: at[name] + step}, run if name in CLIENT else None)
        columns.append((other - base) / step)
    return np.stack(columns, axis=1), base


_SCALES = {  # steps where a constant is 0
    "small_ops_scale": 0.5,
    "mixed_step_per_layer": 4e-5,
    "eager_step_per_layer": 1e-4,
    "client_latency": 5e-3,
    "client_latency_per_sequence": 5e-5,
    "sampler": 1e-4,
    "sampler_per_logit": 1e-10,
}


def _residuals(case: Case, constants: Mapping[str, float], run: Replay | None = None) -> tuple[FloatArray, Replay]:
    """Relative errors of one case, and its run without the client's latency (taken from `run` when given)."""
    base, each = (constants[name] for name in CLIENT)
    if run is None:
        run = replay(case, constants={**constants, **dict.fromkeys(CLIENT, 0.0)})
    added = base + each * run.running_at_first_token
    return compare(case, run.ttft + added, run.e2e + added, run.num_output_tokens), run


def shortened(case: Case, most: int = STAGE_REQUESTS, trailing: int = TRAILING) -> Case:
    """The case with the first `most` requests of each stage, the last `trailing` of which count as not measured."""
    observed = case.requests
    assert observed is not None
    ends = (*observed.stage_starts[1:], len(observed.ttft))
    rows: list[int] = []
    unseen: list[bool] = []
    starts = [0]
    for start, end in zip(observed.stage_starts, ends, strict=True):
        stop = min(end, start + most)
        rows += range(start, stop)
        unseen += [stop - start > trailing and stop < end and row >= stop - trailing for row in range(start, stop)]
        starts.append(len(rows))
    index = np.array(rows, dtype=np.int64)
    ttft, e2e = (np.where(unseen, np.nan, column[index]) for column in (observed.ttft, observed.e2e))
    return replace(
        case,
        make_workload=lambda seed: select_rows(case.make_workload(seed), index),
        requests=Observed(ttft, e2e, tuple(starts[:-1])),
    )


def compare(case: Case, ttft: FloatArray, e2e: FloatArray, outputs: IntArray) -> FloatArray:
    """Weighted relative errors to make small: by stage time per token and median TTFT; TTFT of cold prompts.

    Where only means were measured: time per token and mean TTFT.
    """
    if case.requests is None:
        errors = relative_errors(request_metrics(ttft, e2e, outputs), case.measured)
        return np.array([WEIGHTS[0] * errors["tpot.mean"], WEIGHTS[1] * errors["ttft.mean"]])
    return _compare_requests(case.requests, ttft, e2e)


def _compare_requests(observed: Observed, ttft: FloatArray, e2e: FloatArray) -> FloatArray:
    both = np.isfinite(observed.e2e) & np.isfinite(e2e)
    starts = (*observed.stage_starts, len(ttft))
    errors = []
    for start, end in pairwise(starts):
        rows = np.flatnonzero(both[start:end]) + start
        per_token = (e2e - ttft)[rows].mean() / (observed.e2e - observed.ttft)[rows].mean()
        first = np.median(ttft[rows]) / np.median(observed.ttft[rows])
        errors += [WEIGHTS[0] * (per_token - 1.0), WEIGHTS[1] * (first - 1.0)]
    cold = np.flatnonzero(both[COLD]) + COLD.start
    if len(cold):
        errors.append(WEIGHTS[2] * (np.median(ttft[cold]) / np.median(observed.ttft[cold]) - 1.0))
    return np.array(errors)


def _solve(jacobian: FloatArray, residuals: FloatArray, names: Sequence[str], values: FloatArray) -> FloatArray:
    """The Gauss-Newton step, columns scaled to the constants' own size."""
    scale = _scale(names, values)
    step, *_ = np.linalg.lstsq(jacobian * scale, -residuals, rcond=None)
    return np.asarray(step * scale)


def _scale(names: Sequence[str], values: FloatArray) -> FloatArray:
    return np.maximum(np.abs(values), [_SCALES[name] for name in names])


def _positive(values: FloatArray) -> FloatArray:
    return np.maximum(values, 0.0)


def _fit(
    names: Sequence[str],
    values: FloatArray,
    jacobian: FloatArray,
    residuals: FloatArray,
    owners: Sequence[str],
    rounds: int,
) -> ServerFit:
    scale = _scale(names, values)
    scaled = jacobian * scale
    freedom = max(len(residuals) - len(names), 1)
    variance = float(residuals @ residuals) / freedom
    covariance = variance * np.linalg.pinv(scaled.T @ scaled)
    deviation = np.sqrt(np.diag(covariance))
    return ServerFit(
        values=dict(zip(names, values.tolist(), strict=True)),
        standard_errors=dict(zip(names, (deviation * scale).tolist(), strict=True)),
        correlations=covariance / np.outer(deviation, deviation),
        condition=float(np.linalg.cond(scaled)),
        residual=float(np.sqrt(np.mean(residuals**2))),
        num_residuals=len(residuals),
        jacobian=jacobian,
        residuals=residuals,
        owners=tuple(owners),
        rounds=rounds,
    )
