"""The textbook loop: retire, reclaim above the high-water mark, one token for all, prompts while memory lasts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from policies.scheduler.reservation import beyond_budget
from sim.interfaces import Traits

if TYPE_CHECKING:
    from sim.batch import BatchBuilder
    from sim.views import SequenceView

NO_CAP = 2**62


@dataclass
class IterationLevel:
    """Continuous batching as textbooks draw it (after Orca, OSDI 2022): one step for all, blocks on demand.

    Before a step, while its tokens would bring the used share of the KV blocks above `high_water`, a victim gives back
    its blocks; the last sequence is left alone. New prompts are admitted in arrival order as long as they leave the
    used share at or below `low_water`, so that what was reclaimed is not admitted again at once. Ignores: chunked
    prefill, prefix caching in the marks (cached blocks count as free).
    """

    high_water: float = 0.95
    low_water: float = 0.9
    traits: Traits = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 < self.low_water <= self.high_water <= 1:
            raise ValueError("must hold: 0 < low_water <= high_water <= 1")
        self.traits = Traits(high_water=self.high_water, drops_unservable=True)

    def queue_key(self, seq: SequenceView) -> tuple[float, ...] | None:
        return None

    def schedule(self, batch: BatchBuilder) -> None:
        batch.reclaim()
        batch.add_running(NO_CAP)
        if batch.num_preempted:
            return
        spare = batch.num_usable_blocks - int(self.low_water * batch.num_usable_blocks)
        for seq in batch.waiting():
            reason = beyond_budget(batch, seq, seq.num_known)
            if reason is not None:
                batch.drop(seq, reason)
            elif not self._admit(batch, seq, spare):
                break

    def _admit(self, batch: BatchBuilder, seq: SequenceView, spare: int) -> bool:
        """On an empty replica a prompt above the mark is let in: nothing else would ever make room for it."""
        cap = NO_CAP if seq.num_known <= batch.tokens_left else 0
        return batch.admit(seq, cap, spare_blocks=spare if batch.num_running else 0)
