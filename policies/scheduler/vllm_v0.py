"""Prompts first, in steps of their own; decodes when no prompt gets in (chunked: decodes first, prompts behind)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from sim.interfaces import Traits

if TYPE_CHECKING:
    from sim.batch import BatchBuilder
    from sim.views import SequenceView

NO_CAP = 2**62


@dataclass
class VllmV0:
    """The scheduler of vLLM V0 (0.6.6): whole prompts in prefill-only steps that stall the decodes; swapped ones first.

    With chunked prefill (`enable_chunked_prefill`): decodes and running chunks, then swapped sequences, then new
    prompts share the token budget; blocks for a whole prompt are taken at its admission. Every decode must find a free
    block, needed or not. A prompt (or a sequence preempted for recomputation) that can never be admitted is dropped at
    its turn.

    `queue_policy`: fcfs, or priority (smaller first; running sequences of lower rank are preempted to let a waiting
    one in; unchunked only). `idle_after_drop`: a call that drops and admits nothing runs nothing (the vLLM baseline of
    Sarathi-Serve). `output_count_restarts`: a preempted sequence counts its output from zero again (that baseline as
    published). Goes with preemption victim `newest`, watermark 0.01, async_scheduling false. Ignores: delay_factor,
    beams, prefix caching in the admission test, LoRA.
    """

    queue_policy: Literal["fcfs", "priority"] = "fcfs"
    idle_after_drop: bool = False
    output_count_restarts: bool = False
    traits: Traits = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._unsorted = False
        self.traits = Traits(
            decode_spare_blocks=1,
            chunk_needs_block=True,
            extra_tokens=1,
            drops_unservable=True,
            restarts_output_count=self.output_count_restarts,
            looks_at_every_arrival=self.queue_policy == "priority",
        )

    def queue_key(self, seq: SequenceView) -> tuple[float, ...] | None:
        return None

    def schedule(self, batch: BatchBuilder) -> None:
        if batch.limits.chunked_prefill:
            self._mixed(batch)
        elif batch.num_swapped or not self._prefill(batch):
            self._decode(batch)

    # --- unchunked ---------------------------------------------------------------------------------------------------

    def _prefill(self, batch: BatchBuilder) -> bool:
        """A prefill-only step; False where no prompt gets in."""
        self._admit(batch)
        if batch.admitted and self.queue_policy == "priority":
            self._unsorted = True
            batch.ask_again()  # the next step brings the new ones to their place
        if self.idle_after_drop and batch.dropped:
            batch.ask_again()
            return True
        return bool(batch.admitted)

    def _decode(self, batch: BatchBuilder) -> None:
        if self.queue_policy == "priority":
            self._make_way(batch)
        forced = batch.num_preempted
        batch.add_running(NO_CAP)
        if batch.num_preempted == forced:
            batch.resume_swapped()

    def _make_way(self, batch: BatchBuilder) -> None:
        """Preempt running sequences that rank behind the first waiting one, until it fits; sort both queues."""
        if self._unsorted:
            batch.reorder(sorted(batch.running(), key=rank))
            self._unsorted = False
        head = batch.first_waiting()
        while head is not None and batch.num_running:
            last = batch.running()[-1]
            if rank(last) <= rank(head) or batch.would_fit(head, batch.limits.watermark_blocks):
                break
            batch.preempt(last)
        batch.sort_waiting(rank)
        if batch.first_waiting() is not head:
            batch.ask_again()  # another one may get in

    # --- chunked -----------------------------------------------------------------------------------------------------

    def _mixed(self, batch: BatchBuilder) -> None:
        before = {seq.row for seq in batch.running()}
        batch.add_running(NO_CAP)
        if not batch.num_preempted:
            batch.resume_swapped()
        self._admit(batch)
        if not batch.everyone_in_turn:
            self._rebuild_order(batch, before)

    def _rebuild_order(self, batch: BatchBuilder, before: set[int]) -> None:
        """Left out by the budget, swapped in (decodes, prefills), decodes, running prefills, new prompts."""
        back = {seq.row for seq in batch.swapped_in}
        prefilling = {seq.row for seq, _ in batch.chunks}

        def place(seq: SequenceView) -> int:
            if seq.row in back:
                return 1 + (seq.row in prefilling)
            if seq.row not in before:
                return 5
            return 3 + (seq.row in prefilling) if batch.takes_part(seq) else 0

        batch.reorder(sorted(batch.running(), key=place))

    # --- both --------------------------------------------------------------------------------------------------------

    def _admit(self, batch: BatchBuilder) -> None:
        for seq in batch.waiting(past_swapped=True):
            if seq in batch.preempted:
                continue  # goes back to the queue after this pass
            reason = self._hopeless(batch, seq)
            if reason is not None:
                batch.drop(seq, reason)
            elif not batch.admit(seq, NO_CAP, hold_tokens=seq.num_known, spare_blocks=batch.limits.watermark_blocks):
                break

    def _hopeless(self, batch: BatchBuilder, seq: SequenceView) -> str | None:
        limits = batch.limits
        most = limits.max_model_len
        if not limits.chunked_prefill:
            most = min(most, limits.max_num_batched_tokens)
        if seq.num_known > most:
            return f"prompt of {seq.num_known} tokens at its admission, at most {most} are allowed"
        blocks = -(-seq.num_known // batch.block_size)
        if batch.num_usable_blocks - blocks < limits.watermark_blocks:
            return f"prompt of {blocks} KV blocks leaves less than the watermark of {batch.num_usable_blocks} blocks"
        return None


def rank(seq: SequenceView) -> tuple[float, ...]:
    """Who is served first: smaller priority, then arrival."""
    return seq.priority, seq.arrival_time, seq.row
