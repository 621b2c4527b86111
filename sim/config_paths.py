"""Which values of an experiment are paths, and making them absolute."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sim.workload.config import PATH_KEYS as WORKLOAD_PATH_KEYS
from sim.yamlfile import KeyPath

# Keys of a cost model that always hold a path.
_COST_MODEL_PATH_KEYS = frozenset({"path", "file", "table"})
# Keys of a pool that hold a name of a catalogue or a path.
_NAME_OR_PATH_KEYS = frozenset({"model", "gpu", "engine", "profile"})
_NETWORK_PATH_KEYS = frozenset({"node", "link"})
_FILE_SUFFIXES = (".json", ".yaml", ".yml")


def absolute_paths(values: dict[str, Any], base_dir: Path) -> dict[str, Any]:
    """A deep copy of `values` whose paths are absolute; relative ones are taken from `base_dir`."""
    copy = absolute_value((), values, base_dir)
    assert isinstance(copy, dict)
    return copy


def absolute_value(path: KeyPath, value: Any, base_dir: Path) -> Any:
    """A deep copy of the value at key path `path`, with absolute paths in it."""
    if isinstance(value, dict):
        return {key: absolute_value((*path, key), item, base_dir) for key, item in value.items()}
    if isinstance(value, list):
        return [absolute_value((*path, index), item, base_dir) for index, item in enumerate(value)]
    if isinstance(value, str) and value and _is_path(path, value, base_dir):
        return os.path.normpath(base_dir.absolute() / Path(value).expanduser())
    return value


def _is_path(path: KeyPath, value: str, base_dir: Path) -> bool:
    names = [part for part in path if isinstance(part, str)]
    if not names:
        return False
    if names[0] == "workload":
        return len(names) == 2 and names[1] in WORKLOAD_PATH_KEYS
    if names[-2:] == ["kv_cache", "warm_start"]:
        return True
    if "cost_model" in names:
        return names[-1] in _COST_MODEL_PATH_KEYS
    if names[:2] == ["cluster", "network"]:
        return names[-1] in _NETWORK_PATH_KEYS and _looks_like_a_path(value, base_dir)
    if names[0] == "cluster" and names[-1] in _NAME_OR_PATH_KEYS and len(names) == 3:
        return _looks_like_a_path(value, base_dir)
    return False


def _looks_like_a_path(value: str, base_dir: Path) -> bool:
    if value.startswith((".", "/", "~")) or value.endswith(_FILE_SUFFIXES):
        return True
    return "/" in value and (base_dir / value).exists()
