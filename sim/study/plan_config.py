"""The plan file: a workload, what its users are promised, what may be bought, and what it costs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, model_validator

from sim.config import ClientConfig, MetricsConfig, Model, SloConfig, slo_by_class, validate
from sim.config_errors import Source
from sim.config_paths import absolute_paths, absolute_value
from sim.config_sets import apply_setting, parse_key_path, parse_setting
from sim.errors import InputError
from sim.study.config import source_of
from sim.yamlfile import YamlFile

Choices = Annotated[list[Any], Field(min_length=1)]
_SECONDS_AN_HOUR = 3600.0
_DEFAULT_REQUESTS = 5000


class TokenPrices(Model):
    """What a million tokens are worth, USD: what an API would charge for them, say."""

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cached_input: float | None = Field(default=None, ge=0, description="of prompt tokens found in the cache; as input")

    @property
    def cached(self) -> float:
        """Price of a cached prompt token."""
        return self.input if self.cached_input is None else self.cached_input


class Facility(Model):
    """Where the GPUs stand."""

    pue: float = Field(default=1.0, ge=1, description="power usage effectiveness: facility power / GPU power")
    carbon_intensity: float | None = Field(
        default=None, ge=0, description="kg of CO2 equivalent a kWh of its grid; null: unknown"
    )


class PlanConfig(Model):
    """One plan: find the cheapest deployment of one pool that meets the SLO."""

    name: str = Field(default="plan", pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")
    seed: int = Field(default=1, ge=0)
    workload: dict[str, Any] = Field(
        description="as in an experiment; or users, requests_per_user_hour, growth (a factor) and lengths"
    )
    slo: SloConfig
    candidates: dict[str, Any] = Field(min_length=1, description="key path below a pool -> value or values")
    exclude: list[dict[str, Any]] = Field(default_factory=list, description="key: value of candidates to leave out")
    cluster: dict[str, Any] = Field(default_factory=dict, description="router, admission, ... of every candidate")
    client: ClientConfig | None = None
    metrics: MetricsConfig | None = None
    prices: dict[str, PositiveFloat | int] = Field(default_factory=dict, description="GPU -> USD per GPU hour")
    token_prices: TokenPrices | None = Field(default=None, description="USD per million tokens, for value and margin")
    facility: Facility | None = Field(default=None, description="for power and carbon")
    objective: Literal["cost", "gpus", "energy"] = "cost"
    max_replicas: int = Field(default=64, ge=1)
    replications: int | None = Field(
        default=None, ge=1, description="seeds that must meet the SLO; default 1 for a trace, 2 else"
    )
    verify: int = Field(default=2, ge=0, description="other seeds with which the winner is simulated afresh")
    spare_replicas: int = Field(default=0, ge=0, description="replicas on top, for failures and maintenance (N+1: 1)")

    @model_validator(mode="after")
    def _has_one_pool(self) -> PlanConfig:
        wrong = [key for key in ("pools", "replicas") if key in self.cluster or key in self.candidates]
        if wrong:
            raise ValueError(f"{wrong[0]}: the plan finds it; give key paths below a pool as candidates")
        return self


@dataclass(frozen=True)
class Plan:
    """A plan that was read: its configuration, the workload as an experiment has it, and the combinations."""

    config: PlanConfig
    file: YamlFile
    base_dir: Path
    workload: dict[str, Any]
    combinations: list[dict[str, Any]]

    def experiment(self, values: dict[str, Any], replicas: int, seed: int, load: float = 1.0) -> dict[str, Any]:
        """The values of the experiment that tries `replicas` of a combination, at `load` times the arrivals."""
        pool: dict[str, Any] = {"name": "main", "replicas": replicas}
        for key, value in values.items():
            _put(pool, parse_key_path(key), value)
        config = self.config
        found: dict[str, Any] = {
            "name": config.name,
            "seed": seed,
            "workload": scaled(self.workload, load),
            "cluster": {**config.cluster, "pools": [pool]},
            "slo": config.slo.model_dump(mode="json", exclude_unset=True),
        }
        for name in ("client", "metrics"):
            section = getattr(config, name)
            if section is not None:
                found[name] = section.model_dump(mode="json", exclude_unset=True)
        return found


def load_plan(source: Path | YamlFile, sets: Sequence[str] = ()) -> Plan:
    """Read a plan file; `sets` are `--set` texts over it. Raises `InputError`.

    A file that was read already stands in the current directory.
    """
    file, base_dir, name = source_of(source, "plan")
    if not isinstance(file.values, dict):
        raise InputError(f"{file.name}: must be a mapping with the keys workload, slo and candidates")
    values = absolute_paths({"name": name, **file.values}, base_dir)
    settings = tuple(parse_setting(text) for text in sets)
    for setting in settings:
        apply_setting(values, setting)
    file = replace(file, values=values)
    try:
        values["slo"] = slo_by_class(values.get("slo"))
    except ValueError as error:
        raise InputError(f"{file.position(('slo',))}: slo: {error}") from None
    config = validate(PlanConfig, values, Source(file, settings))
    workload = _of_users(config.workload, file)
    return Plan(config, file, base_dir, workload, _combinations(config, file, base_dir))


def scaled(workload: dict[str, Any], load: float) -> dict[str, Any]:
    """The workload with arrivals `load` times as dense. Raises `InputError` where that has no meaning."""
    if load == 1.0:
        return workload
    arrivals = workload.get("arrivals")
    if arrivals is None:
        return {**workload, "rate_scale": workload.get("rate_scale", 1.0) * load}
    if "rate" not in arrivals:
        raise InputError("arrivals without a rate cannot be scaled")
    return {**workload, "arrivals": {**arrivals, "rate": arrivals["rate"] * load}}


def _of_users(workload: dict[str, Any], file: YamlFile) -> dict[str, Any]:
    """`users` x `requests_per_user_hour` x `growth` as Poisson arrivals; other workloads unchanged."""
    if "users" not in workload:
        return workload
    rest = {k: v for k, v in workload.items() if k not in ("users", "requests_per_user_hour", "growth")}
    numbers = {"users": workload["users"], "requests_per_user_hour": workload.get("requests_per_user_hour")}
    numbers["growth"] = workload.get("growth", 1.0)
    for key, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            place = file.position(("workload", key))
            raise InputError(f"{place}: workload.{key}: must be a number > 0 (got {value!r})")
    if "arrivals" in rest:
        raise InputError(f"{file.position(('workload', 'arrivals'))}: workload.arrivals: users say the rate already")
    rate = numbers["users"] * numbers["requests_per_user_hour"] * numbers["growth"] / _SECONDS_AN_HOUR
    if not {"duration", "num_requests"} & set(rest):
        rest["num_requests"] = _DEFAULT_REQUESTS
    return {"arrivals": {"process": "poisson", "rate": rate}, **rest}


def _combinations(config: PlanConfig, file: YamlFile, base_dir: Path) -> list[dict[str, Any]]:
    from sim.study.points import same, varied_key

    choices = {}
    for key, given in config.candidates.items():
        if not parse_key_path(key):
            raise InputError(f"{file.position(('candidates', key))}: '{key}' is not a key path such as gpu")
        values = given if isinstance(given, list) else [given]
        choices[key] = [absolute_value(("cluster", "pools", *parse_key_path(key)), value, base_dir) for value in values]
    found = [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]
    for index, rule in enumerate(config.exclude):
        where = f"{file.position(('exclude', index))}: exclude.{index}"
        keys = {varied_key(name, choices, where): value for name, value in rule.items()}
        found = [each for each in found if not all(same(each[key], value) for key, value in keys.items())]
    if not found:
        raise InputError(f"{file.position(('candidates',))}: candidates: none is left")
    return found


def _put(pool: dict[str, Any], path: tuple[str | int, ...], value: Any) -> None:
    for part in path[:-1]:
        pool = pool.setdefault(str(part), {})
    pool[str(path[-1])] = value
