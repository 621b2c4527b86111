"""Skip-join multi-level feedback: who has been served little goes first, and takes the place of who was served much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from policies.scheduler.fcfs import Fcfs
from sim.interfaces import Traits

if TYPE_CHECKING:
    from sim.batch import BatchBuilder, Decoding
    from sim.views import SequenceView


@dataclass
class Mlfq(Fcfs):
    """FastServe's skip-join MLFQ on continuous batching. Lengths need not be predicted.

    A request joins the level whose quantum covers its prefill (level i: `quantum` x 2^i decode steps, a prefill counts
    prompt tokens / `prompt_tokens_per_step`), and sinks a level when its output has used up the quanta so far, down to
    `num_levels` - 1. A waiting request of a higher level that finds no slot or no blocks preempts the running decode
    that lies deepest (the newest of these); within a level nobody is preempted, so a request is preempted at most
    once a level for others' sake.

    Source: FastServe (arXiv 2305.05920). Differs: the victim's KV is dropped and computed again instead of swapped out
    ahead of time. Ignores: promotion of starved requests. While requests wait every step is decided one by one.
    """

    quantum: int = 32
    num_levels: int = 8
    prompt_tokens_per_step: int = 512
    traits: ClassVar[Traits] = Traits(sorted_queue=True)

    def __post_init__(self) -> None:
        if min(self.quantum, self.num_levels, self.prompt_tokens_per_step) < 1:
            raise ValueError("quantum, num_levels and prompt_tokens_per_step must be at least 1")

    def level(self, num_prompt_tokens: int, num_emitted: int) -> int:
        """The level of a request with so many output tokens so far."""
        level, used = self._joins(num_prompt_tokens), self.quantum << self._joins(num_prompt_tokens)
        while num_emitted >= used and level < self.num_levels - 1:
            level += 1
            used += self.quantum << level
        return level

    def _joins(self, num_prompt_tokens: int) -> int:
        quanta = -(-num_prompt_tokens // (self.prompt_tokens_per_step * self.quantum))
        return min(max(0, (quanta - 1).bit_length()), self.num_levels - 1)

    def queue_key(self, seq: SequenceView) -> tuple[float, ...] | None:
        return (self.level(seq.num_prompt_tokens, seq.num_emitted),)

    def admit_waiting(self, batch: BatchBuilder, cap: int) -> None:
        for seq in batch.waiting():
            if self.lacks_slot(seq, batch):
                batch.set_aside()
                continue
            while not batch.admit(seq, cap):
                victim = self._deepest(batch)
                if not batch.tokens_left or victim is None or self._level(victim) <= self._level(seq):
                    batch.ask_again()
                    return
                batch.preempt(victim)

    def _level(self, seq: SequenceView | Decoding) -> int:
        return self.level(seq.num_prompt_tokens, seq.num_emitted)

    def _deepest(self, batch: BatchBuilder) -> Decoding | None:
        return max(batch.decoding(), key=lambda seq: (self._level(seq), seq.order), default=None)
