"""KV memory of models whose layers keep different amounts: three ways of counting the bytes of one sequence.

- every layer: no groups; a layer with a sliding window keeps the whole context (so do the simulator's allocators).
- unified pages: vLLM V1. Layers of one kind form groups of equal size, each with a block table of its own, all tables
  draw pages of one size from one pool; a window group gives back blocks that lie wholly before its window.
- ideal: each layer keeps exactly the tokens that it can still see, without blocks.

The scheduler does not use these counts: with window groups admission would need less (`most_pages`), and a prefix hit
would have to suit every group (`hit_blocks`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from sim.model import ModelSpec


class KvCount(NamedTuple):
    """Bytes of keys and values that one decoding sequence of `num_tokens` tokens holds on one GPU."""

    num_tokens: int
    every_layer: int
    unified_pages: int
    ideal: int


@dataclass(frozen=True)
class LayerGroups:
    """Groups of layers that share a block table. `window` in tokens, 0 where the model has no windowed layers."""

    layers_per_group: int
    num_full_groups: int
    num_window_groups: int
    window: int
    block_size: int

    @classmethod
    def of(cls, model: ModelSpec, block_size: int = 16) -> LayerGroups:
        """Groups as large as the rarer kind of layer, or as the other kind if that is less than a quarter larger."""
        full, windowed = model.num_full_layers, model.num_sliding_layers
        if not full or not windowed:
            groups = (1, 0) if full else (0, 1)
            return cls(model.num_layers, *groups, (model.sliding_window or 0) if windowed else 0, block_size)
        few, many = sorted((full, windowed))
        size = many if 4 * many < 5 * few else few
        return cls(size, -(-full // size), -(-windowed // size), model.sliding_window or 0, block_size)

    def live_blocks(self, num_tokens: int) -> int:
        """Blocks that a window group of a decoding sequence still holds; the newest token sees `window` tokens."""
        dead = max(0, num_tokens - self.window) // self.block_size
        return -(-num_tokens // self.block_size) - dead

    def pages(self, num_tokens: int) -> int:
        """Pages of the pool that a decoding sequence holds; a page is one block of one group."""
        full = self.num_full_groups * -(-num_tokens // self.block_size)
        return full + self.num_window_groups * (self.live_blocks(num_tokens) if self.num_window_groups else 0)

    def most_pages(self, num_tokens: int, max_num_batched_tokens: int) -> int:
        """Pages that must fit for a prompt to be admitted: a window group never needs more than window and one step."""
        blocks = -(-num_tokens // self.block_size)
        capped = -(-(self.window - 1 + max_num_batched_tokens) // self.block_size) + 1
        return self.num_full_groups * blocks + self.num_window_groups * min(blocks, capped)

    def hit_blocks(self) -> int:
        """Cached blocks in a row, ending at the hit, that a window group needs for a prefix hit."""
        return -(-(self.window - 1) // self.block_size) if self.num_window_groups else 0


def count_kv(model: ModelSpec, num_tokens: int, block_size: int = 16, tensor_parallel: int = 1) -> KvCount:
    """The three counts for one sequence (all pipeline stages on one GPU)."""
    layer, groups = model.layer_kv_bytes(tensor_parallel), LayerGroups.of(model, block_size)
    block = block_size * layer
    seen = min(num_tokens, model.sliding_window or num_tokens)
    return KvCount(
        num_tokens,
        every_layer=round(-(-num_tokens // block_size) * block * model.num_layers),
        unified_pages=round(groups.pages(num_tokens) * block * groups.layers_per_group),
        ideal=round(layer * (model.num_full_layers * num_tokens + model.num_sliding_layers * seen)),
    )
