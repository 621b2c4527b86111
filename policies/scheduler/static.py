"""Request-level batching: a batch is formed, runs until all of it has finished, and nobody joins meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from policies.scheduler.orca import NO_CAP, admit_whole
from sim.interfaces import Traits

if TYPE_CHECKING:
    from sim.batch import BatchBuilder
    from sim.views import SequenceView


@dataclass
class Static:
    """FasterTransformer: up to `max_num_seqs` prompts, FCFS, prefilled in one step, then decoded until the last ends.

    `padded`: every row costs as much as the longest, prompts and decodes alike, finished rows compute on, keep their
    memory, and all requests of a batch end with it (token times are those of the computation). Not padded
    (Sarathi-Serve's baseline, 96f9911): finished sequences leave the batch at once. `reservation`, `extra_tokens` as
    in orca. Ignores: prefix caching.
    """

    padded: bool = True
    reservation: Literal["max", "pow2", "oracle", "allocator"] = "max"
    extra_tokens: int = 0
    traits: Traits = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.traits = Traits(extra_tokens=self.extra_tokens, drops_unservable=True, padded=self.padded)

    def queue_key(self, seq: SequenceView) -> tuple[float, ...] | None:
        return None

    def schedule(self, batch: BatchBuilder) -> None:
        if batch.num_running:
            batch.add_running(NO_CAP)
            batch.stay_refused()
        else:
            admit_whole(batch, self.reservation)
