"""Host memory into which the KV of preempted sequences is copied: blocks counted, copies timed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


class HostPort(Protocol):
    """The way between the GPUs of a replica and host memory."""

    def expected_duration(self, num_blocks: int, to_host: bool) -> float:
        """Seconds of a copy that starts now, as things are."""
        ...

    def copy(self, num_blocks: int, to_host: bool) -> None:
        """Send the blocks from now on."""
        ...


@dataclass
class PrivatePort:
    """A link that nobody else uses. `seconds_per_block`: bytes of a block on one GPU (all copy their shards at once) /
    bandwidth.
    """

    seconds_per_block: float = 0.0

    def expected_duration(self, num_blocks: int, to_host: bool) -> float:
        """Seconds of a copy; both ways cost the same."""
        return num_blocks * self.seconds_per_block

    def copy(self, num_blocks: int, to_host: bool) -> None:
        """Nobody else waits for the link."""


@dataclass
class HostMemory:
    """Swap space of one replica, in blocks of the replica's size.

    Copies are made one after another, before the step they belong to. `abort_when_full`: a victim that does not fit
    stops the run, as vLLM V0 does; otherwise it is preempted for recomputation.
    """

    num_blocks: int
    port: HostPort = field(default_factory=PrivatePort)
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

    def delay(self, num_blocks_out: int, num_blocks_in: int) -> float:
        """Start the copies of a step, out and then in; the seconds for which the step waits for them."""
        seconds = 0.0
        for num_blocks, to_host in ((num_blocks_out, True), (num_blocks_in, False)):
            if num_blocks:
                seconds += self.port.expected_duration(num_blocks, to_host)
                self.port.copy(num_blocks, to_host)
        return seconds

    def forget(self, num_blocks: int) -> None:
        """A swapped sequence was cancelled or has ended."""
        self.num_free += num_blocks
