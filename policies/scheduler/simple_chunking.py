"""Prompt chunks and decodes take turns: a step of chunks, then a step of decodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from policies.scheduler.sarathi import hopeless
from sim.interfaces import Traits

if TYPE_CHECKING:
    from sim.batch import BatchBuilder
    from sim.views import SequenceView


@dataclass
class SimpleChunking:
    """The chunking baseline of Sarathi-Serve (96f9911); a step of chunks holds at most `max_num_batched_tokens` tokens.

    Unfinished prompts go before new ones and keep them out of that step; a turn of chunks without work falls through
    to the decodes. Blocks for a whole prompt are taken at its admission, beyond the watermark. `output_count_restarts`
    as in sarathi. Goes with preemption victim `newest`, watermark 0.01, async_scheduling false. Ignores: pipeline
    stages, prefix caching.
    """

    output_count_restarts: bool = False
    traits: Traits = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._decodes_turn = False
        self.traits = Traits(
            decode_spare_blocks=1,
            extra_tokens=1,
            drops_unservable=True,
            restarts_output_count=self.output_count_restarts,
        )

    def queue_key(self, seq: SequenceView) -> tuple[float, ...] | None:
        return None

    def schedule(self, batch: BatchBuilder) -> None:
        if not self._decodes_turn and self._add_chunks(batch):
            self._decodes_turn = True
            batch.ask_again()
            return
        batch.add_decodes_or_preempt()
        if self._decodes_turn:
            batch.ask_again()  # the next turn is another one, even if this step was empty
        self._decodes_turn = False

    def _add_chunks(self, batch: BatchBuilder) -> bool:
        for seq in batch.prefills():
            batch.extend(seq, batch.tokens_left)
        if batch.chunks:
            return True
        for seq in batch.waiting():
            reason = hopeless(batch, seq)
            if reason is not None:
                batch.drop(seq, reason)
            elif not batch.admit(
                seq, batch.tokens_left, hold_tokens=seq.num_known, spare_blocks=batch.limits.watermark_blocks
            ):
                break
        return bool(batch.chunks)
