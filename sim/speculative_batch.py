"""The batch of a replica with speculative decoding: running sequences ask for their drafts and are served one by one.

Semantics: running and waiting pass of vLLM V1 (0.33) with drafts, lookahead slots, the input budget of a draft model,
and admissions padded with dummy drafts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sim.batch import BatchBuilder, Decoding
from sim.errors import PolicyError
from sim.request import Phase

if TYPE_CHECKING:
    from sim.kv.paged import Match
    from sim.request import Sequence
    from sim.speculative_replica import SpeculativeReplica
    from sim.views import SequenceView


@dataclass(slots=True)
class Entry:
    """What one sequence does in one batch."""

    seq: Sequence
    tokens: int  # scheduled, drafts included
    num_drafts: int
    verifies: bool  # decodes, with or without drafts; otherwise computes known tokens
    padded: bool  # its drafts are dummies
    samples: bool  # computes its last known token, so that new ones come back
    residence: int  # preemptions of the sequence before: tells whether it was preempted since


class SpeculativeBuilder(BatchBuilder):
    """As `BatchBuilder`; `entries` holds the batch in scheduling order, `chunks` the prefill chunks among it."""

    _replica: SpeculativeReplica

    def begin(self, now: float) -> None:
        super().begin(now)
        self.entries: dict[int, Entry] = {}
        self._input_left = self._limits.max_num_batched_tokens
        self._prefilled = False  # the running pass scheduled a chunk of a prompt

    # --- the running pass ---------------------------------------------------------------------------------------------

    def add_running(self, max_chunk: int) -> None:
        for seq in list(self._replica.running.values()):
            if self._budget() <= 0:
                break
            if seq.phase is not Phase.WAITING:
                self._serve(seq, max_chunk)

    def add_decodes(self) -> bool:
        raise self._unmodelled()

    def _extend(self, seq: Sequence, max_chunk: int) -> None:
        raise self._unmodelled()

    def _unmodelled(self) -> PolicyError:
        name = type(self._replica.scheduler).__name__
        return PolicyError(f"{name} treats decodes apart from prefills; speculation needs a scheduler such as fcfs")

    def _budget(self) -> int:
        return min(self.tokens_left, self._input_left - self._replica.rules.slots)

    def _serve(self, seq: Sequence, max_chunk: int) -> None:
        state, limits = seq.speculation, self._limits
        sure = seq.num_computed + 2 - state.num_promised  # tokens that it will have even if all drafts in flight fail
        if state.num_promised and sure >= seq.num_prompt_tokens + seq.max_output_tokens:
            return
        target = seq.num_known + state.num_promised  # tokens up to which it computes, drafts apart
        wanted = target + state.num_drafts - seq.num_computed
        tokens = min(wanted, max_chunk, self._budget(), limits.max_model_len - 1 - seq.num_computed)
        if tokens <= 0:
            return
        blocks = self._replica.blocks_for(seq.num_computed + tokens) - seq.reserved_blocks
        if blocks > 0 and not self._make_room(seq, blocks):
            return
        verifies = seq.phase is Phase.VERIFY
        drafts = max(0, seq.num_computed + tokens - target) if state.num_drafts else 0
        samples = seq.num_computed + tokens >= target
        state.num_drafts = 0
        self._prefilled |= not verifies
        self._give(Entry(seq, tokens, drafts, verifies, False, samples, seq.num_preemptions), max(0, blocks))

    def _give(self, entry: Entry, new_blocks: int) -> None:
        seq = entry.seq
        if new_blocks:
            self._kv.take(new_blocks)
            seq.reserved_blocks += new_blocks
            seq.block_time_sum += new_blocks * self.now
        seq.num_computed += entry.tokens
        seq.token_time_sum += entry.tokens * self.now
        self._replica.register(seq, seq.num_computed)
        self.entries[seq.order] = entry
        self.tokens_left -= entry.tokens
        self._input_left -= entry.tokens + self._replica.rules.slots
        if not entry.verifies:
            self.chunks.append((seq, entry.tokens))

    def preempt(self, chosen: SequenceView | Decoding) -> None:
        entry = self.entries.pop(chosen.order, None)
        if entry is not None:
            self._input_left += entry.tokens + self._replica.rules.slots
            entry.seq.num_computed -= entry.tokens
            entry.seq.token_time_sum -= entry.tokens * self.now
            if entry.verifies:  # what chunks were given is returned below
                self.tokens_left += entry.tokens
        super().preempt(chosen)

    # --- the waiting pass ---------------------------------------------------------------------------------------------

    def admit(
        self,
        candidate: SequenceView,
        max_chunk: int,
        hold_tokens: int = 0,
        fit_tokens: int = 0,
        spare_blocks: int | None = None,
    ) -> bool:
        """As in `BatchBuilder`, with the slots of drafts; one token to compute may be padded with dummy drafts."""
        seq = self._replica.own(candidate)
        limits, budget = self._limits, self._budget()
        if seq.num_preemptions >= self._replica.max_preemptions:
            hold_tokens = self._replica.whole_length(seq)
        if max_chunk <= 0 or budget <= 0 or len(self._replica.running) >= limits.max_num_seqs:
            return self._refuse()
        match = self._replica.match(seq)
        wanted = seq.num_known - match.num_tokens
        padding = self._padding(wanted, match)
        if (padding or not limits.chunked_prefill) and wanted + padding > budget:
            return self._refuse()
        tokens = min(wanted + padding, max_chunk, budget)
        first = self._replica.blocks_for(max(match.num_tokens + tokens, hold_tokens))
        whole = seq.num_known if limits.reserve_full_isl else 0
        if spare_blocks is None:
            spare_blocks = limits.watermark_blocks if self._replica.running else 0
        needed = max(first, -(-max(fit_tokens, whole) // self._kv.block_size))
        if not self._kv.fits(needed - match.num_blocks + match.num_idle + spare_blocks):
            return self._refuse()
        self._let_in(seq, match, first - match.num_blocks)
        seq.reserved_blocks = first
        padding = max(0, tokens - wanted)
        samples = match.num_tokens + tokens >= seq.num_known
        self._give(Entry(seq, tokens, padding, bool(padding), bool(padding), samples, seq.num_preemptions), 0)
        return True

    def _padding(self, wanted: int, match: Match) -> int:
        """Dummy drafts with which an admission of one token joins verifying sequences in a uniform batch."""
        drafts = self._replica.rules.num_drafts
        joins = len(self.entries) > len(self.admitted) or match.num_tokens > 0
        fits = match.num_tokens + 1 + drafts + 1 <= self._limits.max_model_len
        return drafts if wanted == 1 and joins and fits and not self._prefilled else 0

    @property
    def stays_refused(self) -> bool:
        return False
