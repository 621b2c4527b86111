"""One token for every generating slot, then prompts in slot order, each as much as the batch still holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.batch import BatchBuilder
    from sim.views import SequenceView


@dataclass
class LlamaServer:
    """llama.cpp's server (server-context at fb40266); goes with allocator `slots`; n_batch is `max_num_batched_tokens`.

    A request waits for a free slot, in arrival order, and keeps it to its end: nobody is preempted. A long prompt in a
    low slot starves those in higher ones. A sequence ends when its slot's context is full, unless the allocator has
    `context_shift`. Ignores: micro-batches of n_ubatch, LoRA groups, checkpoints, the host prompt cache. A newcomer's
    first chunk comes behind prompts under way, whatever its slot.
    """

    def queue_key(self, seq: SequenceView) -> tuple[float, ...] | None:
        return None

    def never_fits(self, seq: SequenceView, pool_tokens: int, block_size: int, longest: int) -> str | None:
        """Why a request would wait for ever on an empty replica."""
        if seq.num_prompt_tokens < block_size:
            return None
        return f"prompt of {seq.num_prompt_tokens} tokens does not fit a slot of {block_size}"

    def schedule(self, batch: BatchBuilder) -> None:
        batch.add_decodes()
        for seq in batch.prefills_by_slot():
            batch.extend(seq, batch.tokens_left)
        for seq in batch.waiting():
            if not batch.admit(seq, batch.tokens_left, spare_blocks=0):
                break
