"""Policies: everything that decides something, one policy a file, one dictionary a folder.

`make` builds a policy from a name and its YAML parameters, which are the fields of its dataclass. Names are looked up
in the dictionary of the kind's folder and among installed entry points of the group `servesim.policies` (`kind.name`);
a name with a colon (`my_module:MyRouter`) is imported.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from sim.errors import InputError, nearest, unknown_name

KINDS = (
    "scheduler",
    "block_allocator",
    "eviction",
    "preemption",
    "router",
    "admission",
    "disaggregation",
    "autoscaler",
    "placement",
    "length_predictor",
)
ENTRY_POINTS = "servesim.policies"
ENGINE_FIELDS = frozenset({"rng"})  # never YAML parameters: the engine supplies them


def table(kind: str) -> dict[str, Callable[..., Any]]:
    """Known policies of a kind by name: the folder's dictionary and installed entry points (`kind.name`)."""
    if kind not in KINDS:
        raise unknown_name("kind of policy", kind, KINDS)
    own, installed = _folder_table(kind), _installed(kind)
    for name in own.keys() & installed.keys():
        raise InputError(f"{kind} '{name}' of an installed package has the name of a policy that ships; rename it")
    return {**own, **installed}


def find(kind: str, name: str, where: str = "policy") -> Callable[..., Any]:
    """The class called `name`. `InputError` names the nearest known one; `where` starts the message."""
    if ":" in name:
        return _import_class(name, where)
    known = table(kind)
    if name not in known:
        raise InputError(f"{where}: {unknown_name(kind.replace('_', ' '), name, known)}, or a path module:Class")
    return known[name]


def make(kind: str, name: str, params: Mapping[str, Any], where: str, **supplied: Any) -> Any:
    """Build a policy of a kind from its name and YAML parameters.

    `where` (file, line, key path) starts every message. `supplied` are fields that the engine fills (a random
    generator, say): each is passed on if the class has a field of that name, and none may be given in YAML. Raises
    `InputError` for an unknown name, an unknown, missing or wrongly typed parameter, and for what the class refuses.
    """
    cls = find(kind, name, where)
    own = [field for field in parameters(cls) if field.name not in supplied]
    _check_names(name, own, params, where)
    values = {field.name: _checked(cls, field, params[field.name], where) for field in own if field.name in params}
    taken = {field.name for field in fields(cls)}
    try:
        return cls(**values, **{key: value for key, value in supplied.items() if key in taken})
    except (ValueError, TypeError) as error:
        raise InputError(f"{where}: {name}: {error}") from None


def fields(cls: Callable[..., Any]) -> list[dataclasses.Field[Any]]:
    """The fields of a policy class that its constructor takes."""
    if not dataclasses.is_dataclass(cls):
        return []
    return [field for field in dataclasses.fields(cls) if field.init]


def parameters(cls: Callable[..., Any]) -> list[dataclasses.Field[Any]]:
    """The fields that YAML may give."""
    return [field for field in fields(cls) if field.name not in ENGINE_FIELDS]


def annotation(cls: Any, name: str) -> Any:
    """The type of a field, or `Any` where its annotation cannot be resolved at run time."""
    for base in cls.__mro__:
        text = inspect.get_annotations(base).get(name)
        if text is not None:
            namespace = vars(sys.modules[base.__module__])
            try:
                return eval(text, dict(namespace)) if isinstance(text, str) else text
            except NameError:  # a name imported for type checking only
                return Any
    return Any


def _folder_table(kind: str) -> dict[str, Callable[..., Any]]:
    if find_spec(f"policies.{kind}") is None:
        return {}
    module = importlib.import_module(f"policies.{kind}")
    tables = [value for key, value in vars(module).items() if key.isupper() and isinstance(value, dict)]
    if len(tables) > 1:
        raise RuntimeError(f"policies/{kind}/__init__.py must hold one dictionary in capitals, not {len(tables)}")
    return dict(tables[0]) if tables else {}


@cache
def _installed(kind: str) -> dict[str, Callable[..., Any]]:
    """Policies of other distributions: entry points named `kind.name`."""
    found = {}
    for point in _entry_points():
        prefix, _, name = point.name.partition(".")
        if prefix == kind:
            found[name] = _loaded(point)
    return found


def _loaded(point: metadata.EntryPoint) -> Callable[..., Any]:
    try:
        return point.load()  # type: ignore[no-any-return]
    except (ImportError, AttributeError) as error:
        raise InputError(f"{ENTRY_POINTS}: '{point.name}' = {point.value} cannot be loaded ({error})") from None


@cache
def _entry_points() -> metadata.EntryPoints:
    """Those of the group, from one pass over all installed distributions (tens of milliseconds)."""
    return metadata.entry_points(group=ENTRY_POINTS)


def _import_class(path: str, where: str) -> Callable[..., Any]:
    module_name, _, class_name = path.partition(":")
    if os.getcwd() not in sys.path:  # the console script, unlike `python -m`, does not look in the current directory
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InputError(f"{where}: '{path}': module '{module_name}' cannot be imported ({error})") from None
    found = getattr(module, class_name, None)
    if not callable(found):
        names = [name for name, value in vars(module).items() if isinstance(value, type)]
        raise InputError(f"{where}: '{path}': '{module_name}' has no class '{class_name}'{nearest(class_name, names)}")
    return found  # type: ignore[no-any-return]


def _check_names(name: str, own: list[dataclasses.Field[Any]], params: Mapping[str, Any], where: str) -> None:
    known = [field.name for field in own]
    for key in params:
        if key not in known:
            allowed = f"its parameters: {', '.join(known)}" if known else "it has no parameters"
            raise InputError(f"{where}.{key}: is not a parameter of '{name}'{nearest(str(key), known)}; {allowed}")
    for field in own:
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and field.name not in params:
            raise InputError(f"{where}.{field.name}: is required by '{name}'")


def _checked(cls: Any, field: dataclasses.Field[Any], value: Any, where: str) -> Any:
    """The value as the field's type (an integer where a float is wanted becomes one), or an `InputError`."""
    from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

    try:
        # The strict rules for JSON are those for YAML: a list may stand for a tuple, text never for a number.
        return TypeAdapter(annotation(cls, field.name)).validate_json(json.dumps(value), strict=True)
    except PydanticSchemaGenerationError:
        return value
    except ValidationError as error:
        message = error.errors()[0]["msg"].replace("Input should be", "must be")
        raise InputError(f"{where}.{field.name}: {message} (got {value!r})") from None
