"""Like fcfs, with the waiting queue sorted by priority (smaller first), then arrival."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from policies.scheduler.fcfs import Fcfs
from sim.interfaces import Traits

if TYPE_CHECKING:
    from sim.views import SequenceView


@dataclass
class Priority(Fcfs):
    """The scheduler of vLLM V1 (0.33) with policy priority; goes with preemption victim `lowest_priority`.

    A more important arrival jumps the queue but never evicts a running sequence to get in. Nothing ages: unimportant
    requests can wait for ever. Ignores: what fcfs ignores.
    """

    traits: ClassVar[Traits] = Traits(sorted_queue=True)

    def queue_key(self, seq: SequenceView) -> tuple[float, ...] | None:
        return (seq.priority,)
