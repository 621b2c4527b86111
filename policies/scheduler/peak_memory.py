"""First come, first served; a request gets in while the most memory that the batch will ever need fits the pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sim.batch import BatchBuilder
    from sim.views import SequenceView

NO_CAP = 2**62


@dataclass
class PeakMemory:
    """Peak-memory admission of S-LoRA and LightLLM (S-LoRA as of the VTC artifact, OSDI 2024).

    Every sequence grows by one token a step until it ends. With the sequences sorted by remaining output, most first,
    the batch holds most when the i-th of them ends: remaining_i x i + the present lengths of the first i. The head of
    the queue gets in if the largest of these stays below the pool; nobody passes it. The output length is what the
    length predictor says, else what the client declared; who outgrows it is taken to end with the next token. With the
    declared maximum nobody is ever preempted. Ignores: blocks (tokens are counted), prefix hits, memory of adapters,
    S-LoRA's pause of 10 steps between two admissions. Steps are not skipped while the head is refused.
    """

    uses_prediction = True

    def queue_key(self, seq: SequenceView) -> tuple[float, ...] | None:
        return None

    def schedule(self, batch: BatchBuilder) -> None:
        batch.add_running(NO_CAP)
        if batch.num_preempted or not (batch.num_waiting or batch.num_swapped):
            return
        pool = batch.num_usable_blocks * batch.block_size
        members = [need(seq, computed) for seq, (_, _, computed) in zip(batch.running(), batch.progress(), strict=True)]
        for seq in batch.waiting():
            members.append(need(seq, seq.num_known))
            if peak(members) >= pool and len(members) > 1:
                batch.ask_again()  # the sum shrinks as the others get on
                break
            if not batch.admit(seq, NO_CAP):
                break


def need(seq: SequenceView, num_computed: int) -> tuple[float, int]:
    """Output tokens that the sequence is still expected to need, and its tokens in memory (all of its prompt)."""
    predicted = seq.predicted_output_tokens
    length = max(num_computed, seq.num_prompt_tokens)
    total = seq.num_prompt_tokens + (seq.max_output_tokens if predicted is None else predicted)
    return max(1.0, total - length), length


def peak(members: Iterable[tuple[float, int]]) -> float:
    """Most tokens that sequences of (remaining output, present length) will hold at one time."""
    most, held = 0.0, 0
    for i, (remaining, length) in enumerate(sorted(members, key=lambda member: -member[0]), start=1):
        held += length
        most = max(most, remaining * i + held)
    return most
