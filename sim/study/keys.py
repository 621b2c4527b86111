"""The key of a run: a hash of its resolved configuration (seed included), of the files it reads and of the code.

Two runs with the same key have the same results, so a finished one is never run again.
"""

from __future__ import annotations

import hashlib
import json
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sim.config import ExperimentConfig, resolved

_LENGTH = 16  # hex digits
_PACKAGES = ("sim", "policies", "hardware_profiles")
_OUTSIDE = re.compile(r"^([A-Za-z_][\w.]*):[A-Za-z_]\w*$")  # module:Class of a policy outside the repository


def run_key(config: ExperimentConfig) -> str:
    """16 hex digits. A file is known by its content, wherever it lies."""
    text = json.dumps(_with_contents(resolved(config)), sort_keys=True, allow_nan=False)
    return hashlib.sha256(f"{code_digest()}\n{text}".encode()).hexdigest()[:_LENGTH]


@cache
def code_digest() -> str:
    """SHA-256 over the names and bytes of all code and data files of the packages that decide a result."""
    digest = hashlib.sha256()
    for package in _PACKAGES:
        spec = find_spec(package)
        for folder in sorted(spec.submodule_search_locations or ()) if spec else ():
            for path in sorted(Path(folder).rglob("*")):
                if path.suffix in (".py", ".yaml") and path.is_file():
                    digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _with_contents(value: Any) -> Any:
    """`value` with the digest of the content in place of every path of a file, and beside every outside policy."""
    if isinstance(value, dict):
        return {key: _with_contents(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_contents(item) for item in value]
    if isinstance(value, str):
        return _of_text(value)
    return value


def _of_text(value: str) -> Any:
    if value.startswith("/") and (path := Path(value)).is_file():
        return {"content": _file_digest(path, path.stat().st_mtime_ns)}
    match = _OUTSIDE.match(value)
    origin = _origin(match[1]) if match else None
    return value if origin is None else {"class": value, "content": _file_digest(origin, origin.stat().st_mtime_ns)}


@cache
def _file_digest(path: Path, _changed: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _origin(module: str) -> Path | None:
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec and spec.origin and Path(spec.origin).is_file() else None
