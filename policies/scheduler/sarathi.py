"""Stall-free batches: every decode in every step, then chunks of running and of new prompts up to a token budget."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sim.interfaces import Traits

if TYPE_CHECKING:
    from sim.batch import BatchBuilder
    from sim.views import SequenceView


@dataclass
class Sarathi:
    """Sarathi-Serve (96f9911): its chunk size, a step's token budget, is `max_num_batched_tokens`; a decode is
    one.

    Blocks for a whole prompt are taken at its admission, beyond the watermark; the first that does not fit ends the
    pass. Every decode must find a free block, needed or not. A sequence preempted for recomputation may come back in
    the same step.

    Dynamic chunks: with `dynamic_chunk_stages` > 0 the budget that a prompt may fill falls over its progress in so
    many equal stages of `dynamic_chunk_max_tokens` prompt tokens, linearly from `dynamic_chunk_high` to
    `dynamic_chunk_low` tokens, rounded to multiples of 32 (of the low end where that is less).
    `output_count_restarts`: a preempted sequence counts its output from zero again, as published (taken for a bug).
    Goes with preemption victim `newest`, watermark 0.01, async_scheduling false. Ignores: pipeline stages, prefix
    caching.
    """

    dynamic_chunk_stages: int = 0
    dynamic_chunk_low: int = 32
    dynamic_chunk_high: int = 256
    dynamic_chunk_max_tokens: int = 4096
    output_count_restarts: bool = False
    traits: Traits = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.dynamic_chunk_low <= self.dynamic_chunk_high:
            raise ValueError("dynamic_chunk_low must be from 1 to dynamic_chunk_high")
        if self.dynamic_chunk_stages < 0 or self.dynamic_chunk_max_tokens < 1:
            raise ValueError("dynamic_chunk_stages must not be negative, dynamic_chunk_max_tokens at least 1")
        self._chunks = self._chunk_sizes()
        self.traits = Traits(
            decode_spare_blocks=1,
            extra_tokens=1,
            drops_unservable=True,
            restarts_output_count=self.output_count_restarts,
        )

    def _chunk_sizes(self) -> list[int]:
        """Budget by stage, high to low; empty where chunks are not dynamic."""
        stages, low, high = self.dynamic_chunk_stages, self.dynamic_chunk_low, self.dynamic_chunk_high
        unit = min(32, low)
        sizes = [int(low + (high - low) * i / (stages - 1)) if stages > 1 else low for i in range(stages)]
        return [round(size / unit) * unit for size in reversed(sizes)]

    def queue_key(self, seq: SequenceView) -> tuple[float, ...] | None:
        return None

    def schedule(self, batch: BatchBuilder) -> None:
        batch.add_decodes_or_preempt()
        for seq in batch.prefills():
            batch.extend(seq, self._budget(batch, seq.num_computed))
        for seq in batch.waiting():
            reason = hopeless(batch, seq)
            if reason is not None:
                batch.drop(seq, reason)
            elif not self._admit(batch, seq):
                break

    def _admit(self, batch: BatchBuilder, seq: SequenceView) -> bool:
        # One preempted in this very step is measured by what it had computed: nothing is left of a decode.
        computed, left = batch.progress_lost.get(seq.row, (0, seq.num_known))
        cap = min(left, self._budget(batch, computed))
        return batch.admit(seq, cap, hold_tokens=seq.num_known, spare_blocks=batch.limits.watermark_blocks)

    def _budget(self, batch: BatchBuilder, computed: int) -> int:
        """Tokens that a prompt with so many computed may add to this step."""
        if not self._chunks:
            return batch.tokens_left
        stage = computed // -(-self.dynamic_chunk_max_tokens // self.dynamic_chunk_stages)
        return self._chunks[min(stage, len(self._chunks) - 1)] - batch.num_tokens


def hopeless(batch: BatchBuilder, seq: SequenceView) -> str | None:
    """Why a waiting sequence can never be admitted, or None."""
    most = batch.limits.max_model_len
    if seq.num_known > most:
        return f"prompt of {seq.num_known} tokens at its admission, at most {most} are allowed"
    blocks = -(-seq.num_known // batch.block_size)
    if batch.num_usable_blocks - blocks < batch.limits.watermark_blocks:
        return f"prompt of {blocks} KV blocks leaves less than the watermark of {batch.num_usable_blocks} blocks"
    return None
