"""The decode cohort: every sequence that gets one token in each coming step, kept as sums.

One decode step costs the same work for 1 or 1,000 members: the clock moves on by one. A member's computed tokens are
`offset + clock`; what the cost model and the allocator need are the sum of contexts and a histogram of offsets modulo
the block size.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from sim.request import Phase

if TYPE_CHECKING:
    from sim.request import Sequence


NOBODY = 2**62  # leave clock of an empty cohort


class Cohort:
    """Sequences in decode on one replica. `clock` counts the steps in which the cohort advanced."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.clock = 0
        self.size = 0
        self.computed = 0  # sum over members of tokens computed before the coming step
        self.last_order = -1  # no member was admitted later than this
        self.leave_at = NOBODY  # clock at which the first member leaves
        self.cover_at = NOBODY  # clock at which the first member outgrows the blocks that were reserved for it
        self._offsets = [0] * block_size  # members that take blocks as they grow, by offset modulo block size
        self._num_growing = 0  # their sum
        # Heap of (leave clock, whether its last token is still in flight then, order, member), lazily cleaned.
        self._leaves: list[tuple[int, bool, int, Sequence]] = []
        # heap of (clock at which the reserve is full, order, member)
        self._covered: list[tuple[int, int, Sequence]] = []
        self._longest: list[tuple[int, int, Sequence]] = []  # heap of (-offset, order, member), lazily cleaned

    def add(self, seq: Sequence, num_computed: int) -> None:
        """Let a sequence take part from the coming step on."""
        seq.phase = Phase.DECODE
        seq.offset = num_computed - self.clock
        seq.join_clock = self.clock
        self.size += 1
        self.computed += num_computed
        self.last_order = max(self.last_order, seq.order)
        if seq.reserved_blocks * self.block_size > num_computed:
            heappush(self._covered, (seq.reserved_blocks * self.block_size - seq.offset, seq.order, seq))
            self.cover_at = self._covered[0][0]
        else:
            self._offsets[seq.offset % self.block_size] += 1
            self._num_growing += 1
        heappush(self._leaves, (seq.leave_clock, not seq.stops_early, seq.order, seq))
        if seq.leave_clock < self.leave_at:
            self.leave_at = seq.leave_clock
        heappush(self._longest, (-seq.offset, seq.order, seq))

    def remove(self, seq: Sequence) -> int:
        """Take a member out, in phase PAUSED until told otherwise; return its computed tokens (and store them
        with it).
        """
        seq.phase = Phase.PAUSED
        seq.num_computed = seq.offset + self.clock
        self.size -= 1
        self.computed -= seq.num_computed
        if seq.reserved_blocks * self.block_size <= seq.num_computed:
            self._offsets[seq.offset % self.block_size] -= 1
            self._num_growing -= 1
        if seq.leave_clock == self.leave_at:
            self.leave_at = self._next_leave()
        return seq.num_computed

    def reorder(self, members: list[Sequence]) -> None:
        """The members' `order` has changed."""
        for seq in members:
            heappush(self._leaves, (seq.leave_clock, not seq.stops_early, seq.order, seq))
            heappush(self._longest, (-seq.offset, seq.order, seq))
            full_at = seq.reserved_blocks * self.block_size - seq.offset
            if full_at > self.clock:
                heappush(self._covered, (full_at, seq.order, seq))
            self.last_order = max(self.last_order, seq.order)
        self.leave_at = self._next_leave()

    def _next_leave(self) -> int:
        leaves = self._leaves
        while leaves:
            clock, _, order, seq = leaves[0]
            if seq.phase is Phase.DECODE and seq.order == order and seq.leave_clock == clock:
                return clock
            heappop(leaves)
        return NOBODY

    def first_leaver(self) -> Sequence:
        """The member that leaves first (ties: whose last token is back first, then admitted first)."""
        return self._leaves[0][3]

    def max_computed(self) -> int:
        """Most computed tokens of any member; 0 if there is none."""
        longest = self._longest
        while longest:
            offset, order, seq = longest[0]
            if seq.phase is Phase.DECODE and seq.order == order and seq.offset == -offset:
                return self.clock - offset
            heappop(longest)
        return 0

    def new_blocks(self, num_steps: int) -> int:
        """Blocks that the coming `num_steps` steps take: a member needs one whenever its computed tokens fill
        the last.
        """
        cycles, rest = divmod(num_steps, self.block_size)
        total = cycles * self._num_growing
        if rest:
            start = -self.clock % self.block_size  # the offset whose members are full now; then downwards
            offsets = self._offsets
            low = start - rest + 1
            total += sum(offsets[max(low, 0) : start + 1])
            if low < 0:
                total += sum(offsets[low:])
        return total

    def steps_within(self, num_blocks: int, num_steps: int) -> int:
        """Most steps, at most `num_steps`, that take no more than `num_blocks` blocks."""
        if self.size * (num_steps // self.block_size + 1) <= num_blocks or self.new_blocks(num_steps) <= num_blocks:
            return num_steps  # the first test is a bound that needs no histogram
        low, high = 0, num_steps  # new_blocks(low) fits, new_blocks(high) does not
        while high - low > 1:
            middle = (low + high) // 2
            if self.new_blocks(middle) <= num_blocks:
                low = middle
            else:
                high = middle
        return low

    def advance(self, num_steps: int) -> None:
        """Let every member compute `num_steps` more tokens; never across `cover_at`."""
        self.clock += num_steps
        self.computed += self.size * num_steps
        if self.clock >= self.cover_at:
            self._uncover()

    def _uncover(self) -> None:
        """Members whose reserve is full take blocks from now on."""
        covered = self._covered
        while covered and covered[0][0] <= self.clock:
            clock, order, seq = heappop(covered)
            reserved = seq.reserved_blocks * self.block_size
            if seq.phase is Phase.DECODE and seq.order == order and reserved - seq.offset == clock:
                self._offsets[seq.offset % self.block_size] += 1
                self._num_growing += 1
        self.cover_at = covered[0][0] if covered else NOBODY
