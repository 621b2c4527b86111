"""The log of steps of one replica: the rows of steps.parquet but for the replica's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.recorder import STEP_COLUMNS, Table

if TYPE_CHECKING:
    from sim.batch import BatchBuilder
    from sim.cohort import Cohort
    from sim.cost.base import BatchShape
    from sim.recorder import StepTimes


class StepLog(Table):
    """One row a step, in order."""

    def __init__(self) -> None:
        super().__init__(STEP_COLUMNS)

    def add(self, shape: BatchShape, start: float, duration: float, builder: BatchBuilder, num_free: int) -> None:
        """A step that the scheduler was asked for; `num_free`: blocks that it left free."""
        tokens = shape.num_prefill_tokens, shape.num_decode_sequences, shape.decode_context
        self.append((start, duration, *tokens, builder.num_preempted, num_free))

    def add_planned(self, cohort: Cohort, times: StepTimes, start: float, num_steps: int, num_free: int) -> None:
        """The coming steps of the cohort, the first at `start`."""
        context, size = cohort.computed + cohort.size, cohort.size
        for i in range(num_steps):
            end = times.end_at[cohort.clock + i]
            taken = cohort.new_blocks(i + 1)
            self.append((start, end - start, 0, size, context + i * size, 0, num_free - taken))
            start = end
