"""Host memory into which the KV of preempted sequences is copied: blocks counted, copies timed."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class HostMemory:
    """Swap space of one replica, in blocks of the replica's size.

    `seconds_per_block` is bytes of a block (all GPUs of the replica copy their shards at once: a shard's bytes) /
    bandwidth of the host link. Copies are made one after another, before the step they belong to. `abort_when_full`: a
    victim that does not fit stops the run, as vLLM V0 does; otherwise it is preempted for recomputation.
    """

    num_blocks: int
    seconds_per_block: float = 0.0
    abort_when_full: bool = False
    num_free: int = field(init=False)
    num_copied_out: int = field(default=0, init=False)  # blocks, over the run
    num_copied_in: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.num_free = self.num_blocks

    def fits(self, num_blocks: int) -> bool:
        """Whether so many blocks could be copied out now."""
        return num_blocks <= self.num_free

    def copy_out(self, num_blocks: int) -> None:
        """GPU to host."""
        self.num_free -= num_blocks
        self.num_copied_out += num_blocks

    def copy_in(self, num_blocks: int) -> None:
        """Host to GPU; the host's copy is given up."""
        self.num_free += num_blocks
        self.num_copied_in += num_blocks

    def forget(self, num_blocks: int) -> None:
        """A swapped sequence was cancelled or has ended."""
        self.num_free += num_blocks
