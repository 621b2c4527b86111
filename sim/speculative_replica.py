"""A replica with speculative decoding: sequences advance by unequal numbers of tokens, so each is followed by itself.

The loop is that of `Replica`, evaluated step by step: there is no decode cohort and nothing to fast-forward, since how
many drafts a step accepts decides what the next one computes. What a batch produced is known when it ends; with two
batches in flight the scheduler counts on promised tokens and rejected drafts are taken back on return.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sim.cost.base import BatchShape
from sim.recorder import Table
from sim.replica import GRID_SHIFT, Replica
from sim.request import NEVER, Phase
from sim.speculative_batch import Entry, SpeculativeBuilder
from sim.units import to_grid

if TYPE_CHECKING:
    from sim.batch import BatchBuilder
    from sim.kv.paged import Match
    from sim.request import Sequence
    from sim.speculation import Acceptance, SpeculationRules

DELIVERY_COLUMNS = ("row", "time", "num_tokens", "num_drafts", "num_accepted")


@dataclass(slots=True)
class SpecState:
    """What a sequence carries besides its counters."""

    num_drafts: int = 0  # drafts that its next step verifies
    num_promised: int = 0  # output tokens that batches in flight may return, drafts included
    num_verified: int = 0  # verify steps that have returned
    num_registered: int = 0  # tokens whose blocks are hashed


class SpeculativeReplica(Replica):
    """One model replica that verifies `rules.num_drafts` drafts a step. See the module docstring."""

    def __init__(self, *args: Any, rules: SpeculationRules, acceptance: Acceptance, **options: Any) -> None:
        super().__init__(*args, **options)
        self.rules = rules
        self.acceptance = acceptance
        self.step_by_step = True
        self.accounts.has_reservations = False
        self.deliveries = Table(DELIVERY_COLUMNS)
        self.delays = Table(("row", "seconds"))  # by which chunks of others lengthened a step
        self.builder: SpeculativeBuilder = SpeculativeBuilder(self)
        self._batches: deque[tuple[float, list[Entry]]] = deque()
        if rules.hashes_next_token:
            spans_of = self.content_spans
            # A block belongs to the content that holds the token after it: the same as contents one token earlier.
            self.content_spans = lambda row: [(key, max(low - 1, 0), high - 1) for key, low, high in spans_of(row)]

    # --- blocks -------------------------------------------------------------------------------------------------------

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that a sequence holds once `num_tokens` tokens are scheduled, lookahead slots included."""
        return -(-min(num_tokens + self.rules.lookahead, self.limits.max_model_len) // self.kv.block_size)

    def unservable(self, seq: Sequence) -> str | None:
        reason = super().unservable(seq)
        if reason is not None:
            return reason
        blocks = self.blocks_for(seq.num_prompt_tokens + seq._num_output_tokens - 1)
        if blocks > self.kv.num_usable:
            return f"needs {blocks} KV blocks at its full length and lookahead, the replica has {self.kv.num_usable}"
        return None

    def match(self, seq: Sequence) -> Match:
        match = super().match(seq)
        if self.rules.drops_last_block and match.num_blocks:
            return self.kv.match(seq.content, match.num_tokens - self.kv.block_size)
        return match

    def register(self, seq: Sequence, num_tokens: int) -> None:
        """Make the blocks of the first `num_tokens` tokens visible to look-ups, as far as the tokens are known."""
        state = seq.speculation
        known = seq.num_known - self.rules.hashes_next_token
        if (upto := min(num_tokens, known)) > state.num_registered:
            state.num_registered = upto
            if self.kv.prefix_caching:
                self.kv.register(seq, upto)

    def _registered(self, seq: Sequence, computed: int, now: float) -> int:
        return seq.speculation.num_registered

    # --- sequences come and go ----------------------------------------------------------------------------------------

    def submit(self, seq: Sequence, now: float) -> None:
        seq.speculation = SpecState()
        super().submit(seq, now)

    def enter(self, seq: Sequence, num_cached_tokens: int) -> None:
        super().enter(seq, num_cached_tokens)
        self.kv.growing.pop(seq.order, None)  # generated blocks are registered as they come back
        seq.speculation.num_registered = num_cached_tokens

    def evict(self, seq: Sequence, now: float, took_token: bool) -> None:
        super().evict(seq, now, took_token)
        seq.speculation.num_drafts = seq.speculation.num_promised = 0

    def cancel(self, seq: Sequence, now: float) -> int:
        super().cancel(seq, now)
        return seq.num_emitted

    # --- one step -----------------------------------------------------------------------------------------------------

    def _launch(self, builder: BatchBuilder, now: float) -> None:
        """Queue the batch; what it returns is settled when it ends."""
        entries = list(self.builder.entries.values())
        unfinished = self._unfinished(now)
        if not entries:
            self.next_call = unfinished[0] if unfinished else NEVER
            return
        shape = batch_shape(entries)
        start = unfinished[-1] if unfinished else now
        duration = self.cost.step_time(shape) + GRID_SHIFT - GRID_SHIFT
        end = start + duration
        if self.steps is not None:
            self.steps.add(shape, start, duration, builder, self.kv.num_free)
        if shape.num_prefill_tokens and shape.num_decode_sequences:
            self._account_delay(entries, shape, duration)
        for entry in entries:
            self._promise(entry, start, end, len(entries))
        self._batches.append((end, entries))
        num_tokens = sum(entry.tokens for entry in entries)
        self.busy_time += duration
        self.num_steps += 1
        self.num_tokens += num_tokens
        self.in_flight.append(end)
        if self.sampled:
            self._recent.append((end, num_tokens))
        self.next_call = now if len(unfinished) + 1 < self.limits.depth else (unfinished[0] if unfinished else end)

    def _account_delay(self, entries: list[Entry], shape: BatchShape, duration: float) -> None:
        alone = shape._replace(num_prefill_tokens=0, num_prefill_sequences=0, prefill_pairs=0, prefill_context=0)
        extra = max(0.0, duration - to_grid(self.cost.step_time(alone)))
        for entry in entries:
            if entry.verifies:
                self.delays.append((entry.seq.row, extra))

    def _promise(self, entry: Entry, start: float, end: float, batch_size: int) -> None:
        """Account for what is sure when the batch is queued."""
        seq = entry.seq
        if seq.first_scheduled_time == NEVER:
            seq.first_scheduled_time = start
        if not entry.samples:
            return
        seq.last_end = end
        if seq.phase is Phase.PREFILL:
            seq.phase = Phase.VERIFY
            del self.prefills[seq.order]
        if seq.num_emitted == 0:
            seq.running_at_first_token = batch_size
        if self.limits.depth > 1:
            seq.speculation.num_promised += 1 + entry.num_drafts
            seq.speculation.num_drafts = self.rules.num_drafts

    def _retire(self, now: float) -> None:
        """Settle the batches that have ended, in order."""
        while self._batches and self._batches[0][0] <= now:
            end, entries = self._batches.popleft()
            for entry in entries:
                if entry.samples and entry.seq.phase is not Phase.ENDED:
                    self._settle(entry, end)

    def _settle(self, entry: Entry, end: float) -> None:
        """Tokens of one sequence have come back: take back rejected drafts, deliver the others, end it if complete."""
        seq, state = entry.seq, entry.seq.speculation
        accepted = self._accepted(entry)
        here = entry.residence == seq.num_preemptions  # otherwise its blocks are gone, but its tokens are not
        if here:
            rejected = entry.num_drafts - accepted
            seq.num_computed -= rejected
            seq.token_time_sum -= rejected * end
        num_tokens = min(accepted + 1, seq._num_output_tokens - seq.num_emitted)
        self._deliver(seq, end, num_tokens, entry, accepted)
        seq.num_emitted += num_tokens
        seq.num_known += num_tokens
        if here:
            if self.limits.depth > 1:
                state.num_promised -= 1 + entry.num_drafts
            else:
                state.num_drafts = self.rules.num_drafts
            self.register(seq, seq.num_computed - state.num_promised)
        if seq.num_emitted == seq._num_output_tokens:
            self._refused = False
            self._end(end, seq)

    def _accepted(self, entry: Entry) -> int:
        seq, state = entry.seq, entry.seq.speculation
        if entry.padded or not entry.num_drafts:
            return 0
        state.num_verified += 1
        return self.acceptance.num_accepted(seq.row, state.num_verified - 1, seq.num_emitted, entry.num_drafts)

    def _deliver(self, seq: Sequence, end: float, num_tokens: int, entry: Entry, accepted: int) -> None:
        self.deliveries.append((seq.row, end, num_tokens, entry.num_drafts, accepted))
        if seq.num_emitted:
            self.resumed.append((seq.row, end))
        else:
            seq.first_token_time = end
            if self.on_first_token is not None:
                self.on_first_token(seq.row, end)
        if seq.evicted_time != NEVER and entry.residence == seq.num_preemptions:
            seq.preempted_duration += end - seq.evicted_time
            if seq.num_emitted == 0:
                seq.preempted_before_first_token = seq.preempted_duration
            seq.evicted_time = NEVER


def batch_shape(entries: list[Entry]) -> BatchShape:
    """The numbers of a batch. A verifying sequence is a decode with `num_drafts` query rows more."""
    total = sequences = pairs = read = decodes = context = drafts = draft_pairs = longest = 0
    for entry in entries:
        tokens, after = entry.tokens, entry.seq.num_computed
        entry_pairs = tokens * (after - tokens) + tokens * (tokens + 1) // 2
        longest = max(longest, after)
        if entry.verifies:
            decodes += 1
            context += after
            drafts += tokens - 1
            draft_pairs += entry_pairs - after
        else:
            total += tokens
            sequences += 1
            pairs += entry_pairs
            read += after
    return BatchShape(total, sequences, pairs, read, decodes, context, longest, drafts, draft_pairs)
