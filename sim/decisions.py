"""What policies answer: frozen values that the engine carries out and checks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Admit:
    """Let the request in."""


@dataclass(frozen=True)
class Delay:
    """Ask again at `until` (seconds, later than now)."""

    until: float


@dataclass(frozen=True)
class Reject:
    """Turn the request away; `reason` ends up in requests.parquet."""

    reason: str


Admission = Admit | Delay | Reject
ADMIT = Admit()
