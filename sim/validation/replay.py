"""Simulating a measured run with the simulator itself: an experiment configuration and the run's own workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.build import PoolBuilder, build, make_slot
from sim.config import ExperimentConfig, experiment_from_values
from sim.cost.profile import EngineConstants, fitted_names, load_fitted
from sim.engine import Simulation
from sim.hardware import load_gpu
from sim.measured import measure
from sim.result import Status
from sim.seeds import Seeds
from sim.validation.case import Case, relative_errors, request_metrics
from sim.validation.early import HostBoundCost

if TYPE_CHECKING:
    from sim.clock import Clock
    from sim.engine import EndFunction
    from sim.replica import Replica
    from sim.result import RunResult
    from sim.units import FloatArray, IntArray
    from sim.workload.base import Workload
    from sim.workload.columns import Columns

ENGINE = "vllm-0.15"  # whose constants are used unless a case names others


@dataclass(frozen=True)
class Replay:
    """One simulated run: a value a request, in row order (nan: not finished), and totals."""

    ttft: FloatArray  # seconds, as the client sees them
    e2e: FloatArray
    num_output_tokens: IntArray
    running_at_first_token: IntArray
    num_blocks: int
    num_preemptions: int
    hit_rate: float
    duration: float  # seconds from the first arrival to the last end
    wall_seconds: float
    extrapolation: tuple[str, ...]

    def metrics(self) -> dict[str, float]:
        """Every metric of `sim.validation.case`."""
        values = request_metrics(self.ttft, self.e2e, self.num_output_tokens)
        done = np.isfinite(self.e2e)
        values["output_token_throughput"] = float(self.num_output_tokens[done].sum()) / self.duration
        values["request_throughput"] = float(done.sum()) / self.duration
        return values


@dataclass(frozen=True)
class Prediction:
    """A case with its predicted metrics, averaged over seeds, and their spread."""

    case: Case
    predicted: dict[str, float]
    spread: dict[str, float] = field(default_factory=dict)  # standard deviation over seeds, relative
    replay: Replay | None = None  # of the first seed

    @property
    def errors(self) -> dict[str, float]:
        """predicted / measured - 1 by metric."""
        return relative_errors(self.predicted, self.case.measured)


def predict(
    case: Case, seeds: tuple[int, ...] | None = None, constants: Mapping[str, float] | None = None
) -> Prediction:
    """Simulate `case` for its seeds (or those given) and average; `constants` replace the engine's in the profile."""
    replays = [replay(case, seed, constants) for seed in (seeds or case.seeds)]
    rows = [run.metrics() for run in replays]
    names = [name for name in rows[0] if all(name in row for row in rows)]
    values = {name: np.array([row[name] for row in rows]) for name in names}
    mean = {name: float(column.mean()) for name, column in values.items()}
    spread = {name: float(column.std() / column.mean()) if column.mean() else 0.0 for name, column in values.items()}
    return Prediction(case, mean, spread, replays[0])


def replay(case: Case, seed: int = 1, constants: Mapping[str, float] | None = None) -> Replay:
    """Simulate `case` once. `InputError` where a fact about its model or GPU is missing."""
    config = configuration(case, seed, constants)
    simulation = _simulation(config, case.make_workload(seed), case)
    return _observed(simulation.run(), simulation, config)


def configuration(case: Case, seed: int = 1, constants: Mapping[str, float] | None = None) -> ExperimentConfig:
    """The experiment of a case. Its workload section only names the data set: the requests are given beside it."""
    cluster = dict(case.cluster or {"pools": [case.pool]})
    cluster["pools"] = [{**pool, "cost_model": _cost_model(case, pool, constants)} for pool in cluster["pools"]]
    client: dict[str, Any] = {"timeout": case.timeout}
    if case.client:
        engine = asdict(_engine_constants(case.gpu) or EngineConstants()) | dict(constants or {})
        client["base_latency"] = engine["client_latency"]
        client["latency_per_running_sequence"] = engine["client_latency_per_sequence"]
    values = {"seed": seed, "workload": {"trace": case.key}, "cluster": cluster, "client": client}
    return experiment_from_values(values, Path(), shown_as=case.key)


def _cost_model(case: Case, pool: Mapping[str, Any], constants: Mapping[str, float] | None) -> dict[str, Any]:
    """The cost section of a pool: fitted with the engine's constants where its GPU has a profile, else roofline."""
    given = dict(pool.get("cost_model", {}))
    kind = given.setdefault("kind", "roofline" if _engine_constants(str(pool["gpu"])) is None else "fitted")
    if kind != "fitted":
        given.pop("top_p", None)  # only the fitted model knows a sampler
        return given
    if case.host is None:  # an early engine has its own
        given |= {name: value for name, value in (constants or {}).items() if not name.startswith("client_")}
    return {"engine": ENGINE, **given}


@cache
def _engine_constants(gpu: str) -> EngineConstants | None:
    """The engine's constants of a GPU's fitted profile; None without a profile."""
    name = load_gpu(gpu).name
    return load_fitted(name).engines[ENGINE] if name in fitted_names() else None


def _simulation(config: ExperimentConfig, workload: Workload, case: Case) -> Simulation:
    if case.cluster is not None:
        return build(config, workload=workload)
    seeds = Seeds(config.seed)
    builder = PoolBuilder(config, 0, step_by_step=False, step_log=False)
    if case.host is not None:
        builder.cost = HostBoundCost(builder.cost, builder.model.num_layers, case.host)

    def make_replicas(clock: Clock, on_end: EndFunction, columns: Columns) -> list[Replica]:
        return [builder.replica(index, clock, on_end, columns) for index in range(builder.pool.replicas)]

    router: Any = make_slot(config, "router", seeds)
    admission: Any = make_slot(config, "admission", seeds)
    return Simulation(workload, make_replicas, router, admission, client_timeout=config.client.timeout)


def _observed(result: RunResult, simulation: Simulation, config: ExperimentConfig) -> Replay:
    measured = measure(result, simulation.workload, config)
    columns, raw = measured.columns, result.requests
    finished = raw["status"] == Status.FINISHED
    looked_up = sum(replica.num_lookup_tokens for replica in result.replicas)
    hits = sum(replica.num_hit_tokens for replica in result.replicas)
    costs = {id(replica.cost): replica.cost for replica in simulation.replicas}
    notes = dict.fromkeys(note for cost in costs.values() for note in getattr(cost, "extrapolation", list)())
    return Replay(
        ttft=np.where(finished, columns["ttft"], np.nan),
        e2e=columns["e2e"],
        num_output_tokens=raw["num_output_tokens"],
        running_at_first_token=raw["num_running_at_first_token"],
        num_blocks=simulation.replicas[0].kv.num_blocks,
        num_preemptions=int(raw["num_preemptions"].sum()),
        hit_rate=hits / looked_up if looked_up else 0.0,
        duration=float(np.nanmax(raw["finish_time"]) - np.nanmin(raw["arrival_time"])),
        wall_seconds=result.wall_seconds,
        extrapolation=tuple(notes),
    )
