"""From a study to its points: every combination of grid, zips and sample, less what conditions leave out."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sim.config import ExperimentConfig, resolve
from sim.config_sets import Setting, make_setting, parse_key_path
from sim.errors import InputError, RunError, unknown_name
from sim.expressions import evaluate
from sim.study.config import Range, SampleConfig, Study


@dataclass(frozen=True)
class Point:
    """One combination of varied values (by key path) and its configurations, one a replication."""

    index: int
    values: dict[str, Any]
    configs: tuple[ExperimentConfig, ...]

    @property
    def label(self) -> str:
        """The varied values for people: `replicas=4, policy=round_robin`."""
        names = short_names(self.values)
        return ", ".join(f"{names[key]}={shown(value)}" for key, value in self.values.items()) or "the experiment"


def points_of(study: Study) -> list[Point]:
    """All points in the order of the file (the last key varies fastest). Every configuration is validated.

    Raises `InputError` for a wrong key or value, naming its line, and when the conditions leave nothing.
    """
    return [Point(index, values, _configs(values, study)) for index, values in enumerate(combinations(study))]


def combinations(study: Study) -> list[dict[str, Any]]:
    """The varied values of all points, in their order. Raises `InputError` when the conditions leave nothing."""
    found = [values for values in _combinations(study) if _kept(values, study)]
    if not found:
        raise InputError(f"{study.where('conditions')}: no point is left: conditions and exclude rule out all of them")
    return found


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Key path -> the shortest ending, joined by `_`, that no other of the paths has: `replicas`, `router_policy`."""
    paths = {key: key.split(".") for key in keys}
    return {
        key: _shortest(parts, [other for name, other in paths.items() if name != key]) for key, parts in paths.items()
    }


def matching_keys(name: str, keys: Iterable[str]) -> list[str]:
    """The key paths that end in `name`, where `_` may stand for `.`; the exact path wins."""
    found = [key for key in keys if name in endings(key)]
    return [name] if name in found else found


def endings(key: str) -> list[str]:
    """All names of a key path: `a.b.c`, `b.c`, `c`, and the same joined by `_`."""
    parts = key.split(".")
    tails = [parts[i:] for i in range(len(parts))]
    return [separator.join(tail) for separator in ("_", ".") for tail in tails]


def shown(value: Any) -> str:
    """A varied value as a short text."""
    return value if isinstance(value, str) else json.dumps(value)


def _shortest(parts: list[str], others: list[list[str]]) -> str:
    for length in range(1, len(parts) + 1):
        if all(other[-length:] != parts[-length:] for other in others):
            return "_".join(parts[-length:])
    return "_".join(parts)


def _combinations(study: Study) -> list[dict[str, Any]]:
    config = study.config
    axes: list[list[dict[str, Any]]] = [[{key: value} for value in values] for key, values in config.vary.items()]
    axes += [_together(group) for group in config.zips]
    if config.sample:
        axes.append(sampled(config.sample))
    return [{k: v for part in parts for k, v in part.items()} for parts in itertools.product(*axes)]


def _together(group: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(group, values, strict=True)) for values in zip(*group.values(), strict=True)]


def sampled(sample: SampleConfig) -> list[dict[str, Any]]:
    """The points of a sample, a pure function of its settings."""
    rows = _unit_cube(sample)
    return [{key: _at(spec, float(u)) for (key, spec), u in zip(sample.keys.items(), row, strict=True)} for row in rows]


def _unit_cube(sample: SampleConfig) -> Any:
    import warnings

    import numpy as np

    generator = np.random.default_rng(sample.seed)
    if sample.method == "random":
        return generator.random((sample.n, len(sample.keys)))
    from scipy.stats import qmc

    kind = qmc.Sobol if sample.method == "sobol" else qmc.LatinHypercube
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The balance properties of Sobol")
        return kind(len(sample.keys), seed=generator).random(sample.n)


def _at(spec: Range | list[Any], u: float) -> Any:
    """The value at share `u` in [0, 1) of a range or a list."""
    if isinstance(spec, list):
        return spec[min(int(u * len(spec)), len(spec) - 1)]
    if spec.scale == "log":
        value = math.exp(math.log(spec.min) + u * (math.log(spec.max) - math.log(spec.min)))
        value = min(max(value, spec.min), spec.max)
    else:
        value = spec.min + u * (spec.max - spec.min)
    return round(value) if spec.integer else value


def _kept(values: dict[str, Any], study: Study) -> bool:
    held = (_holds(text, values, study.where("conditions", i)) for i, text in enumerate(study.config.conditions))
    excluded = (_is_excluded(rule, values, study.where("exclude", i)) for i, rule in enumerate(study.config.exclude))
    return all(held) and not any(excluded)


def _holds(text: str, values: dict[str, Any], where: str) -> bool:
    names: dict[str, Any] = {}
    for name in {name for key in values for name in endings(key)}:
        matches = matching_keys(name, values)
        if len(matches) == 1:
            names[name] = values[matches[0]]
    try:
        return bool(evaluate(text, names))
    except RunError as error:
        hint = "conditions see the varied keys only, as numbers; leave out texts with exclude"
        raise InputError(f"{where}: {text}: {error}; {hint}") from None


def _is_excluded(rule: dict[str, Any], values: dict[str, Any], where: str) -> bool:
    return all(same(values[varied_key(name, values, where)], value) for name, value in rule.items())


def varied_key(name: str, keys: Iterable[str], where: str) -> str:
    """The one varied key path that `name` stands for. `InputError` for none or several."""
    keys = list(keys)
    matches = matching_keys(name, keys)
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise InputError(f"{where}: {unknown_name('varied key', name, short_names(keys).values())}")
    longer = [short_names(matches)[key] for key in matches]
    raise InputError(f"{where}: '{name}' is the end of several varied keys; write {' or '.join(longer)}")


def same(value: Any, wanted: Any) -> bool:
    """Whether a varied value is the wanted one; numbers by value, true and false only as themselves."""
    if isinstance(value, bool) or isinstance(wanted, bool):
        return (value in (True, "true")) == (wanted in (True, "true")) and type(value) is type(wanted)
    return bool(value == wanted)


def _configs(values: dict[str, Any], study: Study) -> tuple[ExperimentConfig, ...]:
    settings = [*study.settings, *(_setting(key, value, study) for key, value in values.items())]
    first = resolve(_file(study), study.base_dir, settings)
    if study.config.replications == 1:
        return (first,)
    if "seed" in values:
        raise InputError(f"{study.where('replications')}: seeds are varied already; leave replications out")
    others = [
        resolve(_file(study), study.base_dir, [*settings, Setting("replications", ("seed",), first.seed + i)])
        for i in range(1, study.config.replications)
    ]
    return (first, *others)


def _file(study: Study) -> Any:
    from sim.yamlfile import YamlFile

    return YamlFile(study.base_file.name, study.base_values, study.base_file.positions)


def _setting(key: str, value: Any, study: Study) -> Setting:
    path = parse_key_path(key)
    if not path:
        raise InputError(f"{_place(key, study)}: '{key}' is not a key path such as cluster.pools.0.replicas")
    return make_setting(f"{_place(key, study)}: {key}={shown(value)}", path, value, study.base_dir)


def _place(key: str, study: Study) -> str:
    """`file:line:col` of a varied key in the study file."""
    zips = study.config.zip if isinstance(study.config.zip, list) else []
    indexed = [("zip", i, key) for i, group in enumerate(zips) if key in group]
    for path in (("vary", key), ("zip", key), *indexed, ("sample", "keys", key)):
        if path in study.file.positions:
            return study.file.position(path)
    return study.file.name
