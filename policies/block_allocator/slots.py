"""A fixed number of slots with equal shares of the memory, each for one sequence."""

from __future__ import annotations

from dataclasses import dataclass

from sim.errors import InputError
from sim.kv.slots import SlotKV


@dataclass
class Slots:
    """llama.cpp's server (server-context at fb40266): `parallel` slots share the KV memory equally.

    `slot_prompt_similarity`: share of a prompt that an idle slot must already hold to be chosen for it (0: never);
    otherwise the slot that was idle longest is taken. `context_shift` (the server's --context-shift, off by default):
    a sequence that fills its slot keeps its first `keep` tokens (--keep, and one more where the model has a BOS token),
    drops half of the others and goes on; otherwise it ends there. Ignores: unified KV, the host prompt cache, reuse of
    shifted chunks, the time that a shift takes.
    """

    parallel: int = 4
    slot_prompt_similarity: float = 0.1
    context_shift: bool = False
    keep: int = 0

    def __post_init__(self) -> None:
        if self.parallel < 1:
            raise ValueError(f"parallel must be at least 1 slot (got {self.parallel})")
        if not 0 <= self.slot_prompt_similarity <= 1:
            raise ValueError(f"slot_prompt_similarity must lie in [0, 1] (got {self.slot_prompt_similarity})")

    def build(self, num_blocks: int, block_size: int, prefix_caching: bool) -> SlotKV:
        context = (num_blocks - 1) * block_size // self.parallel
        if context < 1:
            raise InputError(f"{self.parallel} slots share {(num_blocks - 1) * block_size} tokens: less than one each")
        if self.context_shift and not 0 <= self.keep <= context - 3:
            raise InputError(f"keep must lie in [0, {context - 3}], as a slot has {context} tokens (got {self.keep})")
        keep = self.keep if self.context_shift else None
        return SlotKV(self.parallel, context, self.slot_prompt_similarity, prefix_caching, keep)
