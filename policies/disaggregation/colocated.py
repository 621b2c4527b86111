"""Prefill and decode of a request run on the same replica, of any mixed pool."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sim.decisions import Colocated

if TYPE_CHECKING:
    from sim.views import PoolView, RequestView


@dataclass
class AlwaysColocated:
    """No disaggregation."""

    splits: ClassVar[bool] = False

    def place(self, request: RequestView, pools: Ordered[PoolView], now: float) -> Colocated:
        return Colocated()
