"""Blocks of a fixed number of tokens, taken one by one as a sequence grows."""

from __future__ import annotations

from dataclasses import dataclass

from sim.kv.paged import PagedKV


@dataclass
class Paged:
    """Block tables with vLLM V1's prefix cache and free-list order (sim/kv/paged.py).

    Waste: the open part of last blocks.
    """

    def build(self, num_blocks: int, block_size: int, prefix_caching: bool) -> PagedKV:
        return PagedKV(num_blocks, block_size, prefix_caching)
