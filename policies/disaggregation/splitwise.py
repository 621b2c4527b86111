"""Every request is split, and a mixed pool takes the prompts and the outputs that the other pools have no room for."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import TYPE_CHECKING

from policies.disaggregation.candidates import together
from sim.decisions import Colocated, Split

if TYPE_CHECKING:
    from sim.decisions import Placement
    from sim.views import PoolView, RequestView


@dataclass
class Splitwise:
    """The mixed pool of Splitwise (ISCA 2024, its simulator), with replicas that stay in their pools.

    The prompt goes to a prefill pool, else to a mixed one, of which some replica has nothing to do, or at most
    `max_pending_tokens` tokens with it. The output goes to a decode pool, else to a mixed one, of which some replica's
    memory holds its outstanding tokens and the request's (declared output, or predicted). Both in one pool: one replica
    does both. Where neither has room the request goes together to the mixed pools, or a decode pool without these.
    Ignores: that the simulator moves machines between pools; the router chooses the replica within the pool.
    """

    max_pending_tokens: int = 8192

    def __post_init__(self) -> None:
        if self.max_pending_tokens < 0:
            raise ValueError(f"max_pending_tokens must not be negative (got {self.max_pending_tokens})")

    def place(self, request: RequestView, pools: Ordered[PoolView], now: float) -> Placement:
        prefill, decode = self._prefill_pool(request, pools), decode_pool(request, pools)
        if prefill is None or decode is None:
            return together(pools)
        return Colocated(prefill) if prefill == decode else Split(prefill, decode)

    def _prefill_pool(self, request: RequestView, pools: Ordered[PoolView]) -> int | None:
        for i in of_roles(pools, "prefill", "mixed"):
            pending = int(pools[i].outstanding_tokens.min())
            if pending == 0 or pending + request.num_prompt_tokens <= self.max_pending_tokens:
                return i
        return None


def decode_pool(request: RequestView, pools: Ordered[PoolView]) -> int | None:
    """The first pool with a replica that has memory for the whole request beside what is outstanding on it."""
    predicted = request.predicted_output_tokens
    tokens = request.num_prompt_tokens + (request.max_output_tokens if predicted is None else predicted)
    for i in of_roles(pools, "decode", "mixed"):
        for replica, outstanding in zip(pools[i].replicas, pools[i].outstanding_tokens.tolist(), strict=True):
            if outstanding + tokens <= replica.num_kv_blocks * replica.kv_block_size:
                return i
    return None


def of_roles(pools: Ordered[PoolView], *roles: str) -> list[int]:
    """Pools that have replicas, by role in the order of `roles`."""
    return [i for role in roles for i, pool in enumerate(pools) if pool.role == role and len(pool.replicas)]
