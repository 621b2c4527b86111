"""Validation errors as lines to act on: `file:line:col: key.path: what is wrong (got ...); allowed: ...`."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ValidationError

from sim.config_sets import Setting
from sim.errors import nearest
from sim.yamlfile import KeyPath, YamlFile

_WORDS = {
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be text",
    "dict_type": "must be a mapping",
    "list_type": "must be a list",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "int_parsing": "must be a whole number",
    "float_parsing": "must be a number",
    "bool_parsing": "must be true or false",
    "finite_number": "must be a finite number",
    "missing": "is required",
    "extra_forbidden": "is not a known key",
    "invalid_key": "is not a known key (keys are text)",
    "too_short": "must not be empty",
}
_LIMITS = {
    "greater_than": ("must be > {}", "gt"),
    "greater_than_equal": ("must be >= {}", "ge"),
    "less_than": ("must be < {}", "lt"),
    "less_than_equal": ("must be <= {}", "le"),
    "string_pattern_mismatch": ("does not match {}", "pattern"),
}


@dataclass(frozen=True)
class Source:
    """Where the values of a configuration came from: a file, and settings on the command line over it."""

    file: YamlFile = field(default_factory=lambda: YamlFile("configuration", None, {}))
    settings: tuple[Setting, ...] = ()

    def position(self, path: KeyPath) -> str:
        """`file:line:col`, or the flag that set this key or one above it."""
        for setting in reversed(self.settings):
            if path[: len(setting.path)] == setting.path:
                return setting.flag
        return self.file.position(path)

    def below(self, path: KeyPath) -> str:
        """The flags that set something below `path`, for an error about several keys together."""
        flags = [setting.flag for setting in self.settings if setting.path[: len(path)] == path != setting.path]
        return f" (with {' '.join(flags)})" if flags else ""


@dataclass(frozen=True)
class _Problem:
    path: KeyPath
    kind: str
    text: str
    hint: str = ""


def explain(error: ValidationError, model: type[BaseModel], values: Any, source: Source) -> list[str]:
    """One line for each thing that is wrong, in the order of the file."""
    problems = [_problem(item, model, values) for item in error.errors(include_url=False)]
    lines = []
    paths = dict.fromkeys(problem.path for problem in problems)
    for path in sorted(paths, key=lambda path: source.file.line_and_column(path) or (0, 0)):
        here = _most_telling([problem for problem in problems if problem.path == path])
        key = ".".join(str(part) for part in path)
        texts = " or ".join(dict.fromkeys(problem.text for problem in here))
        hints = "".join(dict.fromkeys(problem.hint for problem in here))
        what = f"{texts}{_got(here, path, values)}{hints}{source.below(path)}"
        lines.append(f"{source.position(path)}: {key}: {what}" if key else f"{source.position(path)}: {what}")
    return lines


def _most_telling(problems: list[_Problem]) -> list[_Problem]:
    """Of the branches of a union: those that the value was meant for (a wrong type is the other branches' answer)."""
    meant = [problem for problem in problems if not problem.kind.endswith("_type")]
    return meant or problems


def _problem(item: Mapping[str, Any], model: type[BaseModel], values: Any) -> _Problem:
    kind = str(item["type"])
    context = item.get("ctx") or {}
    path, tags = _key_path(item["loc"], values, kind)
    if kind == "extra_forbidden":
        return _Problem(path, kind, _WORDS[kind], _known(fields_at(model, path[:-1], tags), str(path[-1])))
    if kind in ("literal_error", "enum", "union_tag_invalid"):
        expected = str(context.get("expected", context.get("expected_tags")))
        return _Problem(path, kind, "is not a known value", _choice(expected, context.get("tag", item.get("input"))))
    return _Problem(path, kind, _text(kind, item, context))


def _key_path(loc: Sequence[str | int], values: Any, kind: str) -> tuple[KeyPath, frozenset[str]]:
    """The keys in a pydantic location; the rest of it are tags of unions."""
    path: list[str | int] = []
    tags = []
    here = values
    for index, part in enumerate(loc):
        if _holds(here, part):
            here = here[part]
            path.append(part)
        elif kind == "missing" and index == len(loc) - 1:
            path.append(part)
        else:
            tags.append(str(part))
    return tuple(path), frozenset(tags)


def _holds(values: Any, part: str | int) -> bool:
    if isinstance(values, list):
        return isinstance(part, int) and part < len(values)
    return isinstance(values, Mapping) and part in values


def _text(kind: str, item: Mapping[str, Any], context: Mapping[str, Any]) -> str:
    if kind in _WORDS:
        return _WORDS[kind]
    if kind in _LIMITS:
        words, name = _LIMITS[kind]
        return words.format(context[name])
    if kind == "union_tag_not_found":
        return f"needs the key {context.get('discriminator')}"
    if kind == "value_error" and "error" in context:
        return str(context["error"])
    message = str(item["msg"])
    return message.replace("Input should be", "must be").replace("Value error, ", "")


def _choice(expected: str, given: Any) -> str:
    names = [name.strip().strip("'") for name in expected.replace(" or ", ", ").split(",")]
    hint = nearest(given, names) if isinstance(given, str) else ""
    return f"; allowed: {', '.join(names)}{hint}"


def _known(names: Iterable[str], given: str) -> str:
    fields = list(names)
    return f"; known keys: {', '.join(fields)}{nearest(given, fields)}" if fields else ""


def _got(problems: list[_Problem], path: KeyPath, values: Any) -> str:
    if any(problem.kind == "missing" for problem in problems):
        return ""
    value = values
    for part in path:
        value = value[part]
    shown = repr(value) if not isinstance(value, bool) else str(value).lower()
    if value is None:
        shown = "null"
    if isinstance(value, Mapping | list):
        return ""
    return f" (got {shown if len(shown) <= 60 else shown[:57] + '...'})"


def fields_at(model: type[BaseModel], path: KeyPath, tags: frozenset[str] = frozenset()) -> list[str]:
    """The keys that are known at `path` below `model`: those of every branch of a union, or of the tagged one."""
    models: list[type[BaseModel]] = [model]
    for part in path:
        fields = [m.model_fields[part].annotation for m in models if isinstance(part, str) and part in m.model_fields]
        models = _models_in(fields) if fields else models
    tagged = [m for m in models if _tag_values(m) & tags] or models
    return list(dict.fromkeys(_alias(m, name) for m in tagged for name in m.model_fields))


def _alias(model: type[BaseModel], name: str) -> str:
    return model.model_fields[name].alias or name


def _models_in(annotations: Iterable[Any]) -> list[type[BaseModel]]:
    found: list[type[BaseModel]] = []
    for annotation in annotations:
        if typing.get_origin(annotation) is not None:
            found += _models_in(typing.get_args(annotation))
        elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
            found.append(annotation)
    return found


def _tag_values(model: type[BaseModel]) -> frozenset[str]:
    """The model's name and the values of its Literal fields, which pydantic uses as tags."""
    values = {model.__name__}
    for info in model.model_fields.values():
        if typing.get_origin(info.annotation) is typing.Literal:
            values |= {str(value) for value in typing.get_args(info.annotation)}
    return frozenset(values)
