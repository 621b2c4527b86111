"""The study file: what is varied over which experiment, how often, and what is expected of the table of results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from sim import yamlfile
from sim.config import ExperimentConfig, Expression, Model, validate
from sim.config_errors import Source
from sim.config_paths import absolute_paths, absolute_value
from sim.config_sets import Setting, apply_setting, parse_key_path, parse_setting
from sim.errors import InputError
from sim.yamlfile import YamlFile

Values = Annotated[list[Any], Field(min_length=1)]


class Range(Model):
    """The values that a sampled key may take: from `min` to `max`, evenly or evenly in the logarithm."""

    min: float
    max: float
    scale: Literal["linear", "log"] = "linear"
    integer: bool = Field(default=False, description="round to whole numbers")

    @model_validator(mode="after")
    def _is_a_range(self) -> Range:
        if self.max < self.min:
            raise ValueError(f"max ({self.max:g}) must not be below min ({self.min:g})")
        if self.scale == "log" and self.min <= 0:
            raise ValueError(f"min must be > 0 on a logarithmic scale (got {self.min:g})")
        return self


class SampleConfig(Model):
    """A sample of `n` points over several keys at once, in place of a full grid."""

    method: Literal["random", "lhs", "sobol"] = "lhs"
    n: int = Field(ge=1, description="number of points; sobol is balanced at powers of two")
    seed: int = Field(default=0, ge=0, description="of the sample itself; runs have the experiment's seed")
    keys: dict[str, Range | Values] = Field(
        min_length=1, description="key path -> {min, max, scale, integer} or a list"
    )


class StudyConfig(Model):
    """One study. Points are every combination of the grid, of each zip, and of the sample."""

    name: str = Field(default="study", pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")
    base: str | None = Field(default=None, description="an experiment file, relative to this one")
    experiment: dict[str, Any] | None = Field(default=None, description="the experiment itself, in place of base")
    vary: dict[str, Values] = Field(default_factory=dict, description="key path -> values: every combination")
    zip: dict[str, Values] | list[dict[str, Values]] = Field(
        default_factory=dict, description="key path -> values that go together, item by item; or a list of such"
    )
    sample: SampleConfig | None = None
    conditions: list[Expression] = Field(
        default_factory=list, description="over the varied keys; points for which one does not hold are left out"
    )
    exclude: list[dict[str, Any]] = Field(
        default_factory=list, description="key: value of points that are left out; short names are allowed"
    )
    replications: int = Field(default=1, ge=1, description="seeds seed, seed+1, ...: the same for every point")
    columns: dict[str, Expression] = Field(default_factory=dict, description="name -> expression over a run's summary")
    expect: list[Expression] = Field(default_factory=list, description="checked on the table when all runs are done")

    @property
    def zips(self) -> list[dict[str, list[Any]]]:
        """The groups of keys that go together."""
        groups = self.zip if isinstance(self.zip, list) else [self.zip]
        return [group for group in groups if group]

    @property
    def keys(self) -> list[str]:
        """All key paths that are varied."""
        zipped = [key for group in self.zips for key in group]
        return [*self.vary, *zipped, *(self.sample.keys if self.sample else ())]

    @model_validator(mode="after")
    def _is_whole(self) -> StudyConfig:
        if (self.base is None) == (self.experiment is None):
            raise ValueError("needs either base (an experiment file) or experiment (its values)")
        for group in self.zips:
            lengths = {key: len(values) for key, values in group.items()}
            if len(set(lengths.values())) > 1:
                shown = ", ".join(f"{key} has {length}" for key, length in lengths.items())
                raise ValueError(f"zip: the lists of a group must be equally long ({shown})")
        twice = sorted({key for key in self.keys if self.keys.count(key) > 1})
        if twice:
            raise ValueError(f"{twice[0]} is varied twice")
        return self


@dataclass(frozen=True)
class Study:
    """A study that was read: its configuration, where it stands, and the values that its points start from."""

    config: StudyConfig
    file: YamlFile
    base_dir: Path  # of the study file: relative paths in varied values
    base_values: dict[str, Any]  # of the experiment, before presets, with absolute paths and `--set` applied
    base_file: YamlFile  # for positions in messages
    settings: tuple[Setting, ...] = ()

    def where(self, *path: str | int) -> str:
        """`file:line:col: key` of a key of the study file."""
        return f"{self.file.position(path)}: {'.'.join(str(part) for part in path)}"


def load_study(source: Path | YamlFile, sets: Sequence[str] = ()) -> Study:
    """Read a study file and its base; `sets` are `--set` texts over the base experiment. Raises `InputError`.

    A file that was read already stands in the current directory.
    """
    file, base_dir, name = source_of(source, "study")
    if not isinstance(file.values, dict):
        raise InputError(f"{file.name}: must be a mapping with the keys base and vary")
    settings = [parse_setting(text) for text in sets]
    of_study = tuple(setting for setting in settings if setting.path[0] in _STUDY_ONLY)
    config = _validated({"name": name, **file.values}, file, of_study)
    base_file, experiment_dir = _base(config, file, base_dir)
    values = absolute_paths(base_file.values, experiment_dir)
    values.setdefault("name", config.name)
    others = tuple(setting for setting in settings if setting not in of_study)
    for setting in others:
        _refuse_varied(setting, config)
        apply_setting(values, setting)
    return Study(config, file, base_dir, values, base_file, others)


def written(study: Study) -> dict[str, Any]:
    """The values of study.yaml: the experiment inline and all paths absolute, so that it runs from anywhere."""
    values = study.config.model_dump(mode="json", exclude_unset=True)
    rest = {key: value for key, value in values.items() if key not in ("name", "base", "experiment")}
    for key in ("vary", "zip"):
        if key in rest:
            rest[key] = _absolute(rest[key], study.base_dir)
    if rest.get("sample"):
        rest["sample"] = {**rest["sample"], "keys": _absolute(rest["sample"]["keys"], study.base_dir)}
    return {"name": study.config.name, "experiment": study.base_values, **rest}


def _absolute(varied: Any, base_dir: Path) -> Any:
    """Key path -> values, with absolute paths in the values."""
    if isinstance(varied, list):
        return [_absolute(group, base_dir) for group in varied]
    return {key: _absolute_values(key, values, base_dir) for key, values in varied.items()}


def _absolute_values(key: str, values: Any, base_dir: Path) -> Any:
    if not isinstance(values, list):
        return values
    return [absolute_value(parse_key_path(key), value, base_dir) for value in values]


# Keys that only a study has: `--set` of one changes the study, of any other the base experiment.
_STUDY_ONLY = frozenset(StudyConfig.model_fields) - frozenset(ExperimentConfig.model_fields)


def _validated(values: dict[str, Any], file: YamlFile, settings: tuple[Setting, ...]) -> StudyConfig:
    for setting in settings:
        apply_setting(values, setting)
    return validate(StudyConfig, values, Source(file, settings))


def _refuse_varied(setting: Setting, config: StudyConfig) -> None:
    key = ".".join(str(part) for part in setting.path)
    if key in config.keys:
        raise InputError(f"{setting.flag}: {key} is varied by this study")


def _base(config: StudyConfig, file: YamlFile, base_dir: Path) -> tuple[YamlFile, Path]:
    if config.experiment is not None:
        return _below(file, "experiment", config.experiment), base_dir
    assert config.base is not None
    path = base_dir / Path(config.base).expanduser()
    try:
        base_file = yamlfile.read(path, config.base if path.exists() else None)
    except InputError as error:
        raise InputError(f"{file.position(('base',))}: base: {error}") from None
    if not isinstance(base_file.values, dict):
        raise InputError(f"{base_file.name}: must be a mapping with the keys workload and cluster")
    return base_file, path.resolve().parent


def _below(file: YamlFile, key: str, values: dict[str, Any]) -> YamlFile:
    """The part of a file under one key as a file of its own, with its positions."""
    positions = {path[1:]: place for path, place in file.positions.items() if path[:1] == (key,)}
    return YamlFile(file.name, values, positions)


def source_of(source: Path | YamlFile, default_name: str) -> tuple[YamlFile, Path, str]:
    """A file, the folder that its relative paths start from, and the name that it has if it states none."""
    import re

    if isinstance(source, YamlFile):
        return source, Path.cwd(), default_name
    name = re.sub(r"[^A-Za-z0-9._+-]+", "-", source.stem).strip("-._+") or default_name
    return yamlfile.read(source), source.resolve().parent, name
