"""Cached content of a replica as plain values: saved at the end of a run, loaded at the start of another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sim.errors import InputError, nearest
from sim.kv.eviction import EvictingKV
from sim.kv.paged import PagedKV


def cache_state(kv: PagedKV) -> dict[str, Any] | None:
    """Block size and pieces (content key, first block, end block), next to be overwritten first; None without cache."""
    if type(kv) not in (PagedKV, EvictingKV) or not kv.prefix_caching:
        return None
    named = (piece for piece in kv.idle_pieces() if piece.run is not None and piece.run.key is not None)
    pieces = [[piece.run.key, piece.low, piece.high] for piece in named if piece.run is not None]
    return {"block_size": kv.block_size, "pieces": pieces}


def warm_up(kv: PagedKV, state: dict[str, Any], source: str) -> None:
    """Fill an empty memory with the content of a state; what was next to be overwritten stays out first."""
    if type(kv) not in (PagedKV, EvictingKV) or not kv.prefix_caching:
        raise InputError(f"{source}: a warm start needs allocator paged with prefix_caching")
    if state["block_size"] != kv.block_size:
        raise InputError(f"{source}: was saved with block_size {state['block_size']}, the pool has {kv.block_size}")
    room, kept = kv.num_free - kv.num_idle, []
    for key, low, high in reversed(state["pieces"]):
        if high - low > room:
            break
        room -= high - low
        kept.append((as_key(key), low, high))
    for key, low, high in reversed(kept):
        kv.insert_idle(key, low, high)


def as_key(value: Any) -> Any:
    """A content key as it was before it was written as JSON: lists were tuples."""
    return tuple(as_key(part) for part in value) if isinstance(value, list) else value


def load_states(path: Path) -> dict[str, dict[str, Any]]:
    """The states of a file `cache_state.json` by replica name. `InputError` where it is none."""
    try:
        states = json.loads(path.read_text(encoding="utf-8"))["replicas"]
        for state in states.values():
            int(state["block_size"])
            for _key, low, high in state["pieces"]:
                int(low), int(high)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{path}: is no cache state (a file that output.cache_state writes)") from None
    return dict(states)


def state_of(states: dict[str, dict[str, Any]], name: str, source: str) -> dict[str, Any]:
    """The state for a replica: that of its name, or the only one there is."""
    if name in states:
        return states[name]
    if len(states) == 1:
        return next(iter(states.values()))
    known = ", ".join(sorted(states))
    raise InputError(f"{source}: has no state for replica '{name}'{nearest(name, states)}; it has: {known}")
