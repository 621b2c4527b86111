"""What the disaggregation policies share: the pools that come into question, and the least loaded of them."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from typing import TYPE_CHECKING

from sim.decisions import Colocated, Split

if TYPE_CHECKING:
    from sim.views import PoolView


def least_loaded(pools: Ordered[PoolView], role: str) -> int | None:
    """The pool of a role with the fewest outstanding tokens a replica; ties go to the first, None if there is none."""
    known = [i for i, pool in enumerate(pools) if pool.role == role and len(pool.replicas)]
    return min(known, key=lambda i: float(pools[i].outstanding_tokens.mean()), default=None)


def split(pools: Ordered[PoolView]) -> Split:
    """Prompt and output in the least loaded pools of role prefill and decode."""
    prefill, decode = least_loaded(pools, "prefill"), least_loaded(pools, "decode")
    return Split(-1 if prefill is None else prefill, -1 if decode is None else decode)


def together(pools: Ordered[PoolView]) -> Colocated:
    """In the mixed pools if there are any, else in the least loaded decode pool, as Dynamo does it."""
    if least_loaded(pools, "mixed") is not None:
        return Colocated()
    return Colocated(least_loaded(pools, "decode"))


def where_together(pools: Ordered[PoolView]) -> PoolView | None:
    """The pool in which `together` would place a request, the least loaded where there are several."""
    mixed = least_loaded(pools, "mixed")
    chosen = least_loaded(pools, "decode") if mixed is None else mixed
    return None if chosen is None else pools[chosen]
