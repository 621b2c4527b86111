"""BatchBuilder: the one place that knows the budgets of a step. A scheduler orders and stops; the builder admits and
refuses.

Semantics: the running pass and the waiting pass of vLLM V1 (0.33), of which other engines' passes are parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from sim.errors import PolicyError, RunError
from sim.kv.paged import NO_MATCH, Match
from sim.request import Phase
from sim.waiting import AgeingQueue, ArrivalQueue, TenantQueue

if TYPE_CHECKING:
    from sim.kv.host import HostMemory
    from sim.replica import Limits, Replica
    from sim.request import Sequence
    from sim.views import SequenceView


class Decoding(NamedTuple):
    """A sequence in decode, as of now."""

    order: int
    row: int
    num_prompt_tokens: int
    num_emitted: int
    max_output_tokens: int


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
        # decodes accepted one by one, by order, before the cohort is settled
        self._one_by_one: dict[int, Sequence] = {}
        self._skipped: list[Sequence] = []
        self._walked = False
        self._taken_blocks = 0
        self.dropped: list[Sequence] = []  # given up for good
        self.swapped_out: list[Sequence] = []
        self.swapped_in: list[Sequence] = []
        self.progress_lost: dict[int, tuple[int, int]] = {}  # prompt tokens computed and left when preempted, by row
        self.num_blocks_out = self.num_blocks_in = 0  # copied between GPU and host before this step
        self.again = False  # the scheduler wants to be asked for the next step whatever happens
        self.refused_for_memory: Sequence | None = None  # who was refused last because blocks did not suffice
        self.asker: Sequence | None = None  # who needs the blocks of the sequence that is being preempted
        self._unsteady = False  # the refused candidate may fit later although nothing visible happens
        self.num_set_aside = 0  # of those passed over, the ones that wait for somebody to leave
        self._adapters: set[str] | None = None  # of the running sequences, once asked for

    # --- what a scheduler may read ------------------------------------------------------------------------------------

    @property
    def num_preempted(self) -> int:
        return len(self.preempted) + len(self.swapped_out)

    @property
    def short_of_memory(self) -> bool:
        """Whether somebody was refused because blocks did not suffice."""
        return self.refused_for_memory is not None

    @property
    def num_sequences(self) -> int:
        """Sequences of the replica, waiting, swapped out and running."""
        replica = self._replica
        return len(replica.waiting) + len(replica.running) + len(self._skipped) + len(replica.swapped)

    @property
    def num_swapped(self) -> int:
        return len(self._replica.swapped)

    @property
    def limits(self) -> Limits:
        """Budgets of a step and of the memory; not to be written to."""
        return self._limits

    @property
    def num_tokens(self) -> int:
        """Tokens of the batch so far."""
        return self._limits.max_num_batched_tokens - self.tokens_left

    @property
    def num_usable_blocks(self) -> int:
        return self._kv.num_usable

    @property
    def num_waiting(self) -> int:
        return len(self._replica.waiting)

    @property
    def num_running(self) -> int:
        return len(self._replica.running)

    @property
    def max_num_seqs(self) -> int:
        return self._limits.max_num_seqs

    @property
    def num_departures(self) -> int:
        """How many sequences have ended, been cancelled or been preempted so far."""
        return self._replica.num_departures

    @property
    def decode_clock(self) -> int:
        """Steps so far in which the decodes advanced."""
        return self._cohort.clock

    @property
    def block_size(self) -> int:
        return self._kv.block_size

    @property
    def free_tokens(self) -> int:
        """Tokens of blocks that nobody references."""
        return self._kv.num_free * self._kv.block_size

    @property
    def taken_tokens(self) -> int:
        """Tokens of the blocks taken in this step, shared ones aside."""
        return self._taken_blocks * self._kv.block_size

    def running(self) -> list[Sequence]:
        """Running sequences in running order."""
        return list(self._replica.running.values())

    @property
    def everyone_in_turn(self) -> bool:
        """Whether this batch holds all decodes and a chunk for every running prefill, nobody swapped in."""
        return self.decoded and not self.swapped_in and len(self.chunks) == len(self._replica.prefills)

    def takes_part(self, seq: SequenceView) -> bool:
        """Whether a running sequence has been given a token or a chunk in this step."""
        own = self._replica.own(seq)
        return self.took_token(own) or any(other is own for other, _ in self.chunks)

    def first_waiting(self) -> Sequence | None:
        """The first waiting sequence, if its last token has come back."""
        queue = self._replica.waiting
        return queue.peek() if queue and queue.peek().last_end <= self.now else None

    def would_fit(self, seq: SequenceView, spare_blocks: int) -> bool:
        """Whether a waiting sequence could be admitted as a whole prompt, nothing of it being cached."""
        blocks = -(-seq.num_known // self._kv.block_size)
        slots = len(self._replica.running) < self._limits.max_num_seqs
        return slots and seq.num_known <= self.tokens_left and self._kv.fits(blocks + spare_blocks)

    def sort_waiting(self, key: Callable[[Sequence], tuple[float, ...]]) -> None:
        """Sort the waiting queue as it stands; later arrivals go to its end (schedulers without `sorted_queue`)."""
        queue = self._replica.waiting
        assert isinstance(queue, ArrivalQueue)
        queue.sort(key)

    def prefills(self) -> list[Sequence]:
        """Running sequences whose prompt is not computed yet, in running order."""
        return list(self._replica.prefills.values())

    def prefills_by_slot(self) -> list[Sequence]:
        """The same by the number of their slot, where the allocator has slots."""
        return sorted(self._replica.prefills.values(), key=self._kv.slot_of)

    def decoding(self) -> list[Decoding]:
        """Running sequences in decode, in running order."""
        clock = self._cohort.clock
        return [
            Decoding(
                seq.order,
                seq.row,
                seq.num_prompt_tokens,
                seq.num_emitted + clock - seq.join_clock,
                seq.max_output_tokens,
            )
            for seq in self._replica.running.values()
            if seq.phase is Phase.DECODE
        ]

    def look_up(self, seq: SequenceView) -> tuple[int, int]:
        """Cached tokens of a waiting sequence, and how many of them nobody references."""
        match = self._replica.match(self._replica.own(seq))
        return match.num_tokens, match.num_idle * self._kv.block_size

    def ordered_by(self, policy: str) -> list[Sequence]:
        """The waiting sequences by what the prefix cache holds of them (lpm, dfs-weight), or by declared output
        (lof).
        """
        waiting = list(self._replica.waiting)
        if policy == "lof":
            return sorted(waiting, key=lambda seq: -seq.max_output_tokens)
        if policy == "fcfs":
            return waiting
        return self._kv.ordered(waiting, policy)

    def running_adapters(self) -> set[str]:
        """LoRA adapters of the running sequences, those of this step included; not to be written to."""
        if self._adapters is None:
            self._adapters = {seq.adapter for seq in self._replica.running.values() if seq.adapter is not None}
        return self._adapters

    def set_aside(self) -> None:
        """State of the sequence just offered that it cannot get in before somebody leaves, whoever else gets in."""
        self.num_set_aside += 1

    def stay_refused(self) -> None:
        """State that nobody waiting can get in before something arrives or leaves."""
        self.refused = True

    def progress(self) -> Iterator[tuple[int, str, int]]:
        """Row, tenant ('' for none) and tokens computed so far of each running sequence, in running order."""
        replica = self._replica
        return ((seq.row, seq.tenant or "", replica.num_computed(seq)) for seq in replica.running.values())

    def waiting_tenants(self) -> dict[str, int]:
        """Tenants with waiting sequences, in the order in which they began to wait, with the number of that beginning.

        For schedulers with `next_tenant`.
        """
        queue = self._replica.waiting
        assert isinstance(queue, TenantQueue)
        return queue.tenants

    def longest_waiting(self) -> Sequence | None:
        """The waiting sequence that arrived first, those passed over left out (schedulers with `max_wait`)."""
        queue = self._replica.waiting
        return queue.oldest() if isinstance(queue, AgeingQueue) else None

    def ask_again_at(self, time: float) -> None:
        """Be asked at the first step from `time` on, although nothing visible may have changed by then."""
        self._replica.look_at(time)

    def ask_again(self) -> None:
        """Be asked for the next step whatever happens: the answer may differ though nothing visible changes."""
        self.again = True

    def waiting(self, past_swapped: bool = False) -> Iterator[Sequence]:
        """Waiting sequences in order. One that is neither admitted nor the last looked at keeps its place.

        Preempted sequences whose last token has not come back yet are passed over. Where sequences are swapped out they
        come first: none waiting is offered before all of them are back, unless `past_swapped`.
        """
        if self._replica.swapped and not past_swapped and not self.resume_swapped():
            return
        queue = self._replica.waiting
        while queue:
            seq = queue.peek()
            if seq.last_end <= self.now:
                yield seq
                if seq.phase is not Phase.WAITING:
                    continue
            self._skipped.append(queue.pop())

    # --- decodes and running prefills ---------------------------------------------------------------------------------

    def add_running(self, max_chunk: int) -> None:
        """Give every running sequence its tokens, in running order: decodes one, prefills at most `max_chunk`.

        Where a block is lacking a victim is preempted, again and again until it fits or the asker was the victim
        itself.
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
        """Add one token for every sequence in decode; False, and nothing added, where tokens or blocks do not
        suffice.
        """
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

    def add_decodes_or_preempt(self) -> None:
        """Add one token for every sequence in decode, in running order, with victims where a block is lacking."""
        if self.add_decodes():
            return
        self._walked = True
        for seq in list(self._replica.running.values()):
            if self.tokens_left and (seq.phase is Phase.DECODE or seq.phase is Phase.PAUSED):
                self._decode(seq)

    def reclaim(self) -> None:
        """Preempt until the coming decode step stays below the scheduler's high-water mark, or one sequence is left."""
        replica = self._replica
        while len(replica.running) > 1 and not self._kv.fits(self._cohort.new_blocks(1) + replica.high_water_spare):
            self.displace(replica.choose_victim())

    def reorder(self, running: list[Sequence]) -> None:
        """Give the running list another order; `running` must hold all of it."""
        self._replica.reorder(running)
        self._one_by_one = {seq.order: seq for seq in self._one_by_one.values()}

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

    def extend(self, seq: SequenceView, max_chunk: int) -> None:
        """Give a running prefill its next chunk, at most `max_chunk` tokens."""
        self._extend(self._replica.own(seq), max_chunk)

    def _extend(self, seq: Sequence, max_chunk: int) -> None:
        """Give a running prefill its next chunk."""
        traits = self._replica.traits
        room = self._limits.max_model_len - 1 + traits.extra_tokens - seq.num_computed
        tokens = min(seq.num_known - seq.num_computed, max_chunk, self.tokens_left, room)
        if tokens <= 0:
            return
        size = self._kv.block_size
        held = max(-(-seq.num_computed // size), seq.reserved_blocks)
        blocks = max(0, -(-(seq.num_computed + tokens) // size) - held)
        needed = max(blocks, 1) if traits.chunk_needs_block and seq.num_known % size else blocks
        if needed and not self._make_room(seq, needed):
            return
        self._add_chunk(seq, tokens, blocks)

    def _add_chunk(self, seq: Sequence, tokens: int, new_blocks: int) -> None:
        if new_blocks:
            self._kv.take(new_blocks)
            self._taken_blocks += new_blocks
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
            self.asker = seq
            self.displace(victim)
            self.asker = None
            if victim is seq:
                return False
        return True

    def displace(self, victim: Sequence) -> None:
        """Preempt as the replica does it: by recomputation, or by a copy in host memory if that has room."""
        swaps = self._replica.swaps
        if swaps is None or not swaps(victim) or not self.swap_out(victim):
            self.preempt(victim)

    def preempt(self, chosen: SequenceView | Decoding) -> None:
        """Take all blocks from a running sequence and put it back into the waiting queue.

        What it was given in this step returns to the budget.
        """
        victim = self._replica.running.get(chosen.order)
        if victim is None:
            raise PolicyError(f"preempted request {chosen.row} at {self.now} s is not running")
        took_token = self.took_token(victim)
        self._adapters = None
        computed = victim.num_computed if victim.phase is Phase.PREFILL else victim.num_known
        self.progress_lost[victim.row] = computed, victim.num_known - computed
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

    # --- host memory -------------------------------------------------------------------------------------------------

    def swap_out(self, victim: Sequence) -> bool:
        """Copy the blocks of a running sequence to host memory and put it at the end of the swapped queue.

        False, nothing done, where host memory is absent or too full, or the sequence has a chunk in this very step.
        Raises `RunError` where the replica's host memory is one that aborts when it is full.
        """
        replica, host = self._replica, self._replica.host
        if host is None or any(seq is victim for seq, _ in self.chunks):
            return False
        took_token = self.took_token(victim)
        blocks = replica.num_held(victim)
        if not host.fits(blocks):
            if host.abort_when_full:
                raise RunError(swap_space_exhausted(replica.name, self.now, blocks, host))
            return False
        host.copy_out(blocks)
        self.num_blocks_out += blocks
        self.swapped_out.append(victim)
        replica.swap_out(victim, blocks, self.now, took_token)
        if took_token:
            self._one_by_one.pop(victim.order, None)
            self.tokens_left += 1
        return True

    def resume_swapped(self) -> bool:
        """Bring swapped sequences back, in the order in which they went; whether none is left.

        Stops at the first that does not fit. One that comes back takes part in this step if the decodes do.
        """
        swapped = self._replica.swapped
        while swapped:
            if swapped[0].last_end > self.now:
                self._unsteady = True
                return self._refuse()
            if not self._swap_in(swapped[0]):
                return self._refuse()
        return True

    def _swap_in(self, seq: Sequence) -> bool:
        """Let the first swapped sequence run on; a prefill gets the whole rest of its prompt or stays.

        Where nothing runs the rest may be chunked: a longer one than the budget would stay for ever.
        """
        limits, size, replica = self._limits, self._kv.block_size, self._replica
        decoding = seq.num_computed >= seq.num_known
        tokens = int(self.decoded or self._walked) if decoding else seq.num_known - seq.num_computed
        if limits.chunked_prefill and not replica.running:
            tokens = min(tokens, self.tokens_left)
        touched = 1 if decoding else tokens  # a decode must find the block of its next token free, needed now or not
        blocks = max(-(-(seq.num_computed + touched) // size), seq.reserved_blocks)
        if tokens > self.tokens_left or len(replica.running) >= limits.max_num_seqs:
            return False
        if not self._kv.fits(blocks + limits.watermark_blocks):
            self.refused_for_memory = seq
            return False
        copied = replica.swap_in(seq, blocks if tokens else replica.num_held(seq), self.now)
        self.num_blocks_in += copied
        self.swapped_in.append(seq)
        if not decoding:
            self._add_chunk(seq, tokens, 0)
        elif tokens:
            self._one_by_one[seq.order] = seq
            self.tokens_left -= 1
        return True

    # --- waiting sequences --------------------------------------------------------------------------------------------

    def admit(
        self,
        candidate: SequenceView,
        max_chunk: int,
        hold_tokens: int = 0,
        fit_tokens: int = 0,
        spare_blocks: int | None = None,
    ) -> bool:
        """Let a waiting sequence join with its first chunk; False where slots, tokens or blocks do not suffice.

        The chunk is at most `max_chunk` tokens. Blocks are taken for the chunk, or for `hold_tokens` tokens if that is
        more (a reserve that the sequence keeps). `fit_tokens`, if more, must fit too but are not taken. `spare_blocks`
        must stay free; None: the watermark of the replica, which counts only while others run. A sequence that was
        preempted as often as the preemption policy allows comes back with blocks for its whole declared length, so that
        it never needs one again.
        """
        seq = self._replica.own(candidate)
        limits, size = self._limits, self._kv.block_size
        if max_chunk <= 0 or not self.tokens_left or len(self._replica.running) >= limits.max_num_seqs:
            return self._refuse()
        if seq.num_preemptions >= self._replica.max_preemptions:
            hold_tokens = self._replica.whole_length(seq)
        if self._kv.reserves:
            self._kv.account(self.now)
            hold_tokens = self._kv.reservation(seq, limits.max_model_len)
        longest = self._kv.longest_sequence
        hold_tokens, fit_tokens = min(hold_tokens, longest), min(fit_tokens, longest)
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
            self.refused_for_memory = seq
            if self._kv.reserves:
                self._kv.account(self.now, needed)
            return self._refuse()
        seq.reserved_blocks = first if hold_tokens else 0
        self._enter(seq, match, tokens, first - match.num_blocks)
        return True

    def drop(self, seq: Sequence, reason: str) -> None:
        """Give up the first waiting sequence for good: it can never be served."""
        popped = self._replica.waiting.pop()
        if popped is not seq:
            raise PolicyError(f"request {seq.row} dropped out of turn at {self.now} s")
        self._replica.drop(seq, reason, self.now)

    def _refuse(self) -> bool:
        if not self.admitted:
            self.refused = True
        return False

    def _enter(self, seq: Sequence, match: Match, tokens: int, new_blocks: int) -> None:
        self._let_in(seq, match, new_blocks)
        self._add_chunk(seq, tokens, 0)

    def _let_in(self, seq: Sequence, match: Match, new_blocks: int) -> None:
        queue = self._replica.waiting
        if queue.peek() is seq:
            queue.pop()
        else:
            queue.remove(seq)
        if match is not NO_MATCH:
            self._replica.count_shared(self.now)
            self._kv.hold(seq, match)
        if new_blocks:
            self._kv.place(seq, new_blocks)
            self._taken_blocks += new_blocks
        self._replica.enter(seq, match.num_tokens)
        seq.block_time_sum = (match.num_blocks + new_blocks) * self.now
        seq.token_time_sum = match.num_tokens * self.now
        self.admitted.append(seq)
        if self._adapters is not None and seq.adapter is not None:
            self._adapters.add(seq.adapter)

    # --- the end of the call ------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Settle the cohort for this step: who was left out is paused, who was accepted one by one belongs to it."""
        if self._skipped:
            self._replica.waiting.restore(self._skipped)
        self._kv.finish_pass()
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
        changed = self.chunks or self.preempted or self.swapped_out or self.swapped_in or self.dropped
        hopeless = self.refused or self.num_set_aside > 0
        return hopeless and not (changed or len(self._skipped) > self.num_set_aside or self._unsteady)


def swap_space_exhausted(name: str, now: float, num_blocks: int, host: HostMemory) -> str:
    """Why the engine stops when a victim does not fit into host memory."""
    free = f"{host.num_free} of {host.num_blocks} host blocks are free"
    return f"{name}: swap space exhausted at {now:.6f} s: a victim of {num_blocks} blocks, {free}"
