"""Padded batches: what a batch of rows of equal length costs, whoever in it has finished (request-level batching)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.cost.base import BatchShape

if TYPE_CHECKING:
    from sim.replica import Replica
    from sim.request import Sequence
    from sim.units import FloatArray


class Padding:
    """The batch of one replica: all running sequences, finished ones included, padded to the longest prompt.

    Finished sequences are held back until the whole batch has finished, and end with it.
    """

    def __init__(self) -> None:
        self.prompt = 0  # tokens to which the prompts of the batch are padded
        self.clock = 0  # decode clock at which it began
        self.held_back: list[Sequence] = []

    def shape(self, replica: Replica, size: int, chunks: list[tuple[Sequence, int]]) -> BatchShape:
        """The batch as it is computed: every row as long as the longest."""
        rows = len(replica.running)
        if chunks:
            self.prompt = longest = max(seq.num_computed for seq, _ in chunks)
            self.clock = replica.cohort.clock
            return BatchShape(
                rows * longest, rows, rows * (longest * (longest + 1) // 2), rows * longest, 0, 0, longest
            )
        context = self._context(replica)
        return BatchShape(0, 0, 0, 0, rows, rows * context, context)

    def _context(self, replica: Replica) -> int:
        return self.prompt + replica.cohort.clock - self.clock + 1

    def decode_times(self, replica: Replica, num_steps: int) -> FloatArray:
        """Seconds of the coming decode steps."""
        rows, context = len(replica.running), self._context(replica)
        return replica.cost.decode_times(rows, rows * context, context, num_steps)

    def finished(self, replica: Replica, done: Sequence | None) -> list[Sequence]:
        """Who ends now that `done` is finished (None: somebody was taken away): all of the batch, or nobody."""
        if done is not None:
            self.held_back.append(done)
        self.held_back = [seq for seq in self.held_back if seq.order in replica.running]
        if len(self.held_back) < len(replica.running):
            return []
        ended, self.held_back = self.held_back, []
        return ended
