"""The decode side of handoffs: requests that wait for blocks, whose KV is on the way, or whose KV has landed.

Rules of vLLM's KV connector (0.33): in order; blocks for the whole prompt are taken before anything moves, which needs
a free batch slot and leaves the running prefills what they need; no slot is held meanwhile; what has landed goes before
everybody who waits. A preempted sequence goes before new loads. SGLang's reserve of tokens for each sequence and
DistServe's bound on prompts that wait are numbers of the rules.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from sim.kv.paged import NO_MATCH
from sim.preemptions import Cause
from sim.request import NEVER, Phase

if TYPE_CHECKING:
    from sim.kv.paged import Match
    from sim.replica import Replica
    from sim.request import Sequence
    from sim.transfer import Handoff, TransferRules


class Inbox:
    """Handoffs that one replica has been given and does not run yet. The replica asks it before its scheduler."""

    def __init__(self, replica: Replica, rules: TransferRules) -> None:
        self._replica = replica
        self._rules = rules
        self._pending: deque[Handoff] = deque()  # no blocks yet
        self._loading: dict[int, Handoff] = {}  # blocks taken, by row
        self._landed: deque[Handoff] = deque()
        self.joined: list[Handoff] = []  # running, in no batch yet
        self._unsettled = False  # the answer may change although nobody leaves
        self._tried: tuple[int, int, int] | None = None  # departures, admissions, queue when nobody else got in

    def __len__(self) -> int:
        return len(self._pending) + len(self._loading) + len(self._landed)

    def sequences(self) -> list[Sequence]:
        """Everybody in it."""
        return [handoff.seq for handoff in (*self._landed, *self._loading.values(), *self._pending)]

    @property
    def waits(self) -> bool:
        """Whether somebody would get on if a call let it."""
        return bool(self._pending or self._landed)

    @property
    def wants_call(self) -> bool:
        """Whether the coming call must be made: somebody may get on, or the first batch of somebody is to be noted."""
        return bool(self.joined) or (self.waits and (self._unsettled or self._tried != self._version))

    @property
    def stalls(self) -> bool:
        """Whether the replica schedules nothing until what is on its way has landed."""
        return self._rules.blocking and bool(self._loading)

    @property
    def _version(self) -> tuple[int, int, int]:
        replica = self._replica
        return replica.num_departures, replica.num_orders, len(replica.waiting) + len(replica.swapped)

    # --- from outside -------------------------------------------------------------------------------------------------

    def push(self, handoff: Handoff, now: float) -> None:
        """A handoff queues for blocks."""
        replica, seq = self._replica, handoff.seq
        replica.advance(now)
        if replica.kv.prefix_caching:
            seq.content = replica.kv.content(replica.content_spans(seq.row), seq.num_prompt_tokens)
        self._pending.append(handoff)
        if len(self._pending) == 1:
            self._tried = None
            replica.wake(now)

    def land(self, handoff: Handoff, now: float) -> None:
        """All KV of a handoff has arrived."""
        replica, seq = self._replica, handoff.seq
        replica.advance(now)
        del self._loading[seq.row]
        loaded = seq.num_prompt_tokens - (self._rules.first_token == "decode") - seq.num_computed
        seq.num_computed += loaded
        seq.token_time_sum += loaded * now
        if replica.kv.growing:
            replica.register_growing()
        replica.kv.register(seq, seq.num_computed)
        self._landed.append(handoff)
        self._tried = None
        replica.wake(now)

    def forget(self, handoff: Handoff, now: float) -> None:
        """A request that has not joined the running sequences ends; nothing happens where it is not in the queues."""
        seq = handoff.seq
        if handoff in self._pending:
            self._replica.advance(now)
            self._pending.remove(handoff)
        elif seq.row in self._loading or handoff in self._landed:
            self._release(handoff, now)
        else:
            return
        self._tried = None
        self._replica.wake(now)

    def recompute(self, handoff: Handoff, now: float) -> None:
        """The KV is lost: the replica computes the prompt itself."""
        self._requeue(handoff, now, Cause.LOST_TRANSFER)
        self._tried = None
        self._replica.wake(now)

    def _release(self, handoff: Handoff, now: float) -> None:
        replica, seq = self._replica, handoff.seq
        replica.advance(now)
        if self._loading.pop(seq.row, None) is None:
            self._landed.remove(handoff)
        seq.entered_time = now  # it was never in the running list
        replica.free_blocks(seq, now)

    def _requeue(self, handoff: Handoff, now: float, cause: Cause) -> None:
        """Its blocks go; its prompt is computed here when its turn comes."""
        replica, seq = self._replica, handoff.seq
        lost, free = seq.num_computed, replica.kv.num_free
        self._release(handoff, now)
        replica.evictions.append((now, now, cause, -1, seq.row, lost, replica.kv.num_free - free, 0))
        handoff.batch_time = now
        seq.num_computed = 0
        seq.num_known = seq.num_prompt_tokens + seq.num_emitted
        seq.evicted_time = now if seq.evicted_time == NEVER else seq.evicted_time
        seq.phase = Phase.WAITING
        self._replica.waiting.push_preempted(seq)

    # --- at a call ----------------------------------------------------------------------------------------------------

    def admit(self, now: float) -> None:
        """Let the landed join, in order, then give blocks to those that wait for them, in order."""
        self._unsettled = False
        while self._landed and self._may_join(self._landed[0].seq):
            self._join(self._landed.popleft(), now)
        if self._landed and not self._replica.running and not self._loading:
            self._make_way(now)
        while self._pending and self._accept(self._pending[0], now):
            self._pending.popleft()
        self._tried = self._version

    def _may_join(self, seq: Sequence) -> bool:
        replica = self._replica
        if len(replica.running) >= replica.limits.max_num_seqs:
            return False
        if seq.num_computed < seq.num_known:
            return True
        needed = int(seq.num_computed % replica.kv.block_size == 0)
        spare = replica.traits.decode_spare_blocks if replica.running else 0
        fits = replica.kv.fits(max(needed, spare))
        self._unsettled = self._unsettled or not fits
        return fits

    def _join(self, handoff: Handoff, now: float) -> None:
        replica, seq = self._replica, handoff.seq
        seq.order = replica.num_orders
        replica.num_orders += 1
        replica.running[seq.order] = seq
        seq.entered_time = now
        if seq.content is not None and seq.content.reaches_outputs:
            replica.kv.growing[seq.order] = seq
        if seq.num_computed < seq.num_known:  # the last prompt token is computed here
            seq.phase = Phase.PREFILL
            replica.prefills[seq.order] = seq
        else:
            seq.reserved_blocks = 0
            replica.join_decodes(seq)
        self.joined.append(handoff)

    def _make_way(self, now: float) -> None:
        """Nothing runs, nothing is on the way, and the first that has landed lacks a block: the last one gives its
        own.
        """
        if len(self._landed) > 1:
            self.give_way(now)
            while self._landed and self._may_join(self._landed[0].seq):
                self._join(self._landed.popleft(), now)

    def give_way(self, now: float) -> bool:
        """The last that has landed gives its blocks back, as those who run lack them; False: nobody has landed."""
        if not self._landed:
            return False
        seq = self._landed[-1].seq
        self._requeue(self._landed[-1], now, Cause.SCHEDULER)
        seq.num_preemptions += 1
        self._replica.num_preemptions += 1
        return True

    def _accept(self, handoff: Handoff, now: float) -> bool:
        """Take blocks for a whole prompt, cached ones included; False where something is lacking."""
        replica, seq = self._replica, handoff.seq
        if len(replica.running) >= replica.limits.max_num_seqs or self._too_many_wait() or self._somebody_returns():
            return False
        match = replica.match(seq)
        blocks = -(-seq.num_prompt_tokens // replica.kv.block_size)
        if not replica.kv.fits(blocks - match.num_blocks + match.num_idle + self._spare_blocks()):
            self._unsettled = self._unsettled or bool(replica.prefills) or replica.kv.could_grow(seq.content, match)
            return False
        self._take(seq, match, blocks, now)
        self._loading[seq.row] = handoff
        handoff.accepted(match.num_tokens)
        return True

    def _take(self, seq: Sequence, match: Match, num_blocks: int, now: float) -> None:
        replica = self._replica
        if match is not NO_MATCH:
            replica.count_shared(now)
            replica.kv.hold(seq, match)
        replica.kv.place(seq, num_blocks - match.num_blocks)
        seq.num_computed = seq.prefix_tokens = match.num_tokens
        seq.reserved_blocks = num_blocks
        seq.block_time_sum = num_blocks * now
        seq.token_time_sum = match.num_tokens * now
        seq.phase = Phase.LOADING

    def _too_many_wait(self) -> bool:
        """DistServe: prompts that were accepted and do not run yet reach the bound."""
        most = self._rules.max_inflight_tokens
        if most is None:
            return False
        accepted = (*self._loading.values(), *self._landed)
        return sum(handoff.seq.num_prompt_tokens for handoff in accepted) >= most

    def _somebody_returns(self) -> bool:
        replica = self._replica
        return bool(replica.swapped) or any(seq.evicted_time < NEVER for seq in replica.waiting)

    def _spare_blocks(self) -> int:
        """Blocks that a load must leave: the rest of the running prefills, and a reserve for each sequence."""
        replica, size = self._replica, self._replica.kv.block_size
        rest = sum(-(-seq.num_known // size) - replica.num_held(seq) for seq in replica.prefills.values())
        count = len(replica.running) + len(self._loading) + len(self._landed)
        return max(0, rest) - (-(count * self._rules.reserved_tokens_per_sequence) // size)

    # --- the first batch ----------------------------------------------------------------------------------------------

    def note_batch(self, start: float, num_decodes: int, chunks: list[tuple[Sequence, int]]) -> None:
        """A batch was built that starts at `start`: whose first one is it? Whoever was preempted waits no more."""
        waiting = []
        for handoff in self.joined:
            seq = handoff.seq
            if seq.phase in (Phase.WAITING, Phase.SWAPPED, Phase.ENDED):
                handoff.batch_time = seq.evicted_time
            elif (num_decodes and seq.phase is Phase.DECODE) or any(other is seq for other, _ in chunks):
                handoff.batch_time = start
            else:
                waiting.append(handoff)
        self.joined = waiting
