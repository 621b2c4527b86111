"""All decodes first, then prompts in arrival order whose KV fits as the capacity rule says, cut into chunks of whole
units.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from sim.batch import BatchBuilder
    from sim.views import SequenceView


@dataclass
class TensorRtLlm:
    """TensorRT-LLM's batch manager (capacity scheduler 02a10fed, micro-batch scheduler 0a949d31).

    `capacity`: `guaranteed_no_evict` admits a prompt only if it and all that run can be completed at their declared
    lengths, so nobody is ever paused; `max_utilization` needs memory for the next step only and pauses the last started
    sequence when it runs out (goes with victim `newest`); `static_batch` is the first, with prompts considered only
    when nothing runs. `chunking`: `first_come_first_served` gives each prompt all that is left, `equal_progress` one
    unit each in turn. `chunk_unit`: tokens; a chunk that does not complete its prompt is a multiple of it. Ignores:
    disaggregated requests, LoRA pages, draft tokens, waiting for blocks that another prompt of the same step computes,
    variable attention windows.
    """

    capacity: Literal["guaranteed_no_evict", "max_utilization", "static_batch"] = "guaranteed_no_evict"
    chunking: Literal["first_come_first_served", "equal_progress"] = "first_come_first_served"
    chunk_unit: int = 64

    def __post_init__(self) -> None:
        if self.chunk_unit < 1:
            raise ValueError(f"chunk_unit must be at least 1 token (got {self.chunk_unit})")

    def queue_key(self, seq: SequenceView) -> tuple[float, ...] | None:
        return None

    def never_fits(self, seq: SequenceView, pool_tokens: int, block_size: int, longest: int) -> str | None:
        """Why a request would wait for ever on an empty replica."""
        blocks = -(-min(seq.num_prompt_tokens + seq.max_output_tokens, longest) // block_size)
        if self.capacity == "max_utilization" or blocks * block_size <= pool_tokens:
            return None
        return f"{self.capacity} reserves {blocks} blocks to completion, the replica has {pool_tokens // block_size}"

    def schedule(self, batch: BatchBuilder) -> None:
        batch.add_decodes_or_preempt()
        running = batch.prefills()
        admissible = self.capacity != "static_batch" or not batch.num_running
        waiting = batch.ordered_by("fcfs") if admissible and not batch.num_preempted else []
        waiting = waiting[: max(0, batch.max_num_seqs - batch.num_running)]
        left = [seq.num_known - seq.num_computed for seq in running]
        left += [seq.num_known - batch.look_up(seq)[0] for seq in waiting]
        shares = self._shares(batch.tokens_left, left, batch.limits.max_num_batched_tokens)
        for seq, tokens in zip(running, shares, strict=False):
            batch.extend(seq, tokens)
        self._admit(batch, waiting, shares[len(running) :])

    def _admit(self, batch: BatchBuilder, waiting: Ordered[SequenceView], shares: Ordered[int]) -> None:
        if not waiting:
            return
        promised = sum(self._blocks(batch, seq) for seq in batch.running())
        for seq, tokens in zip(waiting, shares, strict=True):
            completion = min(seq.num_prompt_tokens + seq.max_output_tokens, batch.limits.max_model_len)
            if self.capacity == "max_utilization":
                admitted = batch.admit(seq, tokens, spare_blocks=0)
            else:
                spare = promised - (batch.num_usable_blocks - batch.free_tokens // batch.block_size)
                admitted = batch.admit(seq, tokens, fit_tokens=completion, spare_blocks=max(0, spare))
            if not admitted:
                return
            promised += self._blocks(batch, seq)

    def _blocks(self, batch: BatchBuilder, seq: SequenceView) -> int:
        longest = min(seq.num_prompt_tokens + seq.max_output_tokens, batch.limits.max_model_len)
        return -(-longest // batch.block_size)

    def _shares(self, capacity: int, left: Ordered[int], budget: int) -> list[int]:
        if sum(left) <= capacity:
            return list(left)
        split = equal_progress if self.chunking == "equal_progress" else first_come_first_served
        return split(capacity, left, min(self.chunk_unit, budget))


def first_come_first_served(capacity: int, left: Ordered[int], unit: int) -> list[int]:
    """Tokens of each context: all it has left, or what the capacity still holds, in whole units."""
    shares = []
    for tokens in left:
        share = tokens if tokens <= capacity else capacity // unit * unit
        shares.append(share)
        capacity -= share
    return shares


def equal_progress(capacity: int, left: Ordered[int], unit: int) -> list[int]:
    """Tokens of each context: a unit each in turn until the next one does not fit."""
    shares = [0] * len(left)
    while True:
        progress = False
        for i, tokens in enumerate(left):
            step = min(unit, tokens - shares[i])
            if step <= 0:
                continue
            if step > capacity:
                return shares
            shares[i] += step
            capacity -= step
            progress = True
        if not progress:
            return shares
