"""Errors that servesim raises on purpose.

ServesimError
|- InputError      what the user gave cannot be used: file, key, value, unit (exit code 2)
|- RunError        a run could not be completed, or a stated expectation did not hold (exit code 1)
|- PolicyError     a policy answered something that it may not answer (exit code 1)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ServesimError(Exception):
    """Base of every error that the command line prints as a message, without a traceback."""

    exit_code = 1


class InputError(ServesimError):
    """What the user gave cannot be used; the message says what, where, and what is allowed."""

    exit_code = 2


class RunError(ServesimError):
    """The run failed, or an `expect` line did not hold."""


class PolicyError(ServesimError):
    """A policy broke a rule of its interface; the message names the policy, the time and the decision."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" for the known name closest to `name`, or an empty string."""
    close = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.5)
    return f" (did you mean '{close[0]}'?)" if close else ""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InputError:
    """An `InputError` for a name that is in no catalogue: the nearest known name and the whole list."""
    names = sorted(known)
    return InputError(f"unknown {kind} '{name}'{nearest(name, names)}; known: {', '.join(names)}")
