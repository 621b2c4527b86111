"""Eviction policies: which idle cached content is overwritten when KV memory is needed."""

from __future__ import annotations

from collections.abc import Callable

from policies.eviction.arc import Arc
from policies.eviction.belady import Belady
from policies.eviction.fifo import Fifo
from policies.eviction.lfu import Lfu
from policies.eviction.lru import Lru
from sim.kv.eviction import EvictionPolicy

EVICTIONS: dict[str, Callable[..., EvictionPolicy]] = {
    "lru": Lru,
    "fifo": Fifo,
    "lfu": Lfu,
    "arc": Arc,
    "belady": Belady,
}
