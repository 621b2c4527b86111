"""`--set key.path=value`: parsing it and laying it over the values of an experiment, before validation."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.config_paths import absolute_value
from sim.errors import InputError
from sim.yamlfile import KeyPath, parse_value


@dataclass(frozen=True)
class Setting:
    """A value for one key path, and the flag (or study line) that gave it."""

    flag: str  # stands at the start of every message about it
    path: KeyPath
    value: Any


def parse_setting(text: str, base_dir: Path | None = None) -> Setting:
    """`key.path=value` with a YAML value; integers in the path index lists.

    A path in the value is relative to `base_dir` (default: the current directory).
    """
    flag = f"--set {text}"
    key, equals, value = text.partition("=")
    path = parse_key_path(key.strip())
    if not equals or not path:
        raise InputError(f"{flag}: must be key.path=value, as in --set cluster.pools.0.replicas=8")
    return make_setting(flag, path, parse_value(value, flag), base_dir or Path.cwd())


def make_setting(flag: str, path: KeyPath, value: Any, base_dir: Path) -> Setting:
    """A setting whose paths are made absolute."""
    return Setting(flag, path, absolute_value(path, value, base_dir))


def parse_key_path(text: str) -> KeyPath:
    """`cluster.pools.0.replicas` as its parts."""
    parts = [part.strip() for part in text.split(".")]
    if not all(parts):
        return ()
    return tuple(int(part) if part.isdigit() else part for part in parts)


def apply_setting(values: dict[str, Any], setting: Setting) -> None:
    """Lay a setting over `values` in place, making mappings on the way; a list must have the item that is named."""
    here: Any = values
    for depth, part in enumerate(setting.path):
        last = depth == len(setting.path) - 1
        if isinstance(here, list):
            here = _set_item(here, part, setting, depth, last)
        elif isinstance(here, MutableMapping):
            here = _set_key(here, part, setting, last)
        else:
            above = ".".join(str(p) for p in setting.path[:depth])
            raise InputError(f"{setting.flag}: {above} is a single value ({here!r}), it has no key '{part}'")


def _set_item(items: list[Any], part: str | int, setting: Setting, depth: int, last: bool) -> Any:
    above = ".".join(str(p) for p in setting.path[:depth])
    if not isinstance(part, int):
        raise InputError(f"{setting.flag}: {above} is a list; give the number of an item, as in {above}.0.{part}")
    if part >= len(items):
        raise InputError(f"{setting.flag}: {above} has {len(items)} item(s), numbered from 0; there is no item {part}")
    if last:
        items[part] = setting.value
    return items[part]


def _set_key(mapping: MutableMapping[str, Any], part: str | int, setting: Setting, last: bool) -> Any:
    key = str(part)
    if last:
        mapping[key] = setting.value
    elif mapping.get(key) is None:
        mapping[key] = {}
    return mapping[key]
