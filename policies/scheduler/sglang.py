"""A prefill-only step whenever a waiting request fits the expected need of all; otherwise one decode step for
everybody.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from policies.scheduler.sglang_rules import (
    NewTokenRatio,
    PrefillBudget,
    Verdict,
    expected_tokens,
    keep_order,
    ratio_after_retraction,
)
from sim.interfaces import Traits

if TYPE_CHECKING:
    from sim.batch import BatchBuilder
    from sim.views import SequenceView


@dataclass
class SGLang:
    """The scheduler of SGLang (0.5.23): prefill first, new-token ratio, retraction. Goes with allocator `radix`.

    `queue_policy`: order of the waiting queue (fcfs, lpm = longest cached prefix first, dfs-weight, lof = longest
    declared output first). `chunked_prefill_size`, `max_prefill_tokens`: tokens of a prefill step (0: no chunking).
    `mixed_chunk`: decodes ride along with prefill steps. `schedule_conservativeness` scales the initial ratio. Ignores:
    the overlap of scheduling with the forward pass, priority preemption, hrrn and random orders.
    """

    queue_policy: Literal["fcfs", "lpm", "dfs-weight", "lof"] = "fcfs"
    chunked_prefill_size: int = 8192
    max_prefill_tokens: int = 16384
    mixed_chunk: bool = False
    schedule_conservativeness: float = 1.0
    traits: ClassVar[Traits] = Traits(preempted_last=True)
    _full_until: int = field(default=-1, init=False, repr=False)  # departures seen when the batch was found full
    _ratio_clock: int = field(default=0, init=False, repr=False)  # decode steps when the ratio was last set

    def __post_init__(self) -> None:
        self._ratio = NewTokenRatio(self.schedule_conservativeness)
        self._ratio_base = self._ratio.start

    def queue_key(self, seq: SequenceView) -> tuple[float, ...] | None:
        return None

    def never_fits(self, seq: SequenceView, pool_tokens: int, page_size: int, longest: int) -> str | None:
        """Why a request would wait for ever on an empty replica."""
        if self.chunked_prefill_size % page_size:
            return f"chunked_prefill_size {self.chunked_prefill_size} is not a multiple of the page size {page_size}"
        expected = int(seq.num_prompt_tokens + expected_tokens(seq.max_output_tokens, 0, 1.0)) + page_size
        if expected < pool_tokens:
            return None
        return f"SGLang expects it to need {expected} tokens of KV, the replica has {pool_tokens}"

    def schedule(self, batch: BatchBuilder) -> None:
        if not batch.num_running:
            self._set_ratio(self._ratio.start, batch.decode_clock)
        full = self._full_until == batch.num_departures
        if batch.prefills() or (batch.num_waiting and not full):
            self._prefill(batch)
        elif batch.num_waiting:
            batch.stay_refused()
        if not batch.chunks or self.mixed_chunk:
            self._decode(batch)

    def ratio(self, clock: int) -> float:
        """The new-token ratio after so many decode steps."""
        return max(self._ratio_base - (clock - self._ratio_clock) * self._ratio.decay, self._ratio.floor)

    def _set_ratio(self, value: float, clock: int) -> None:
        self._ratio_base, self._ratio_clock = value, clock

    def _prefill(self, batch: BatchBuilder) -> None:
        ratio = self.ratio(batch.decode_clock)
        running = batch.decoding()
        budget = PrefillBudget(
            lambda: batch.free_tokens + batch.taken_tokens,
            sum(expected_tokens(seq.max_output_tokens, seq.num_emitted, ratio) for seq in running),
            batch.block_size,
            self.max_prefill_tokens,
            self.chunked_prefill_size or None,
            len(running) if self.mixed_chunk else 0,
        )
        for seq in batch.prefills():
            left = seq.num_known - seq.num_computed
            batch.extend(seq, budget.continue_chunked(left, seq.max_output_tokens))
        for seq in batch.ordered_by(self.queue_policy):
            if batch.num_running >= batch.max_num_seqs:
                self._mark_full(batch)
                break
            verdict = budget.verdict()
            if verdict is Verdict.CONTINUE:
                verdict = self._try(batch, budget, seq)
            if verdict is not Verdict.CONTINUE:
                if verdict is Verdict.NO_TOKEN:
                    self._mark_full(batch)
                break

    def _try(self, batch: BatchBuilder, budget: PrefillBudget, seq: SequenceView) -> Verdict:
        cached, idle = batch.look_up(seq)
        tokens, verdict = budget.try_add(seq.num_known - cached, seq.max_output_tokens, seq.num_emitted, idle)
        if tokens and not batch.admit(seq, tokens, spare_blocks=0):
            return Verdict.NO_TOKEN
        return verdict

    def _mark_full(self, batch: BatchBuilder) -> None:
        if batch.num_running:
            self._full_until = batch.num_departures
            batch.stay_refused()

    def _decode(self, batch: BatchBuilder) -> None:
        if batch.add_decodes():
            return
        kept = batch.decoding()
        kept = [kept[i] for i in keep_order(kept)]
        while len(kept) > 1:
            batch.preempt(kept.pop())
            if batch.add_decodes():
                break
        self._set_ratio(ratio_after_retraction(kept), batch.decode_clock + 1)
