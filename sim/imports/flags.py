"""A serve command as words: which flag has which value, by a table of the flags that an engine knows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sim.errors import InputError, nearest

_ASSIGNMENT = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*=")
_HUMAN = re.compile(r"^(\d+(?:\.\d+)?)([kKmM]?)$")
_FACTORS = {"": 1, "k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2}


@dataclass(frozen=True)
class Flag:
    """A flag that an engine knows. `key`: the key path below the pool that it sets; None: it is ignored, see `why`.

    `switch`: the flag has no value of its own and stands for this one. `read`: from the text to the value.
    """

    names: tuple[str, ...]
    key: str | None = None
    read: Callable[[str], Any] = str
    switch: Any = None
    why: str = ""


@dataclass
class Command:
    """A parsed command: the model, what was taken (key -> value, flag as written) and what was not."""

    model: str | None = None
    taken: dict[str, tuple[Any, str]] = field(default_factory=dict)
    ignored: list[tuple[str, str]] = field(default_factory=list)  # flag as written, why
    unknown: list[tuple[str, str]] = field(default_factory=list)  # flag as written, " (did you mean ...?)"


def whole(text: str) -> int:
    """A whole number as engines read it: 8192, 8k (1000), 8K (1024)."""
    match = _HUMAN.match(text)
    if match is None or (found := float(match[1]) * _FACTORS[match[2]]) != int(found):
        raise ValueError("must be a whole number such as 8192 or 32k")
    return int(found)


def takes(names: str, key: str, read: Callable[[str], Any] = str) -> Flag:
    """A flag with a value that is taken over."""
    return Flag(tuple(names.split()), key, read)


def switches(name: str, key: str) -> tuple[Flag, Flag]:
    """`--name` for true and `--no-name` for false."""
    return Flag((f"--{name}",), key, switch=True), Flag((f"--no-{name}",), key, switch=False)


def ignores(names: str, why: str, switch: bool = False) -> list[Flag]:
    """Flags that change nothing here, or nothing that is modelled."""
    return [Flag((name,), switch=True if switch else None, why=why) for name in names.split()]


def parse(command: str, skipped: Sequence[str], table: Sequence[Flag]) -> Command:
    """Parse `command`. `skipped`: words of the program's own name; the first other word without a dash is the model.

    Raises `InputError` for quotes that do not close, and for a value that its flag does not take.
    """
    try:
        words = shlex.split(command.replace("\\\n", " "))
    except ValueError as error:
        raise InputError(f"the command cannot be read: {error}") from None
    known = {name: flag for flag in table for name in flag.names}
    found = Command()
    rest = iter(_without_program(words, skipped))
    pushed: list[str] = []
    while (word := pushed.pop() if pushed else next(rest, None)) is not None:
        if not word.startswith("-"):
            if found.model is None:
                found.model = word
            else:
                found.unknown.append((word, ""))
            continue
        name, equals, value = word.partition("=")
        flag = known.get(_spelled(name, known))
        if flag is None:
            pushed += _note_unknown(found, word, name, equals, known, rest)
        else:
            _note(found, flag, name, value if equals else None, rest)
    return found


def _without_program(words: Sequence[str], skipped: Sequence[str]) -> list[str]:
    """The words after environment variables, the interpreter and the program's name."""
    start = 0
    while start < len(words) and (_ASSIGNMENT.match(words[start]) or words[start].rsplit("/", 1)[-1] in skipped):
        start += 1
    return list(words[start:])


def _spelled(name: str, known: dict[str, Flag]) -> str:
    """The flag's usual spelling: dashes and underscores are the same in long flags."""
    if name in known:
        return name
    usual = name[:2] + name[2:].replace("_", "-")
    return usual if usual in known else name[:2] + name[2:].replace("-", "_")


def _note_unknown(
    found: Command, word: str, name: str, equals: str, known: dict[str, Flag], rest: Iterator[str]
) -> list[str]:
    """Keep an unknown flag with what looks like its value; returns the word that was read too far."""
    value = None if equals else next(rest, None)
    is_value = value is not None and not value.startswith("-")
    found.unknown.append((f"{word} {value}" if is_value else word, nearest(name, known)))
    return [] if is_value or value is None else [value]


def _note(found: Command, flag: Flag, name: str, value: str | None, rest: Iterator[str]) -> None:
    if flag.switch is None and value is None:
        value = next(rest, None)
        if value is None:
            raise InputError(f"{name}: needs a value")
    shown = name if value is None else f"{name} {shlex.quote(value)}"
    if flag.key is None:
        found.ignored.append((shown, flag.why))
        return
    read = flag.switch if value is None or flag.switch is not None else _read(flag, name, value)
    if flag.key == "model":
        found.model = read
    else:
        found.taken[flag.key] = read, shown


def _read(flag: Flag, name: str, value: str) -> Any:
    try:
        return flag.read(value)
    except ValueError as error:
        text = str(error)
        reason = text if text.startswith("must") else f"must be a {flag.read.__name__}"
        raise InputError(f"{name} {value}: {reason}") from None
