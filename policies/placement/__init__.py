"""Placement policies: which GPUs the replicas get."""

from __future__ import annotations

from collections.abc import Callable

from policies.placement.pack import Pack
from sim.interfaces import PlacementPolicy

PLACEMENTS: dict[str, Callable[..., PlacementPolicy]] = {"pack": Pack}
