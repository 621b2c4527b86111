"""Catalogue files that ship in hardware_profiles/: names, aliases, and the parsed YAML of one entry.

Works from a checkout and from a wheel. An entry is found by its file name, by one of its `aliases`, or as the path of
a file in the same form.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from sim import yamlfile
from sim.errors import InputError, unknown_name


def folder(kind: str) -> Traversable:
    """The folder of one kind of entry: "gpus", "links", "nodes", "models" or "fitted"."""
    return files("hardware_profiles") / kind


def entry_names(kind: str) -> list[str]:
    """Names of all entries of a kind, sorted."""
    return sorted(item.name.removesuffix(".yaml") for item in folder(kind).iterdir() if item.name.endswith(".yaml"))


def knows(kind: str, name: str) -> bool:
    """Whether `name` is the name or an alias of an entry of this kind."""
    lowered = name.lower()
    return lowered in entry_names(kind) or any(lowered in _aliases(kind, each) for each in entry_names(kind))


def read_entry(kind: str, name: str, label: str) -> dict[str, Any]:
    """The values of the entry called `name` (a name, an alias or a path).

    `label` is the word for the kind in messages ("GPU", "model"). Raises `InputError` for an unknown name.
    """
    if Path(name).suffix in (".yaml", ".yml") and ("/" in name or Path(name).is_file()):
        return _mapping(yamlfile.read(Path(name)))
    lowered = name.lower()
    if lowered in entry_names(kind):
        return _read_packaged(kind, lowered)
    for candidate in entry_names(kind):
        if lowered in _aliases(kind, candidate):
            return _read_packaged(kind, candidate)
    raise unknown_name(label, name, entry_names(kind))


def fields_of(values: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    """The mapping under `key`; an `InputError` names `where` when it is missing or something else."""
    section = values.get(key)
    if not isinstance(section, dict):
        raise InputError(f"{where}: key '{key}' must be a mapping (got {type(section).__name__})")
    return section


def _aliases(kind: str, name: str) -> list[str]:
    return [str(alias).lower() for alias in _read_packaged(kind, name).get("aliases") or []]


@cache
def _read_packaged(kind: str, name: str) -> dict[str, Any]:
    text = (folder(kind) / f"{name}.yaml").read_text(encoding="utf-8")
    return _mapping(yamlfile.parse(text, f"hardware_profiles/{kind}/{name}.yaml"))


def _mapping(parsed: yamlfile.YamlFile) -> dict[str, Any]:
    if not isinstance(parsed.values, dict):
        raise InputError(f"{parsed.name}: must be a mapping of keys to values")
    return {**parsed.values, "file": parsed.name}
