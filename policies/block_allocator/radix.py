"""Pages of tokens with a token-level prefix tree instead of hashed blocks."""

from __future__ import annotations

from dataclasses import dataclass

from sim.kv.paged import PagedKV
from sim.kv.radix_kv import RadixKV


@dataclass
class Radix:
    """SGLang's cache (0.5.23): `block_size` is the page size, 1 token by default there; leaves are evicted
    whole, LRU. Ignores: the other eviction orders of its tree, hierarchical caches in host memory.
    """

    def build(self, num_blocks: int, block_size: int, prefix_caching: bool) -> PagedKV:
        return RadixKV(num_blocks, block_size) if prefix_caching else PagedKV(num_blocks, block_size, False)
