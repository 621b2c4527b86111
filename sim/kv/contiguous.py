"""Contiguous KV memory: every sequence gets one stretch of slots for its whole life when it enters, and never grows.

The stretches lie in one address range, so free memory can be too scattered to be of use. Slots are blocks of
`block_size` tokens (1 to be exact to the token). There is no prefix cache and nobody is ever preempted for lack of
memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sim.errors import RunError
from sim.kv.paged import PagedKV

if TYPE_CHECKING:
    from sim.kv.placement import Placement
    from sim.request import Sequence

Reservation = Callable[["Sequence", int], int]  # (sequence, max_model_len) -> tokens of its stretch


def declared_length(seq: Sequence, max_model_len: int) -> int:
    """Prompt and the most output tokens that the client asks for."""
    return min(seq.num_prompt_tokens + seq.max_output_tokens, max_model_len)


def model_length(seq: Sequence, max_model_len: int) -> int:
    """What the model can hold at most."""
    return max_model_len


def true_length(seq: Sequence, max_model_len: int) -> int:
    """Prompt and the output tokens that will really come: an oracle."""
    return seq.num_prompt_tokens + seq._num_output_tokens


def power_of_two_length(seq: Sequence, max_model_len: int) -> int:
    """Prompt and the true output length rounded up to a power of two: an oracle that is off by a factor below two."""
    return min(seq.num_prompt_tokens + (1 << (seq._num_output_tokens - 1).bit_length()), max_model_len)


class ContiguousKV(PagedKV):
    """One stretch a sequence. `num_free` counts what no sequence asked for, lost to rounding or not.

    Integrals over time, in block seconds: `rounding_seconds` (slots added by the placement), and while the first
    waiting request is refused for lack of memory `fragmented_seconds` (free slots, enough of them but scattered) and
    `remainder_seconds` (free slots, too few).
    """

    reserves = True
    tells_changes = False

    def __init__(
        self, num_blocks: int, block_size: int, placement: Callable[[int], Placement], reservation: Reservation
    ) -> None:
        super().__init__(num_blocks, block_size, prefix_caching=False)
        self._placement = placement(self.num_usable)
        self._reservation = reservation
        self._places: dict[int, tuple[int, int]] = {}  # (start, blocks) by row
        self._largest = self._most = self._placement.largest()
        self._rounding = 0
        self._wanted = 0  # blocks that the refused request wants; 0 while nobody is refused
        self._since = 0.0
        self.rounding_seconds = self.fragmented_seconds = self.remainder_seconds = 0.0

    def reservation(self, seq: Sequence, max_model_len: int) -> int:
        return self._reservation(seq, max_model_len)

    def never_fits(self, seq: Sequence, max_model_len: int) -> str | None:
        blocks = -(-self.reservation(seq, max_model_len) // self.block_size)
        if blocks <= self._most:
            return None
        return f"reserves {blocks} KV blocks in one piece, an empty replica has {self._most}"

    def fits(self, num_blocks: int) -> bool:
        """Whether so many blocks could be placed in one piece now (none: always)."""
        return num_blocks <= self._largest

    def place(self, seq: Sequence, num_blocks: int) -> None:
        self._places[seq.row] = self._placement.place(num_blocks), num_blocks
        self._changed(-num_blocks, self._placement.cost(num_blocks) - num_blocks)

    def take(self, num_blocks: int) -> None:
        raise RunError(f"a sequence outgrew its contiguous reservation by {num_blocks} blocks")

    def release(self, seq: Sequence, num_held: int, num_registered_tokens: int, ended: bool) -> None:
        start, num_blocks = self._places.pop(seq.row)
        assert num_blocks == num_held
        self._placement.free(start, num_blocks)
        self._changed(num_blocks, num_blocks - self._placement.cost(num_blocks))

    def _changed(self, free: int, rounding: int) -> None:
        self.num_free += free
        self._rounding += rounding
        self.min_free = min(self.min_free, self.num_free)
        self._largest = self._placement.largest()

    def account(self, now: float, num_wanted: int = 0) -> None:
        """Integrate up to `now`, before anything changes; from then on a request of `num_wanted` blocks is refused."""
        elapsed, self._since = now - self._since, now
        self.rounding_seconds += self._rounding * elapsed
        if self._wanted:
            free = self.num_free - self._rounding
            if free >= self._wanted:
                self.fragmented_seconds += free * elapsed
            else:
                self.remainder_seconds += free * elapsed
        self._wanted = num_wanted

    def check_integrity(self) -> None:
        """Raise AssertionError where the counters and the places disagree, or two places overlap."""
        end = 0
        for start, num_blocks in sorted(self._places.values()):
            assert start >= end
            end = start + num_blocks
        assert end <= self.num_usable
        assert self.num_free == self.num_usable - sum(num_blocks for _, num_blocks in self._places.values())
        assert 0 <= self._rounding <= self.num_free
