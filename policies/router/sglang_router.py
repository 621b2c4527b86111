"""SGLang's gateway as shipped: the latest owner of the longest match in its tree, unless the loads are too unequal.

Source: SGLang 0.5.23, policy cache_aware with the command line's defaults. Differences: the tree is measured in tokens,
not characters (2^26 characters are 2^24 tokens of 4), and what exceeds it is forgotten at once, not every 120 s.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from policies.router.prefix_approximate import PrefixApproximate

if TYPE_CHECKING:
    from sim.views import ClusterView, RequestView, RouterSignals


@dataclass
class SglangRouter(PrefixApproximate):
    """SGLang's gateway (0.5.23), policy cache_aware as shipped."""

    capacity_tokens: int | None = 2**24
    _latest: dict[object, int] = field(default_factory=dict, init=False, repr=False)  # replica index by prefix id
    _signals: RouterSignals = field(init=False, repr=False)

    def begin(self, signals: RouterSignals) -> None:
        super().begin(signals)
        self._signals = signals

    def owner(self, request: RequestView, loads: npt.NDArray[np.int64], owners: npt.NDArray[np.bool_]) -> int:
        """The replica to which the deepest matched id was sent last."""
        assert self.scores is not None
        ids: Ordered[object] = self._signals.prefix(request)
        depth = -(-int(self.scores.max()) // self._signals.block_size)
        position = self._candidates.position(self._latest.get(ids[depth - 1], -1))
        if position is None or not owners[position]:  # it has forgotten
            return super().owner(request, loads, owners)
        return position

    def sent(self, request: RequestView, cluster: ClusterView, position: int) -> None:
        super().sent(request, cluster, position)
        self._latest.update(dict.fromkeys(self._signals.prefix(request), cluster.replicas[position].index))
