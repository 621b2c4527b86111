"""What policies answer: frozen values that the engine carries out and checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


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


class GpuSlot(NamedTuple):
    """One GPU: the index of its node, and its number in the node."""

    node: int
    gpu: int


@dataclass(frozen=True)
class Placed:
    """The GPUs of each replica in rank order: rank = stage * tensor_parallel + rank in the tensor-parallel group."""

    replicas: tuple[tuple[GpuSlot, ...], ...]


@dataclass(frozen=True)
class NotPlaced:
    """The replicas do not fit; `reason` is shown to the user."""

    reason: str


Admission = Admit | Delay | Reject
ADMIT = Admit()


@dataclass(frozen=True)
class Colocated:
    """One replica computes prompt and output. `pool`: position of its pool; None: any pool of role mixed."""

    pool: int | None = None


@dataclass(frozen=True)
class Split:
    """A replica of one pool computes the prompt, one of another pool the output. Positions of the pools."""

    prefill_pool: int
    decode_pool: int


Placement = Colocated | Split
