"""Running sequences first, in running order; then waiting ones by arrival, up to the first that does not get in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.batch import BatchBuilder
    from sim.views import SequenceView

NO_CAP = 2**62


@dataclass
class Fcfs:
    """The scheduler of vLLM V1 (0.33) with policy fcfs: continuous batching with chunked prefill.

    `long_prefill_token_threshold`: most prompt tokens of one sequence in a step (0: no cap); not applied to a sequence
    that is alone on the replica. `max_loras`: most different LoRA adapters in a batch (1 is the engine's default); a
    sequence whose adapter finds no slot is passed over and those behind it go on, so adapters can starve. Ignores:
    encoder budgets, structured output, the time that an adapter takes to load and to compute.
    """

    long_prefill_token_threshold: int = 0
    max_loras: int = 1

    def queue_key(self, seq: SequenceView) -> tuple[float, ...] | None:
        return None

    def schedule(self, batch: BatchBuilder) -> None:
        cap = self.long_prefill_token_threshold
        if not cap or batch.num_sequences == 1:
            cap = NO_CAP
        batch.add_running(cap)
        if not batch.num_preempted:
            self.admit_waiting(batch, cap)

    def admit_waiting(self, batch: BatchBuilder, cap: int) -> None:
        """Waiting sequences in order, until the first that does not get in; chunks of at most `cap` tokens."""
        for seq in batch.waiting():
            if self.lacks_slot(seq, batch):
                batch.set_aside()
            elif not batch.admit(seq, cap):
                break
            else:
                self.admitted(seq, batch)

    def lacks_slot(self, seq: SequenceView, batch: BatchBuilder) -> bool:
        """Whether the batch has no room for the adapter of a sequence."""
        if seq.adapter is None:
            return False
        used = batch.running_adapters()
        return seq.adapter not in used and len(used) >= self.max_loras

    def admitted(self, seq: SequenceView, batch: BatchBuilder) -> None:
        """For schedulers that keep accounts: a waiting sequence has joined the batch."""
