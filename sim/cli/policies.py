"""`servesim policies`: the catalogue of policies, from their dictionaries and docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any

import typer

from sim.errors import InputError, nearest, unknown_name

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_policies(
    kind: Annotated[str | None, typer.Argument(help="Only this kind, such as router.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the policies of every kind, each with its rule in a line."""
    import policies

    kinds = [_known_kind(kind)] if kind else list(policies.KINDS)
    catalogue = {each: {name: summary(cls) for name, cls in _table(each).items()} for each in kinds}
    if as_json:
        _print_json(catalogue)
        return
    for each, entries in catalogue.items():
        if entries:
            print(each)
        width = max((len(name) for name in entries), default=0)
        for name, line in entries.items():
            print(f"  {name:<{width}}  {line}")


@app.command("show")
def show_policy(
    name: Annotated[str, typer.Argument(help="NAME, KIND.NAME or module:Class.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a policy does and its parameters with types and defaults."""
    found = [describe(kind, short, cls) for kind, short, cls in _find(name)]
    if as_json:
        _print_json(found[0] if len(found) == 1 else found)
        return
    print("\n\n".join(_as_text(entry) for entry in found))


@app.command("check")
def check_policy(
    name: Annotated[str, typer.Argument(help="NAME, KIND.NAME or module:Class.")],
    kind: Annotated[str | None, typer.Option(help="The kind, where the name does not tell it.")] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A parameter of the policy.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check that a policy keeps the rules, in small whole runs; exit code 1 when one is broken."""
    from sim import policy_check
    from sim.errors import RunError

    kind, short = _one(name, kind)
    checks = policy_check.check_policy(kind, short, _settings(sets or []))
    failed = [check for check in checks if not check.passed]
    if as_json:
        _print_json({"kind": kind, "name": short, "checks": [dataclasses.asdict(check) for check in checks]})
    else:
        width = max(len(check.name) for check in checks)
        print(f"{short} ({kind.replace('_', ' ')})")
        for check in checks:
            print(f"  {'pass' if check.passed else 'FAIL'}  {check.name:<{width}}  {check.detail}")
    if failed:
        raise RunError(f"{short}: {len(failed)} of {len(checks)} checks failed")


def _one(name: str, kind: str | None) -> tuple[str, str]:
    """(kind, name within it) of the one policy that is meant."""
    import policies
    from sim.policy_check import kind_of

    if kind is not None:
        policies.find(_known_kind(kind), name)
        return kind, name
    if ":" in name:
        return kind_of(policies.find("router", name)), name
    found = _find(name)
    if len(found) > 1:
        raise InputError(f"'{name}' names {', '.join(f'{each}.{short}' for each, short, _ in found)}; give --kind")
    return found[0][0], found[0][1]


def _settings(texts: list[str]) -> dict[str, Any]:
    from sim.yamlfile import parse_value

    settings = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise InputError(f"--set {text}: must be KEY=VALUE with a parameter of the policy")
        settings[key.strip()] = parse_value(value, f"--set {text}")
    return settings


def summary(cls: Callable[..., Any]) -> str:
    """The rule of a policy in one line: of ours its module's docstring begins with it, of others their class's."""
    if cls.__module__.startswith("policies."):
        text = inspect.getdoc(inspect.getmodule(cls)) or ""
        return " ".join(text.partition("\n\n")[0].split())
    return documentation(cls).partition("\n")[0]


def documentation(cls: Callable[..., Any]) -> str:
    """A policy's own docstring, else its module's (a dataclass without one gets its signature from Python)."""
    text = inspect.getdoc(cls) or ""
    if not text or text.startswith(f"{getattr(cls, '__name__', '')}("):
        module = inspect.getmodule(cls)
        text = inspect.getdoc(module) or "" if module else ""
    return text


def describe(kind: str, name: str, cls: Callable[..., Any]) -> dict[str, Any]:
    """Everything that `show` prints."""
    import policies

    return {
        "kind": kind,
        "name": name,
        "class": f"{cls.__module__}:{getattr(cls, '__qualname__', cls)}",
        "rule": summary(cls),
        "documentation": documentation(cls),
        "parameters": [_parameter(cls, field) for field in policies.parameters(cls)],
    }


def meaning(cls: Any, name: str) -> str:
    """What the docstring of a policy or its module, or of one that it extends, says of a parameter, with its unit."""
    for base in cls.__mro__[:-1] if isinstance(cls, type) else ():
        text = " ".join(f"{vars(base).get('__doc__') or ''} {inspect.getdoc(inspect.getmodule(base)) or ''}".split())
        for pattern in (rf"`{name}`: ([^.]*(?:\.\S[^.]*)*)\.(?: |$)", rf"([^.]*`{name}`[^.]*(?:\.\S[^.]*)*)\.(?: |$)"):
            if found := re.search(pattern, text):
                return found[1].strip()
    return ""


def _parameter(cls: Any, field: dataclasses.Field[Any]) -> dict[str, Any]:
    kind = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", str(field.type))
    described: dict[str, Any] = {"name": field.name, "type": kind}
    if field.default is not dataclasses.MISSING:
        described["default"] = field.default
    elif field.default_factory is not dataclasses.MISSING:
        described["default"] = field.default_factory()
    return described | {"meaning": meaning(cls, field.name)}


def _as_text(entry: dict[str, Any]) -> str:
    lines = [f"{entry['name']} ({entry['kind'].replace('_', ' ')}, {entry['class']})", f"  {entry['rule']}", ""]
    lines += [f"  {line}".rstrip() for line in entry["documentation"].splitlines()]
    lines += ["", "  parameters:" if entry["parameters"] else "  no parameters"]
    for parameter in entry["parameters"]:
        default = f" = {parameter['default']!r}" if "default" in parameter else " (required)"
        lines.append(f"    {parameter['name']}: {parameter['type']}{default}")
        if parameter["meaning"]:
            lines.append(f"        {parameter['meaning']}")
    return "\n".join(lines)


def _find(name: str) -> list[tuple[str, str, Callable[..., Any]]]:
    """All policies of that name; a name may exist in several kinds."""
    import policies

    if ":" in name:
        return [("external", name, policies.find("router", name))]  # any kind: the class is imported by its path
    kind, _, short = name.rpartition(".")
    kinds = [_known_kind(kind)] if kind else list(policies.KINDS)
    tables = {each: _table(each) for each in kinds}
    found = [(each, short, table[short]) for each, table in tables.items() if short in table]
    if not found:
        known = [each for table in tables.values() for each in table]
        raise InputError(f"unknown policy '{name}'{nearest(short, known)}; `servesim policies list` shows all")
    return found


def _known_kind(kind: str) -> str:
    import policies

    if kind not in policies.KINDS:
        raise unknown_name("kind of policy", kind, policies.KINDS)
    return kind


def _table(kind: str) -> dict[str, Callable[..., Any]]:
    import policies

    return policies.table(kind)


def _print_json(values: Any) -> None:
    import json

    print(json.dumps(values, indent=2, default=str))
