"""Stays of sequences in the running list: what they add up to in memory and time, and preemptions that lead nowhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.request import Sequence

MAX_FRUITLESS = 1000


@dataclass
class MemoryAccounts:
    """Integrals over time of what one replica's sequences held; those of decode steps are added after the run."""

    has_reservations: bool = True  # False: blocks once taken are kept, but none is reserved
    block_seconds: float = 0.0  # blocks x release instants - blocks x instants taken, decode blocks left out
    token_seconds: float = 0.0
    running_seconds: float = 0.0  # stays in the running list, summed
    reserved_seconds: float = 0.0  # those with a reservation
    final_token_seconds: float = 0.0  # those, times the length that each would have had in the end
    num_ended_tokens: int = 0  # lengths of the sequences that ended
    num_ended_held_tokens: int = 0  # and the tokens of the blocks that they held then
    shared_block_seconds: float = 0.0  # references to blocks beyond the first
    _shared_since: float = 0.0

    def count_shared(self, num_extra: int, now: float) -> None:
        """`num_extra` references were shared until now."""
        self.shared_block_seconds += num_extra * (now - self._shared_since)
        self._shared_since = now

    def end_stay(self, seq: Sequence, now: float, block_size: int, num_reserved: int, num_held: int) -> None:
        """A sequence leaves the running list with `num_held` blocks, of which `num_reserved` were reserved."""
        kept = seq.num_computed  # a token taken back in this very call was never there
        self.block_seconds += max(-(-kept // block_size), num_reserved) * now - seq.block_time_sum
        self.token_seconds += kept * now - seq.token_time_sum
        duration = now - seq.entered_time
        self.running_seconds += duration
        if num_reserved and self.has_reservations:
            self.reserved_seconds += duration
            self.final_token_seconds += min(final_length(seq), num_held * block_size) * duration

    def end(self, seq: Sequence, num_held_tokens: int) -> None:
        """A sequence has ended."""
        self.num_ended_tokens += final_length(seq)
        self.num_ended_held_tokens += num_held_tokens


def final_length(seq: Sequence) -> int:
    """Tokens of a sequence when it has ended."""
    return seq.num_prompt_tokens + seq._num_output_tokens


@dataclass
class FruitlessPreemptions:
    """Counts preemptions while nobody gets on, so that sequences cannot preempt one another for ever."""

    _clock: int = 0  # decode clock at which the present ones were counted
    _by_row: dict[int, tuple[int, int]] = field(default_factory=dict)  # (emitted tokens, preemptions with so many)

    def too_many(self, seq: Sequence, clock: int) -> bool:
        """Whether the sequence was preempted too often without a new token, of its own or of any decode."""
        if self._clock != clock:  # somebody got on
            self._by_row, self._clock = {}, clock
        emitted, count = self._by_row.get(seq.row, (seq.num_emitted, 0))
        count = count + 1 if emitted == seq.num_emitted else 1
        self._by_row[seq.row] = seq.num_emitted, count
        return count > MAX_FRUITLESS
