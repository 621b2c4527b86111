"""Preemption policies: who loses its blocks when memory runs out."""

from __future__ import annotations

from collections.abc import Callable

from policies.preemption.lowest_priority import LowestPriority
from policies.preemption.newest import Newest
from sim.interfaces import PreemptionPolicy

PREEMPTIONS: dict[str, Callable[..., PreemptionPolicy]] = {"newest": Newest, "lowest_priority": LowestPriority}
