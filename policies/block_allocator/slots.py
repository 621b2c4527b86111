"""A fixed number of slots with equal shares of the memory, each for one sequence."""

from __future__ import annotations

from dataclasses import dataclass

from sim.errors import InputError
from sim.kv.slots import SlotKV


@dataclass
class Slots:
    """llama.cpp's server (server-context at fb40266): `parallel` slots share the KV memory equally.

    `slot_prompt_similarity`: share of a prompt that an idle slot must already hold to be chosen for it (0: never);
    otherwise the slot that was idle longest is taken. Ignores: unified KV, the host prompt cache, reuse of shifted
    chunks.
    """

    parallel: int = 4
    slot_prompt_similarity: float = 0.1

    def __post_init__(self) -> None:
        if self.parallel < 1:
            raise ValueError(f"parallel must be at least 1 slot (got {self.parallel})")
        if not 0 <= self.slot_prompt_similarity <= 1:
            raise ValueError(f"slot_prompt_similarity must lie in [0, 1] (got {self.slot_prompt_similarity})")

    def build(self, num_blocks: int, block_size: int, prefix_caching: bool) -> SlotKV:
        context = (num_blocks - 1) * block_size // self.parallel
        if context < 1:
            raise InputError(f"{self.parallel} slots share {(num_blocks - 1) * block_size} tokens: less than one each")
        return SlotKV(self.parallel, context, self.slot_prompt_similarity, prefix_caching)
