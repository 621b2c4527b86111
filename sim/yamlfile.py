"""YAML files whose mistakes can be pointed at: values, and the line and column of every key path.

Two departures from PyYAML's defaults, both because the default hides mistakes: a key given twice is an error, and
`1e-3` is a number (YAML 1.2), not a string. `parse` keeps the positions, so that an error found later in the
values (a wrong key, a wrong type) can name `file:line:col`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sim.errors import InputError, nearest

_BASE: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FLOAT = re.compile(
    r"^(?:[-+]?(?:[0-9][0-9_]*)(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)?|[-+]?\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
_INT = re.compile(r"^(?:[-+]?0b[0-1_]+|[-+]?0o?[0-7_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+)$")
_MAX_NODES = 100_000
_SKIPPED = ("tag:yaml.org,2002:float", "tag:yaml.org,2002:int", "tag:yaml.org,2002:timestamp")

KeyPath = tuple[str | int, ...]
Positions = dict[KeyPath, tuple[int, int]]


class Loader(_BASE):  # type: ignore[misc, valid-type]
    """PyYAML's safe loader with numbers as in YAML 1.2 and without dates and base-60 integers."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the name and type are PyYAML's
        first: [(tag, regexp) for tag, regexp in resolvers if tag not in _SKIPPED]
        for first, resolvers in _BASE.yaml_implicit_resolvers.items()
    }


Loader.add_implicit_resolver("tag:yaml.org,2002:int", _INT, list("-+0123456789"))
Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


@dataclass(frozen=True)
class YamlFile:
    """The values of one YAML file and where each of them stands."""

    name: str  # as the user wrote it; stands at the start of every message
    values: Any
    positions: Positions

    def position(self, path: Sequence[str | int]) -> str:
        """`name:line:col` of the key (or list item) at `path`, or of its deepest ancestor that the file has."""
        found = self.line_and_column(path)
        return f"{self.name}:{found[0]}:{found[1]}" if found else self.name

    def line_and_column(self, path: Sequence[str | int]) -> tuple[int, int] | None:
        """The same as numbers from 1; None for values that did not come from a file."""
        for length in range(len(path), -1, -1):
            if tuple(path[:length]) in self.positions:
                return self.positions[tuple(path[:length])]
        return None


def read(path: Path, name: str | None = None) -> YamlFile:
    """Read a YAML file. `InputError` for a missing, unreadable or malformed file, with the position."""
    shown = name or str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{shown}: no such file{_similar_files(path)}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{shown}: is not a text file in UTF-8 (byte {error.start})") from None
    except OSError as error:
        raise InputError(f"{shown}: cannot be read ({error.strerror})") from None
    return parse(text, shown)


def parse(text: str, name: str) -> YamlFile:
    """Parse YAML text. `InputError` for a syntax error, a duplicate key or a tag that is not plain YAML."""
    loader = Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return YamlFile(name, None, {})
        positions = _positions(node, name)
        return YamlFile(name, loader.construct_document(node), positions)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        raise InputError(f"{where}: is not valid YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{name}: is not valid YAML: {' '.join(str(error).split())}") from None
    finally:
        loader.dispose()


def parse_value(text: str, name: str) -> Any:
    """The value of a piece of YAML, as in `--set key=VALUE`."""
    return parse(text, name).values


def dump(values: Any) -> str:
    """YAML text of plain values: keys in the given order, block style, floats that read back to the same bits."""
    dumper = _Dumper
    return yaml.dump(values, Dumper=dumper, sort_keys=False, allow_unicode=True, width=120, default_flow_style=False)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _float(dumper: yaml.SafeDumper, value: float) -> yaml.Node:
    text = repr(value).replace("inf", ".inf").replace("nan", ".nan")
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    """Line separators other than a line feed are escaped: in other styles they are read back as blanks."""
    style = '"' if any(separator in value for separator in "\r\x85\u2028\u2029") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(float, _float)
_Dumper.add_representer(str, _text)
# A string that this module's loader would read as a number must be quoted.
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def _positions(root: yaml.Node, name: str) -> Positions:
    """Line and column of every key path; refuses keys given twice and anchors that blow up."""
    found: Positions = {}

    def visit(node: yaml.Node, path: KeyPath, above: frozenset[int]) -> None:
        if id(node) in above or len(found) > _MAX_NODES:
            raise InputError(f"{name}:{node.start_mark.line + 1}: the anchors (&, *) of this file expand without end")
        if isinstance(node, yaml.MappingNode):
            _refuse_duplicate_keys(node, name)
        for part, mark, child in _children(node):
            found[(*path, part)] = (mark.line + 1, mark.column + 1)
            visit(child, (*path, part), above | {id(node)})

    found[()] = (root.start_mark.line + 1, root.start_mark.column + 1)
    visit(root, (), frozenset())
    return found


def _children(node: yaml.Node) -> list[tuple[str | int, yaml.Mark, yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        return [(str(key.value), key.start_mark, value) for key, value in node.value]
    if isinstance(node, yaml.SequenceNode):
        return [(index, item.start_mark, item) for index, item in enumerate(node.value)]
    return []


def _refuse_duplicate_keys(node: yaml.MappingNode, name: str) -> None:
    first: dict[str, int] = {}
    for key, _ in node.value:
        mark = key.start_mark
        if key.value in first and isinstance(key, yaml.ScalarNode):
            raise InputError(
                f"{name}:{mark.line + 1}:{mark.column + 1}: key '{key.value}' is given twice "
                f"(first in line {first[key.value]})"
            )
        if isinstance(key, yaml.ScalarNode):
            first[key.value] = mark.line + 1


def _similar_files(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.suffix in (".yaml", ".yml", ".json")]
    except OSError:
        return ""
    return nearest(path.name, names)
