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
from sim.validation.case import Case, Observed
from sim.validation.replay import ENGINE, Prediction, Replay, predict, replay
from sim.workload.rows import select_rows

if TYPE_CHECKING:
    from sim.units import FloatArray

SIMULATED = ("small_ops_scale", "mixed_step_per_layer", "eager_step_per_layer")  # change the course of a run
CLIENT = ("client_latency", "client_latency_per_sequence")  # add to TTFT afterwards
CONSTANTS = (*SIMULATED, *CLIENT)
STAGE_REQUESTS = 1500  # of each stage are simulated for a fit
TRAILING = 250  # of them only keep up the load: not compared
# Of time per token, TTFT, and TTFT of cold prompts: repeated runs agree within 0.3, 1 and several per cent.
WEIGHTS = (1.0, 0.5, 0.25)
COLD = slice(50, 100)  # rows of a run whose prompts are new while the server is warm
STEP = 0.1  # relative step of the difference quotients
CONVERGED = 0.01  # relative change of every constant
MOST_ROUNDS = 3


@dataclass(frozen=True)
class ServerFit:
    """Fitted constants (seconds, but `small_ops_scale`), their standard errors and correlations."""

    values: dict[str, float]
    standard_errors: dict[str, float]
    correlations: FloatArray  # in the order of `CONSTANTS`
    condition: float  # of the scaled problem
    residual: float  # root mean square of the relative errors that were fitted
    num_residuals: int
    jacobian: FloatArray = field(repr=False)
    residuals: FloatArray = field(repr=False)
    owners: tuple[str, ...] = field(repr=False)  # model of each residual
    rounds: int = 0

    def without(self, model: str) -> dict[str, float]:
        """The constants that the other models alone give, by one step from the full fit."""
        keep = np.array([owner != model for owner in self.owners])
        if not keep.any():
            raise InputError(f"no run is left when those of {model} are taken out")
        start = np.array([self.values[name] for name in CONSTANTS])
        step = _solve(self.jacobian[keep], self.residuals[keep], start)
        return dict(zip(CONSTANTS, _positive(start + step).tolist(), strict=True))


def fit_server_constants(cases: Sequence[Case], progress: Callable[[str], None] | None = None) -> ServerFit:
    """Fit `CONSTANTS` on runs that were measured request by request, starting from the profile's own.

    Overloaded runs must not be among them (their latencies multiply every error). Raises `InputError` for runs without
    measured requests or fewer residuals than constants.
    """
    for case in cases:
        if case.requests is None:
            raise InputError(f"{case.key}: has no measured requests to fit on")
    cases = [shortened(case) for case in cases]
    values = _start(cases)
    say = progress or (lambda text: None)
    jacobian, residuals, owners, rounds = np.empty((0, 0)), np.empty(0), (), 0
    for rounds in range(1, MOST_ROUNDS + 1):
        jacobian, residuals, owners = _linearised(cases, values, say)
        if len(residuals) < len(CONSTANTS):
            raise InputError(f"{len(residuals)} measured values cannot fix {len(CONSTANTS)} constants")
        step = _solve(jacobian, residuals, values)
        moved = _positive(values + step)
        change = np.max(np.abs(moved - values) / np.maximum(np.abs(values), 1e-12))
        values, residuals = moved, residuals + jacobian @ (moved - values)
        say(f"round {rounds}: " + ", ".join(f"{n} {v:.3g}" for n, v in zip(CONSTANTS, values, strict=True)))
        if change < CONVERGED:
            break
    return _fit(values, jacobian, residuals, owners, rounds)


def leave_one_model_out(cases: Sequence[Case], fit: ServerFit) -> list[Prediction]:
    """Every case predicted with constants to which its own model gave nothing."""
    by_model = {model: fit.without(model) for model in dict.fromkeys(case.model for case in cases)}
    return [predict(case, constants=by_model[case.model]) for case in cases]


def _start(cases: Sequence[Case]) -> FloatArray:
    if not cases:
        raise InputError("no runs to fit the server constants on")
    constants = load_fitted(load_gpu(cases[0].gpu).name).engines[ENGINE]
    return np.array([float(getattr(constants, name)) for name in CONSTANTS])


def _linearised(
    cases: Sequence[Case], values: FloatArray, say: Callable[[str], None]
) -> tuple[FloatArray, FloatArray, tuple[str, ...]]:
    """Jacobian and residuals of all cases at `values`, and the model of each residual."""
    jacobians, residuals, owners = [], [], []
    for case in cases:
        jacobian, residual = _case_linearised(case, values)
        jacobians.append(jacobian)
        residuals.append(residual)
        owners += [case.model] * len(residual)
        say(f"{case.key}: root mean square error {np.sqrt(np.mean(residual**2)):.1%}")
    return np.concatenate(jacobians), np.concatenate(residuals), tuple(owners)


def _case_linearised(case: Case, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    base = _residuals(case, values)
    columns = []
    for i, name in enumerate(CONSTANTS):
        moved = values.copy()
        moved[i] += STEP * max(values[i], _SCALES[name])
        other = _residuals(case, moved, None if name in SIMULATED else base[1])
        columns.append((other[0] - base[0]) / (moved[i] - values[i]))
    return np.stack(columns, axis=1), base[0]


_SCALES = {  # steps where a constant is 0
    "small_ops_scale": 0.5,
    "mixed_step_per_layer": 4e-5,
    "eager_step_per_layer": 1e-4,
    "client_latency": 5e-3,
    "client_latency_per_sequence": 5e-5,
}


def _residuals(case: Case, values: FloatArray, run: Replay | None = None) -> tuple[FloatArray, Replay]:
    """Relative errors of one case, and its run without the client's latency (taken from `run` when given)."""
    constants = dict(zip(CONSTANTS, values.tolist(), strict=True))
    base, each = (constants[name] for name in CLIENT)
    if run is None:
        run = replay(case, constants=constants | dict.fromkeys(CLIENT, 0.0))
    added = base + each * run.running_at_first_token
    return compare(case, run.ttft + added, run.e2e + added), run


def shortened(case: Case, most: int = STAGE_REQUESTS, trailing: int = TRAILING) -> Case:
    """The case with the first `most` requests of each stage, the last `trailing` of which count as not measured."""
    observed = case.requests
    assert observed is not None
    ends = (*observed.stage_starts[1:], len(observed.ttft))
    rows, unseen, starts = [], [], [0]
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


def compare(case: Case, ttft: FloatArray, e2e: FloatArray) -> FloatArray:
    """Weighted relative errors to make small: by stage time per token and median TTFT; TTFT of cold prompts."""
    observed = case.requests
    assert observed is not None
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


def _solve(jacobian: FloatArray, residuals: FloatArray, values: FloatArray) -> FloatArray:
    """The Gauss-Newton step, columns scaled to the constants' own size."""
    scale = _scale(values)
    step, *_ = np.linalg.lstsq(jacobian * scale, -residuals, rcond=None)
    return np.asarray(step * scale)


def _scale(values: FloatArray) -> FloatArray:
    return np.maximum(np.abs(values), [_SCALES[name] for name in CONSTANTS])


def _positive(values: FloatArray) -> FloatArray:
    return np.maximum(values, 0.0)


def _fit(
    values: FloatArray, jacobian: FloatArray, residuals: FloatArray, owners: Sequence[str], rounds: int
) -> ServerFit:
    scale = _scale(values)
    scaled = jacobian * scale
    freedom = max(len(residuals) - len(CONSTANTS), 1)
    variance = float(residuals @ residuals) / freedom
    covariance = variance * np.linalg.pinv(scaled.T @ scaled)
    deviation = np.sqrt(np.diag(covariance))
    return ServerFit(
        values=dict(zip(CONSTANTS, values.tolist(), strict=True)),
        standard_errors=dict(zip(CONSTANTS, (deviation * scale).tolist(), strict=True)),
        correlations=covariance / np.outer(deviation, deviation),
        condition=float(np.linalg.cond(scaled)),
        residual=float(np.sqrt(np.mean(residuals**2))),
        num_residuals=len(residuals),
        jacobian=jacobian,
        residuals=residuals,
        owners=tuple(owners),
        rounds=rounds,
    )


def as_table(fit: ServerFit) -> list[Mapping[str, float | str]]:
    """Constants with standard errors, a row each."""
    return [
        {"constant": name, "value": fit.values[name], "standard_error": fit.standard_errors[name]} for name in CONSTANTS
    ]
