"""Preemption policies: who loses its blocks when memory runs out."""

from __future__ import annotations

from collections.abc import Callable

from policies.preemption.fewest_blocks import FewestBlocks
from policies.preemption.longest_remaining import LongestRemaining
from policies.preemption.lowest_priority import LowestPriority
from policies.preemption.most_output import MostOutput
from policies.preemption.newest import Newest
from policies.preemption.oldest import Oldest
from sim.interfaces import PreemptionPolicy

PREEMPTIONS: dict[str, Callable[..., PreemptionPolicy]] = {
    "newest": Newest,
    "lowest_priority": LowestPriority,
    "oldest": Oldest,
    "longest_remaining": LongestRemaining,
    "fewest_blocks": FewestBlocks,
    "most_output": MostOutput,
}
