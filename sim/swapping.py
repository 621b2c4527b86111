"""Swaps: their copies on the links of the fabric, and whether a victim is swapped or computed again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.cost.base import BatchShape

if TYPE_CHECKING:
    from sim.fabric import Fabric
    from sim.replica import Replica
    from sim.request import Sequence


class FabricPort:
    """The PCIe links between a replica's GPUs and their host, which KV transfers to other nodes use, too.

    A step waits for its copies at the speed that the links show when they start. Whatever starts later shares the
    links with what is left of them, but that step is not held up any longer for it.
    """

    def __init__(self, fabric: Fabric, replica: int, block_bytes: float) -> None:
        self._fabric = fabric
        self._replica = replica
        self._block_bytes = block_bytes  # over all GPUs of the replica

    def expected_duration(self, num_blocks: int, to_host: bool) -> float:
        """Seconds of a copy that starts now, if nothing else comes."""
        return self._fabric.expected_host_duration(self._replica, num_blocks * self._block_bytes, to_host)

    def copy(self, num_blocks: int, to_host: bool) -> None:
        """Occupy the links with the copy."""
        self._fabric.start_host(self._replica, num_blocks * self._block_bytes, to_host, lambda flow: None)


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
        blocks = self._replica.num_held(victim)
        return host.port.expected_duration(blocks, True) + host.port.expected_duration(blocks, False)

    def recompute_seconds(self, victim: Sequence) -> float:
        """Longer by so much is a step that computes the victim's tokens beside the decodes."""
        cohort, cost, tokens = self._replica.cohort, self._replica.cost, max(self._replica.num_computed(victim), 1)
        size, context, longest = cohort.size, cohort.computed + cohort.size, cohort.max_computed() + 1
        pairs = tokens * (tokens + 1) // 2
        both = cost.step_time(BatchShape(tokens, 1, pairs, tokens, size, context, max(longest, tokens)))
        return both - (cost.step_time(BatchShape(0, 0, 0, 0, size, context, longest)) if size else 0.0)
