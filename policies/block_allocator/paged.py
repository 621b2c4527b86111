"""Blocks of a fixed number of tokens, taken one by one as a sequence grows."""

from __future__ import annotations

from dataclasses import dataclass

from policies import find, table
from sim.errors import unknown_name
from sim.kv.eviction import EvictingKV
from sim.kv.paged import PagedKV


@dataclass
class Paged:
    """Block tables with vLLM V1's prefix cache and free-list order (sim/kv/paged.py).

    Waste: the open part of last blocks. `eviction`: which idle cached content is overwritten first (`servesim policies
    list eviction`); lru is the engine's. Source: vLLM V1 (0.33). Ignores: blocks of several sizes for layers with
    windows, cascade attention.
    """

    eviction: str = "lru"

    def __post_init__(self) -> None:
        if ":" not in self.eviction and self.eviction not in table("eviction"):
            raise ValueError(str(unknown_name("eviction policy", self.eviction, table("eviction"))))
        self._eviction = find("eviction", self.eviction)

    def build(self, num_blocks: int, block_size: int, prefix_caching: bool) -> PagedKV:
        if self.eviction == "lru" or not prefix_caching:
            return PagedKV(num_blocks, block_size, prefix_caching)
        return EvictingKV(num_blocks, block_size, self._eviction())
