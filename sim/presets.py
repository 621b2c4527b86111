"""Engine presets: one YAML an engine that fills what a pool does not give.

A preset is found by name in `policies/presets` (read as data) or by path. It has sections of a pool (scheduler,
kv_cache, preemption, cost_model, ...) and may say what it describes under description, version, source, sources, notes.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from sim import yamlfile
from sim.errors import InputError, nearest, unknown_name

_ABOUT = frozenset({"name", "description", "version", "source", "sources", "notes"})
DEFAULT_ENGINE = "vllm-v1"


def preset_names() -> list[str]:
    """Names of the presets that ship."""
    folder = resources.files("policies").joinpath("presets")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


@cache
def load_preset(engine: str) -> dict[str, Any]:
    """The values of a preset, by name or by path. `InputError` for an unknown name or a broken file."""
    if engine.endswith((".yaml", ".yml")):
        file = yamlfile.read(Path(engine))
    elif engine in preset_names():
        text = resources.files("policies").joinpath("presets", f"{engine}.yaml").read_text(encoding="utf-8")
        file = yamlfile.parse(text, f"preset {engine}")
    else:
        raise unknown_name("engine preset", engine, preset_names())
    if not isinstance(file.values, dict):
        raise InputError(f"{file.name}: a preset must be a mapping")
    return file.values


def fill_from_preset(pool: dict[str, Any], model: type[BaseModel], where: str) -> None:
    """Fill in place what `pool` does not give; `model` is the pool's model, `where` starts messages."""
    engine = pool.get("engine", DEFAULT_ENGINE)
    if not isinstance(engine, str):
        return
    try:
        preset = load_preset(engine)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    for key, value in preset.items():
        if key not in model.model_fields:
            _refuse_unless_about(key, engine, model)
        elif isinstance(value, dict):
            pool[key] = _merged(pool.get(key), value, _section(model, key))
        elif key not in pool:
            pool[key] = value


def _refuse_unless_about(key: str, engine: str, model: type[BaseModel]) -> None:
    if key not in _ABOUT:
        known = sorted(_ABOUT.union(model.model_fields))
        raise InputError(f"preset {engine}: {key}: is not a known key{nearest(key, known)}")


def _section(model: type[BaseModel], key: str) -> type[BaseModel] | None:
    annotation = model.model_fields[key].annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _merged(given: Any, preset: dict[str, Any], section: type[BaseModel] | None) -> Any:
    """`given` with the rest from `preset`. Another policy than the preset's gets no fields of the preset's policy."""
    name_key = getattr(section, "name_key", "policy")
    if isinstance(given, str):
        given = {name_key: given}
    if not isinstance(given, dict | None):
        return given
    given = given or {}
    fields = section.model_fields if section else {}
    same = given.get(name_key, preset.get(name_key)) == preset.get(name_key)
    rest = {key: value for key, value in preset.items() if key not in given and (same or key in fields)}
    return {**given, **rest}
