"""A serve command as words: which flag has which value, by a table of the flags that an engine knows."""

from __future__ import annotations

import json
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


def parse(command: str, program: Sequence[str], table: Sequence[Flag]) -> Command:
    """Parse `command`. What comes before and at the last word of `program` (names of commands, modules, images) is the
    shell's, the interpreter's or the container's; the first word without a dash after it is the model.

    Raises `InputError` for quotes that do not close, and for a value that its flag does not take.
    """
    try:
        words = shlex.split(command.replace("\\\n", " "))
    except ValueError as error:
        raise InputError(f"the command cannot be read: {error}") from None
    known = {name: flag for flag in table for name in flag.names}
    found = Command()
    rest = iter(_joined(_without_program(words, program), known))
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


def _without_program(words: Sequence[str], program: Sequence[str]) -> list[str]:
    """The words after environment variables, interpreter, container and the program's name."""
    names = [word.rsplit("/", 1)[-1].partition(":")[0] for word in words]
    last = max((index for index, name in enumerate(names) if name in program), default=-1)
    rest = list(words[last + 1 :])
    while rest and _ASSIGNMENT.match(rest[0]):
        rest.pop(0)
    return rest


def _joined(words: Sequence[str], known: dict[str, Flag]) -> list[str]:
    """`--flag.key value` of JSON flags, as one `--flag={"key": value}`."""
    rest: list[str] = []
    parts: dict[str, dict[str, Any]] = {}
    queue = list(words)
    while queue:
        word = queue.pop(0)
        name, _, key = word.partition("=")[0].partition(".")
        if not (word.startswith("--") and key and _spelled(name, known) in known):
            rest.append(word)
            continue
        value = word.partition("=")[2] if "=" in word else queue.pop(0) if queue else ""
        parts.setdefault(name, {})[key.replace("-", "_")] = _scalar(value)
    return rest + [f"{name}={json.dumps(values)}" for name, values in parts.items()]


def _scalar(text: str) -> Any:
    """A number, a truth value or text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


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
