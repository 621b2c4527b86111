"""First come, first served: a step of whole prompts while any gets in, else one decode step for everybody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.batch import BatchBuilder
    from sim.views import SequenceView


@dataclass
class DistServe:
    """The context and decoding stages of DistServe (82831f1), here on one replica.

    A prompt joins a context batch while batch size, tokens (`max_num_batched_tokens`) and blocks allow, whole and in
    order; the first that does not fit ends the batch. The blocks of what has been computed and not yet handed to
    decoding count, since both stages share the memory here. Memory that runs out in decoding takes the last request out
    (published: swapped to the host). Ignores: the split into two replicas (a matter of disaggregation), pipeline
    stages, the 5 % rule for waiting KV.
    """

    def queue_key(self, seq: SequenceView) -> tuple[float, ...] | None:
        return None

    def schedule(self, batch: BatchBuilder) -> None:
        for seq in batch.waiting():
            if seq.num_known > batch.tokens_left and (
                batch.chunks or seq.num_known <= batch.limits.max_num_batched_tokens
            ):
                break
            if not batch.admit(seq, seq.num_known, spare_blocks=0):
                break
        if not batch.chunks:
            for seq in batch.prefills():
                batch.extend(seq, batch.tokens_left)
        if not batch.chunks:
            batch.add_decodes_or_preempt()
