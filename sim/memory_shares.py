"""Where KV memory went: token states, reserves, fragmentation; and how many sequences it could have held at once.

Definitions of the PagedAttention paper (SOSP 2023, Fig. 2). Each slot of memory that a sequence holds is a token
state (written), reserved (to be written before the sequence ends) or internal fragmentation (never written). External
fragmentation is what the placement adds to a reservation, and free memory while a waiting request is refused for lack
of it; there is none in paged memory, which can give every free block. Memory that is free while nobody wants it is
left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from sim.measured import BoolArray, Measured
    from sim.result import ReplicaResult, RunResult

SHARES = ("token_share", "reserved_share", "internal_share", "external_share")


def memory_shares(replicas: Sequence[ReplicaResult]) -> dict[str, Any]:
    """The four shares, which add up to 1, and the parts of the external one; all None where no memory was held.

    Without reservations the open parts of last blocks count as internal, although some of them are written later.
    """
    held = sum(replica.used_block_seconds * replica.block_size for replica in replicas)
    names = ("rounding", "fragmented", "remainder")
    external = {name: _external(replicas, name) for name in names}
    total = held + sum(external.values())
    if total <= 0:
        return {**dict.fromkeys(SHARES), "external": dict.fromkeys(names)}
    token = sum(replica.filled_token_seconds for replica in replicas) / total
    reserved = sum(_reserved(replica) for replica in replicas) / total
    outside = sum(external.values()) / total
    internal = max(0.0, 1.0 - token - reserved - outside)
    shares = dict(zip(SHARES, (token, reserved, internal, outside), strict=True))
    return {**shares, "external": {name: value / total for name, value in external.items()}}


def _external(replicas: Sequence[ReplicaResult], name: str) -> float:
    """Token seconds of one part."""
    return float(sum(getattr(r.memory, f"{name}_block_seconds") * r.block_size for r in replicas))


def _reserved(replica: ReplicaResult) -> float:
    """Token seconds of slots that were waiting to be written."""
    final = replica.memory.final_token_seconds
    return 0.0 if final is None else max(0.0, final - replica.filled_token_seconds)


def concurrency(replicas: Sequence[ReplicaResult], end_time: float) -> dict[str, float | None]:
    """How many sequences ran at once, and how many could have.

    `mean_running`: time average over all replicas. `ceiling`: usable memory / mean footprint of a running sequence
    (rounding included). `eta`: mean length of the sequences that ended / mean memory that they held at their end.
    """
    stays = sum(replica.memory.running_seconds for replica in replicas)
    ended = sum(replica.memory.num_ended_tokens for replica in replicas)
    at_end = sum(replica.memory.num_ended_held_tokens for replica in replicas)
    footprint = sum(r.used_block_seconds + r.memory.rounding_block_seconds for r in replicas) / stays if stays else 0.0
    usable = sum(max(replica.num_blocks - 1, 0) for replica in replicas)
    return {
        "mean_running": stays / end_time if end_time > 0 else None,
        "concurrency_ceiling": usable / footprint if footprint > 0 else None,
        "eta": ended / at_end if at_end else None,
    }


def cache_details(result: RunResult, measured: Measured, looked: BoolArray) -> dict[str, Any]:
    """Hits by block, why content was overwritten, and memory saved by sharing.

    `block_hit_rate`: hits / whole blocks of the prompts that were looked up (`looked`), in blocks of each replica.
    `evicted_blocks`: capacity (content that others could have hit), preempted (what a preempted sequence could have
    hit when it comes back), dead (nobody could). `shared_block_share`: references to blocks beyond the first / all
    references, over time: the blocks that sharing saves, as the PagedAttention paper counts them.
    """
    replicas = result.replicas
    sizes = np.array([replica.block_size for replica in replicas])[measured.columns["prefill_replica"][looked]]
    blocks = int((measured.columns["num_prompt_tokens"][looked] // sizes).sum())
    hits = int((measured.columns["num_cached_tokens"][looked] // sizes).sum())
    dead, preempted = (sum(getattr(r, f"num_evicted_{why}") for r in replicas) for why in ("dead", "preempted"))
    total = sum(replica.num_evicted_blocks for replica in replicas)
    shared = sum(replica.shared_block_seconds for replica in replicas)
    references = shared + sum(replica.used_block_seconds for replica in replicas)
    return {
        "block_hit_rate": hits / blocks if blocks else None,
        "evicted_blocks": {"capacity": total - dead - preempted, "preempted": preempted, "dead": dead},
        "shared_block_share": shared / references if references > 0 else None,
    }
