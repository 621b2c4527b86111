"""Carrying out a plan: bounds, search, the winner simulated afresh, its headroom, and the table of candidates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sim import __version__
from sim.config import ExperimentConfig, experiment_from_values, resolved
from sim.errors import InputError, RunError
from sim.hardware import HardwareProfile, load_gpu
from sim.seeds import Seeds
from sim.slo import read_slo
from sim.study.bounds import Demand, bounds_of, explain_limit
from sim.study.economics import economics_row, error_band, nearest_feasible, power_row
from sim.study.folder import StudyFolder, study_folder
from sim.study.jobs import INPUT_ERROR, Done, Job
from sim.study.keys import run_key
from sim.study.plan_config import Plan, load_plan
from sim.study.plan_table import candidate_row, load_row, price_row, trial_rows
from sim.study.points import shown
from sim.study.search import Candidate, Key, Search, Trial
from sim.study.sweep import Progress, Workers, carry_out, keep_workers
from sim.yamlfile import YamlFile

MARK = "plan.yaml"
RESULT = "plan.json"
_FRESH = 1000  # distance of the seeds that the winner is verified with
_LOADS = 5  # halvings of the step to the knee
_MOST_LOAD = 4.0
_SCREENED = 0.2  # share of a trace that is simulated first
_LEAST_SCREENED = 2000  # requests of a trace that is worth screening


@dataclass(frozen=True)
class PlanOutcome:
    """A finished plan. `document` is plan.json."""

    directory: Path
    document: dict[str, Any]

    @property
    def winner(self) -> dict[str, Any] | None:
        """The cheapest deployment; None when none meets the SLO."""
        found: dict[str, Any] | None = self.document["winner"]
        return found


@dataclass
class Planner:
    """What the steps of a plan share."""

    plan: Plan
    demand: Demand
    folder: StudyFolder
    workers: Workers
    progress: Progress | None
    num_runs: int = 0
    loads: list[dict[str, Any]] = field(default_factory=list)  # what the winner did at other loads

    def seeds(self) -> range:
        """Seeds that all must meet the SLO: one for a trace, which has no randomness of its own, else two."""
        number = self.plan.config.replications or (1 if "trace" in self.plan.workload else 2)
        return range(self.plan.config.seed, self.plan.config.seed + number)

    def ask(self, wave: list[tuple[Candidate, int]]) -> list[Trial]:
        """Simulate every candidate of a wave with its number of replicas; first a part that may refute it."""
        refuted = self._screen(wave)
        rest = [(c, n, self.seeds(), 1.0) for (c, n), trial in zip(wave, refuted, strict=True) if trial is None]
        whole = iter(self.simulate(rest))
        return [trial if trial is not None else next(whole) for trial in refuted]

    def _screen(self, wave: list[tuple[Candidate, int]]) -> list[Trial | None]:
        """For each of a wave the trial that the busiest part of a trace decides against it, or None.

        The latencies of that part are no better with the rest of the trace around it. So when more of its requests are
        late than may be late in all, the whole run need not be made.
        """
        size, allowed = self.screen_size()
        if size == 0:
            return [None] * len(wave)
        first = self.plan.config.seed
        jobs = [self._job(c, replicas, first, 1.0, size) for c, replicas in wave]
        self._carry_out(jobs)
        return [self._refuted(job, n, size, allowed) for job, (_, n) in zip(jobs, wave, strict=True)]

    def _carry_out(self, jobs: list[Job]) -> dict[str, Done]:
        done, _ = carry_out(self.folder, jobs, self.workers, self.progress, refuse=False)
        self.num_runs += len(done)
        return done

    def _refuted(self, job: Job, replicas: int, size: int, allowed: float) -> Trial | None:
        if not self.folder.has(job.key):
            return None
        summary = self.folder.summary(job.key)
        late = round((1 - summary["slo_attainment"]) * summary["num_requests"])
        if late <= allowed:
            return None
        note = (
            f"of the busiest {size:,} requests {late:,} miss a target, more than the {int(allowed):,} that may in all"
        )
        return Trial(replicas, False, note=note)

    def screen_size(self) -> tuple[int, float]:
        """Requests of a screening run, and how many of all may be late; 0 where a part would tell nothing."""
        objectives, total = read_slo(self.plan.config.slo), len(self.demand.prompt)
        is_plain = set(self.plan.workload) <= {"trace", "format", "limit", "rate_scale"}
        attainment = objectives[0].attainment if len(objectives) == 1 else None
        if total < _LEAST_SCREENED or not is_plain or "trace" not in self.plan.workload or attainment is None:
            return 0, 0.0
        if self.plan.config.metrics is not None or objectives[0].request_class is not None:
            return 0, 0.0
        return math.ceil(total * _SCREENED), (1 - attainment) * total

    def simulate(self, wanted: Sequence[tuple[Candidate, int, range, float]]) -> list[Trial]:
        """Trials of (candidate, replicas, seeds, load), all runs together."""
        jobs = [[self._job(c, replicas, seed, load) for seed in seeds] for c, replicas, seeds, load in wanted]
        flat = [job for own in jobs for job in own]
        done = self._carry_out(flat)
        errors: dict[str, str | None] = {key: result.error for key, result in done.items() if result.error}
        wrong = [result for result in done.values() if result.error and result.kind != INPUT_ERROR]
        if wrong:
            raise RunError(str(wrong[0].error))
        return [self._trial(own, replicas, errors) for own, (_, replicas, _, _) in zip(jobs, wanted, strict=True)]

    def _trial(self, jobs: list[Job], replicas: int, errors: dict[str, str | None]) -> Trial:
        failed = [error for job in jobs if (error := errors.get(job.key))]
        if failed:
            return Trial(replicas, False, error=failed[0])
        summaries = tuple(self.folder.summary(job.key) for job in jobs)
        return Trial(replicas, all(meets_slo(summary) for summary in summaries), summaries)

    def config(
        self, candidate: Candidate, replicas: int, seed: int, load: float = 1.0, limit: int | None = None
    ) -> ExperimentConfig:
        """The experiment of a trial, of the busiest `limit` requests of a trace only."""
        values = self.plan.experiment(candidate.values, replicas, seed, load)
        if limit is not None:
            workload = values["workload"]
            start = self.demand.busiest(limit) * workload.get("rate_scale", 1.0)
            values["workload"] = {**workload, "start": start, "limit": limit}
        return experiment_from_values(values, self.plan.base_dir, self.plan.file.name)

    def _job(self, candidate: Candidate, replicas: int, seed: int, load: float, limit: int | None = None) -> Job:
        config = self.config(candidate, replicas, seed, load, limit)
        return Job(run_key(config), f"{label(candidate)}, {replicas} replicas", config)


def make_plan(
    source: Path | YamlFile,
    out: Path | None = None,
    workers: Workers | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    sets: Sequence[str] = (),
) -> PlanOutcome:
    """Read the plan `source`, with `--set` texts over it, and find its cheapest deployment.

    Raises `InputError` for a plan that cannot be made.
    """
    plan = load_plan(source, sets)
    directory = out or Path("out") / plan.config.name
    candidates, demand = _candidates(plan)
    with study_folder(directory, MARK, RESULT, resume) as folder, keep_workers(workers or Workers()) as kept:
        _write_mark(folder, plan)
        planner = Planner(plan, demand, folder, kept, progress)
        search = Search(candidates, plan.config.max_replicas, 2 * kept.count)
        winner, verified = _search(planner, search)
        document = _document(planner, candidates, winner, verified)
        _write(folder, document)
        return PlanOutcome(folder.path, document)


def label(candidate: Candidate) -> str:
    """The values of a candidate for people."""
    return ", ".join(shown(value) if key in ("model", "gpu") else f"{key.split('.')[-1]}={shown(value)}"
                     for key, value in candidate.values.items())  # fmt: skip


def meets_slo(summary: dict[str, Any]) -> bool:
    """Whether a run met its SLO and served everything that could be served."""
    slo = summary["slo"]
    if slo is None or slo["met"] is None:
        raise InputError("slo: states neither an attainment nor a percentile, so nothing says when it is met")
    return bool(slo["met"]) and summary["num_unservable"] == 0


# --- candidates ---


def _candidates(plan: Plan) -> tuple[list[Candidate], Demand]:
    """All candidates with their bounds. `InputError` when the plan is wrong for every one of them."""
    made: list[tuple[dict[str, Any], ExperimentConfig | None, str | None]] = []
    for values in plan.combinations:
        try:
            config = experiment_from_values(plan.experiment(values, 1, plan.config.seed), plan.base_dir, plan.file.name)
            made.append((values, config, None))
        except InputError as error:
            made.append((values, None, str(error)))
    configs = [config for _, config, _ in made if config is not None]
    if not configs:
        raise InputError("\n".join(dict.fromkeys(str(error) for _, _, error in made)))
    demand = _demand(configs[0])
    found = [_candidate(plan, i, v, config, error, demand) for i, (v, config, error) in enumerate(made)]
    return found, demand


def _demand(config: ExperimentConfig) -> Demand:
    from sim.workload.config import build_workload

    return Demand.of(build_workload(config.workload, Seeds(config.seed), config.base_dir))


def _candidate(
    plan: Plan, index: int, values: dict[str, Any], config: ExperimentConfig | None, error: str | None, demand: Demand
) -> Candidate:
    if config is None:
        return Candidate(index, values, lambda replicas: (math.inf,), problem=error)
    key = _key(plan, config)
    bounds = bounds_of(config, demand)
    candidate = Candidate(index, values, key, low=bounds.replicas - 1, problem=bounds.problem, change=bounds.change)
    candidate.load = dict(bounds.load or {})
    return candidate


def _key(plan: Plan, config: ExperimentConfig) -> Any:
    """What is minimized, of a number of replicas: the objective, then cost, then GPUs."""
    pool = config.cluster.pools[0]
    gpus = pool.gpus_per_replica
    gpu = load_gpu(pool.gpu)
    price = gpu_price(plan, gpu)
    watts = gpu.require("tdp") if plan.config.objective == "energy" else 0.0
    spare = plan.config.spare_replicas

    def key(replicas: int) -> Key:
        number = (replicas + spare) * gpus
        first = {"cost": number * price, "gpus": float(number), "energy": number * watts}[plan.config.objective]
        return (first, number * price, float(number))

    return key


def gpu_price(plan: Plan, gpu: HardwareProfile) -> float:
    """USD per GPU hour: the plan's, else the profile's median quote. `InputError` asks for an unknown one."""
    names = {gpu.name, *gpu.aliases}
    given = [price for name, price in plan.config.prices.items() if name in names]
    price = given[0] if given else gpu.get("price_median")
    if price is None:
        raise InputError(
            f"{plan.file.position(('prices',))}: prices: nobody knows the price of {gpu.name}; give it in USD per GPU "
            f"hour, as in prices: {{{gpu.name}: 2.5}}"
        )
    return float(price)


# --- search and what follows it ---


def _search(planner: Planner, search: Search) -> tuple[Candidate | None, Trial | None]:
    """The winner, and what it did when simulated afresh with other seeds; one that fails then is not the winner."""
    while True:
        winner = search.run(planner.ask)
        number = planner.plan.config.verify
        if winner is None or winner.high is None or number == 0:
            return winner, None
        first = planner.plan.config.seed + _FRESH
        (trial,) = planner.simulate([(winner, winner.high, range(first, first + number), 1.0)])
        if trial.met:
            return winner, trial
        search.refute(winner)


def knee(planner: Planner, winner: Candidate) -> float | None:
    """Load, in multiples of the plan's, up to which the winner meets the SLO; None where load has no scale.

    By doubling the step and halving it again; a load that it holds at `_MOST_LOAD` is the answer then.
    """
    low, high = 1.0, 1.25
    try:
        while high < _MOST_LOAD and _holds(planner, winner, high):
            low, high = high, high + 2 * (high - low)
        for _ in range(_LOADS - 2):
            middle = (low + high) / 2
            met = _holds(planner, winner, middle)
            low, high = (middle, high) if met else (low, middle)
    except InputError:
        return None
    return low


def _holds(planner: Planner, winner: Candidate, load: float) -> bool:
    assert winner.high is not None
    (trial,) = planner.simulate([(winner, winner.high, planner.seeds(), load)])
    planner.loads.append(load_row(load, trial))
    return trial.met


def _document(
    planner: Planner, candidates: list[Candidate], winner: Candidate | None, verified: Trial | None
) -> dict[str, Any]:
    plan, demand = planner.plan, planner.demand
    rows = [candidate_row(c, winner, _money(planner, c), nearest_feasible(c, candidates)) for c in candidates]
    found = None if winner is None else _winner(planner, winner, verified)
    return {
        "name": plan.config.name,
        "objective": plan.config.objective,
        "slo": plan.config.slo.model_dump(mode="json", exclude_none=True),
        "workload": {
            "num_requests": len(demand.prompt),
            "requests_per_second": len(demand.prompt) / demand.span if demand.span else None,
            "mean_prompt_tokens": float(demand.prompt.mean()),
            "mean_output_tokens": float(demand.output.mean()),
        },
        "winner": found,
        "candidates": rows,
        "trials": [row for candidate in candidates for row in _trials(planner, candidate)],
        "num_candidates": len(rows),
        "num_runs": planner.num_runs,
        "not_modelled": [
            "energy: an objective of energy and max_power_kw count the rated power of the GPUs, an upper bound",
            "spares: the deployment is simulated without its spare replicas, as after a failure",
            "candidates that would cost exactly as much as the winner are not told apart",
        ],
        "versions": {"servesim": __version__},
    }


def _winner(planner: Planner, winner: Candidate, verified: Trial | None) -> dict[str, Any]:
    assert winner.high is not None
    config = planner.config(winner, winner.high, planner.plan.config.seed)
    trial = winner.trial(winner.high)
    assert trial is not None
    load = knee(planner, winner)
    row = candidate_row(winner, winner, _money(planner, winner))
    headroom, error, spare = None if load is None else load - 1.0, calibration_error(config), plan_spare(planner)
    each = row["cost_per_hour"] / (winner.high + spare)
    return {
        **row,
        "headroom": headroom,
        "error_band": error_band(winner.high, headroom, error, each, spare),
        "loads": sorted([load_row(1.0, trial), *planner.loads], key=lambda row: float(row["load"])),
        "limiting_resource": explain_limit(config, trial.summaries[0]),
        "step_time_error": error,
        "fresh_seeds": None if verified is None else [s["slo_attainment"] for s in verified.summaries],
        "experiment": resolved(config),
    }


def plan_spare(planner: Planner) -> int:
    """Replicas on top of those that the load needs."""
    return planner.plan.config.spare_replicas


def calibration_error(config: ExperimentConfig) -> dict[str, float] | None:
    """The largest median and 90th percentile of the relative errors that the fitted profile states; None without."""
    from sim.cost import default_kind
    from sim.cost.profile import load_fitted
    from sim.model import load_model

    pool = config.cluster.pools[0]
    gpu = load_gpu(pool.gpu)
    if pool.cost_model.kind not in ("auto", "fitted") or default_kind(gpu) != "fitted":
        return None
    model = load_model(pool.model)
    operations = {("gemm", model.weight_dtype), ("decode_attention", model.dtype)}
    rows = [row for row in load_fitted(gpu.name).errors if (row.get("operation"), row.get("dtype")) in operations]
    if not rows:
        return None
    return {name: max(float(row[name]) for row in rows) for name in ("median", "p90")}


def _money(planner: Planner, candidate: Candidate) -> dict[str, Any]:
    """Price of one replica, and what the summaries of its decisive trial make of it."""
    if candidate.problem is not None and not candidate.trials:
        return {}
    price, gpus, spare = _prices(planner, candidate)
    row = price_row(candidate, price, gpus, spare)
    trial = None if candidate.high is None else candidate.trial(candidate.high)
    summary = trial.summaries[0] if trial and trial.summaries else None
    if summary is not None:
        wanted = planner.plan.config
        tdp = load_gpu(planner.config(candidate, 1, wanted.seed).cluster.pools[0].gpu).get("tdp")
        row |= economics_row(summary, row["cost_per_hour"], price, gpus, wanted.token_prices)
        row |= power_row(summary, row["num_gpus"], tdp, wanted.facility)
    return row


def _trials(planner: Planner, candidate: Candidate) -> list[dict[str, Any]]:
    return trial_rows(candidate, *_prices(planner, candidate)) if candidate.trials else []


def _prices(planner: Planner, candidate: Candidate) -> tuple[float, int, int]:
    """USD per GPU hour, GPUs of a replica, spare replicas."""
    pool = planner.config(candidate, 1, planner.plan.config.seed).cluster.pools[0]
    price = gpu_price(planner.plan, load_gpu(pool.gpu))
    return price, pool.gpus_per_replica, planner.plan.config.spare_replicas


def _write_mark(folder: StudyFolder, plan: Plan) -> None:
    from sim.config_paths import absolute_paths
    from sim.output import write_text
    from sim.yamlfile import dump

    values = absolute_paths({"name": plan.config.name, **plan.file.values}, plan.base_dir)
    values["candidates"] = {key: _choices(plan, key) for key in plan.config.candidates}
    write_text(folder.path / MARK, dump(values))


def _choices(plan: Plan, key: str) -> list[Any]:
    found: list[Any] = []
    for values in plan.combinations:
        if values[key] not in found:
            found.append(values[key])
    return found


def _write(folder: StudyFolder, document: dict[str, Any]) -> None:
    from sim.output import write_frame, write_json
    from sim.study.table import frame_of

    write_frame(folder.path / "candidates.parquet", frame_of(document["candidates"]))
    write_json(folder.path / RESULT, document)
