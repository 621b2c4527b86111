"""Every request is split: the prompt in a prefill pool, the output in a decode pool, the least loaded of each."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import TYPE_CHECKING

from policies.disaggregation.candidates import split

if TYPE_CHECKING:
    from sim.decisions import Split
    from sim.views import PoolView, RequestView


@dataclass
class AlwaysSplit:
    """DistServe (82831f1). Load: outstanding tokens a replica."""

    def place(self, request: RequestView, pools: Ordered[PoolView], now: float) -> Split:
        return split(pools)
