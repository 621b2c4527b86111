"""Whether a victim is swapped to host memory or computed again, whichever costs less at that moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.cost.base import BatchShape

if TYPE_CHECKING:
    from sim.replica import Replica
    from sim.request import Sequence


class CheaperWay:
    """Answers, victim by victim, whether to swap. One for each replica.

    Swapping delays the batch by two copies of the victim's blocks over the host link. Computing again delays it by
    what the victim's tokens add to a step in which the present decodes run along, which is little while the GPU waits
    for memory anyway. Ignores: blocks that the victim may find again in the prefix cache, that memory may be short
    again at once.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def __call__(self, victim: Sequence) -> bool:
        return self.swap_seconds(victim) < self.recompute_seconds(victim)

    def swap_seconds(self, victim: Sequence) -> float:
        """Out and back."""
        host = self._replica.host
        assert host is not None
        return 2 * self._replica.num_held(victim) * host.seconds_per_block

    def recompute_seconds(self, victim: Sequence) -> float:
        """Longer by so much is a step that computes the victim's tokens beside the decodes."""
        cohort, cost, tokens = self._replica.cohort, self._replica.cost, max(self._replica.num_computed(victim), 1)
        size, context, longest = cohort.size, cohort.computed + cohort.size, cohort.max_computed() + 1
        pairs = tokens * (tokens + 1) // 2
        both = cost.step_time(BatchShape(tokens, 1, pairs, tokens, size, context, max(longest, tokens)))
        return both - (cost.step_time(BatchShape(0, 0, 0, 0, size, context, longest)) if size else 0.0)
