"""BatchBuilder: the one place that knows the budgets of a step. A scheduler orders and stops; the builder admits and refuses.

Semantics: the running pass and the waiting pass of vLLM V1 (0.33), of which other engines' passes are parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sim.errors import PolicyError
from sim.kv.paged import NO_MATCH, Match
from sim.request import Phase

if TYPE_CHECKING:
    from sim.replica import Replica
    from sim.request import Sequence


class BatchBuilder:
    """One step in the making. `tokens_left` is what remains of the token budget; `now` the instant of the call."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._kv = replica.kv
        self._cohort = replica.cohort
        self._limits = replica.limits
        self.now = 0.0
        self.begin(0.0)

    def begin(self, now: float) -> None:
        """Start a new step."""
        self.now = now
        self.tokens_left = self._limits.max_num_batched_tokens
        self.chunks: list[tuple[Sequence, int]] = []  # prefill chunks, in scheduling order
        self.admitted: list[Sequence] = []
        self.preempted: list[Sequence] = []
        self.refused = False  # the waiting queue was tried and its first candidate did not get in
        self.decoded = False  # the whole cohort takes part
        self._one_by_one: dict[int, Sequence] = {}  # decodes accepted one by one, by order, before the cohort is settled
        self._skipped: list[Sequence] = []
        self._walked = False
        self._unsteady = False  # the refused candidate may fit later although nothing visible happens

    # --- what a scheduler may read -------------------------------------------------------------------------------------

    @property
    def num_preempted(self) -> int:
        return len(self.preempted)

    @property
    def num_sequences(self) -> int:
        """Sequences of the replica, waiting and running."""
        return len(self._replica.waiting) + len(self._replica.running) + len(self._skipped)

    def waiting(self) -> Iterator[Sequence]:
        """Waiting sequences in order. One that is neither admitted nor the last looked at keeps its place.

        Preempted sequences whose last token has not come back yet are passed over.
        """
        queue = self._replica.waiting
        while queue:
            seq = queue.peek()
            if seq.last_end <= self.now:
                yield seq
                if seq.phase is not Phase.WAITING:
                    continue
            self._skipped.append(queue.pop())

    # --- decodes and running prefills ----------------------------------------------------------------------------------

    def add_running(self, max_chunk: int) -> None:
        """Give every running sequence its tokens, in running order: decodes one, prefills at most `max_chunk`.

        Where a block is lacking a victim is preempted, again and again until it fits or the asker was the victim itself.
        """
        replica, cohort = self._replica, self._cohort
        prefills = list(replica.prefills.values())
        decodes_first = not prefills or cohort.last_order < prefills[0].order
        if decodes_first and not replica.paused and self.add_decodes():
            for seq in prefills:
                if self.tokens_left and seq.phase is Phase.PREFILL:
                    self._extend(seq, max_chunk)
        else:
            self._walk_running(max_chunk)

    def add_decodes(self) -> bool:
        """Add one token for every sequence in decode; False, and nothing added, where tokens or blocks do not suffice."""
        cohort = self._cohort
        blocks = cohort.new_blocks(1)
        if cohort.size > self.tokens_left or self._replica.paused:
            return False
        if cohort.size and not self._kv.fits(blocks + self._replica.traits.decode_spare_blocks):
            return False
        if blocks:
            self._kv.take(blocks)
        self.tokens_left -= cohort.size
        self.decoded = True
        return True

    def _walk_running(self, max_chunk: int) -> None:
        self._walked = True
        for seq in list(self._replica.running.values()):
            if not self.tokens_left:
                break
            if seq.phase is Phase.PREFILL:
                self._extend(seq, max_chunk)
            elif seq.phase is Phase.DECODE or seq.phase is Phase.PAUSED:
                self._decode(seq)

    def _decode(self, seq: Sequence) -> None:
        computed = self._replica.num_computed(seq)
        needed = int(computed % self._kv.block_size == 0 and computed >= seq.reserved_blocks * self._kv.block_size)
        if not self._make_room(seq, max(needed, self._replica.traits.decode_spare_blocks)):
            return
        if needed:
            self._kv.take(1)
        self._one_by_one[seq.order] = seq
        self.tokens_left -= 1

    def _extend(self, seq: Sequence, max_chunk: int) -> None:
        """Give a running prefill its next chunk."""
        room = self._limits.max_model_len - 1 - seq.num_computed
        tokens = min(seq.num_known - seq.num_computed, max_chunk, self.tokens_left, room)
        if tokens <= 0:
            return
        size = self._kv.block_size
        held = max(-(-seq.num_computed // size), seq.reserved_blocks)
        blocks = max(0, -(-(seq.num_computed + tokens) // size) - held)
        if blocks and not self._make_room(seq, blocks):
            return
        self._add_chunk(seq, tokens, blocks)

    def _add_chunk(self, seq: Sequence, tokens: int, new_blocks: int) -> None:
        if new_blocks:
            self._kv.take(new_blocks)
            seq.block_time_sum += new_blocks * self.now
        seq.num_computed += tokens
        seq.token_time_sum += tokens * self.now
        if self._kv.growing:
            self._replica.register_growing()
        self._kv.register(seq, seq.num_computed)
        self.tokens_left -= tokens
        self.chunks.append((seq, tokens))

    def _make_room(self, seq: Sequence, blocks: int) -> bool:
        while not self._kv.fits(blocks):
            victim = self._replica.choose_victim()
            self.preempt(victim)
            if victim is seq:
                return False
        return True

    def preempt(self, victim: Sequence) -> None:
        """Take all blocks from a running sequence and put it back into the waiting queue.

        What it was given in this step returns to the budget.
        """
        if victim.order not in self._replica.running:
            raise PolicyError(f"preempted request {victim.row} at {self.now} s is not running")
        took_token = self.took_token(victim)
        for i, (seq, tokens) in enumerate(self.chunks):
            if seq is victim:
                self.tokens_left += tokens
                del self.chunks[i]
                break
        self.preempted.append(victim)
        self._replica.evict(victim, self.now, took_token)
        if took_token:
            self._one_by_one.pop(victim.order, None)
            self.tokens_left += 1

    def took_token(self, seq: Sequence) -> bool:
        """Whether a sequence in decode has been given its token in this step."""
        return seq.order in self._one_by_one or (self.decoded and seq.phase is Phase.DECODE)

    # --- waiting sequences ---------------------------------------------------------------------------------------------

    def admit(
        self, seq: Sequence, max_chunk: int, hold_tokens: int = 0, fit_tokens: int = 0, spare_blocks: int | None = None
    ) -> bool:
        """Let a waiting sequence join with its first chunk; False where slots, tokens or blocks do not suffice.

        The chunk is at most `max_chunk` tokens. Blocks are taken for the chunk, or for `hold_tokens` tokens if that is more (a
        reserve that the sequence keeps). `fit_tokens`, if more, must fit too but are not taken. `spare_blocks` must stay free;
        None: the watermark of the replica, which counts only while others run.
        """
        limits, size = self._limits, self._kv.block_size
        if not self.tokens_left or len(self._replica.running) >= limits.max_num_seqs:
            return self._refuse()
        match = self._replica.match(seq)
        wanted = seq.num_known - match.num_tokens
        if not limits.chunked_prefill and wanted > self.tokens_left:
            return self._refuse()
        tokens = min(wanted, max_chunk, self.tokens_left)
        first = -(-max(match.num_tokens + tokens, hold_tokens) // size)
        whole = seq.num_known if limits.reserve_full_isl else 0
        needed = max(first, -(-max(fit_tokens, whole) // size))
        if spare_blocks is None:
            spare_blocks = limits.watermark_blocks if self._replica.running else 0
        if not self._kv.fits(needed - match.num_blocks + match.num_idle + spare_blocks):
            self._unsteady = self._kv.could_grow(seq.content, match)
            return self._refuse()
        seq.reserved_blocks = first if hold_tokens else 0
        self._enter(seq, match, tokens, first - match.num_blocks)
        return True

    def _refuse(self) -> bool:
        if not self.admitted:
            self.refused = True
        return False

    def _enter(self, seq: Sequence, match: Match, tokens: int, new_blocks: int) -> None:
        popped = self._replica.waiting.pop()
        if popped is not seq:
            raise PolicyError(f"request {seq.row} admitted out of turn at {self.now} s")
        if match is not NO_MATCH:
            self._kv.hold(seq, match)
        if new_blocks:
            self._kv.place(seq, new_blocks)
        self._replica.enter(seq, match.num_tokens)
        seq.block_time_sum = (match.num_blocks + new_blocks) * self.now
        seq.token_time_sum = match.num_tokens * self.now
        self.admitted.append(seq)
        self._add_chunk(seq, tokens, 0)

    # --- the end of the call -------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Settle the cohort for this step: who was left out is paused, who was accepted one by one belongs to it."""
        if self._skipped:
            self._replica.waiting.restore(self._skipped)
        if self._walked:
            self.decoded = True
            self._replica.settle(self._one_by_one)

    def close(self) -> None:
        """The batch has been launched: its decodes count as computed from now on."""
        self.decoded = False
        self._one_by_one = {}

    @property
    def stays_refused(self) -> bool:
        """Whether asking again, nothing having changed, would admit nobody either."""
        return self.refused and not (self.chunks or self.preempted or self._skipped or self._unsteady)
