"""Sequence: the run-time state of one request on a replica.

A request itself is a row of the workload (`sim/workload/base.py`) and never changes. Policies see a sequence through
`sim.views.SequenceView`, which leaves out the true output length.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.kv.content import Content
    from sim.kv.paged import Held
    from sim.speculative_replica import SpecState
    from sim.transfer import Handoff

NEVER = float("inf")


class Phase(IntEnum):
    """Where a sequence stands on its replica."""

    WAITING = 0  # in the waiting queue, first time or after a preemption
    PREFILL = 1  # running, known tokens left to compute
    DECODE = 2  # running, one token a step: a member of the decode cohort
    PAUSED = 3  # running, decoding, but left out of the last step (budget spent before its turn)
    DRAINING = 4  # running for the books: its last token is scheduled, not yet returned
    ENDED = 5
    SWAPPED = 7  # its KV lies in host memory
    VERIFY = 6  # running, decoding with drafts: followed by itself, never a member of the cohort
    LOADING = 8  # it holds blocks but does not run: its KV is on the way from another replica, or has landed


class Sequence:
    """Run-time state of one request on one replica. Token counts unless a name says otherwise."""

    __slots__ = (
        "_num_output_tokens",
        "adapter",
        "admission_time",
        "arrival_time",
        "block_time_sum",
        "cached_at_admission",
        "content",
        "end_clock",
        "entered_time",
        "evicted_time",
        "failure",
        "first_scheduled_time",
        "first_token_time",
        "handoff",
        "held",
        "join_clock",
        "last_end",
        "leave_clock",
        "max_output_tokens",
        "num_blocks",
        "num_computed",
        "num_emitted",
        "num_known",
        "num_preemptions",
        "num_prompt_tokens",
        "num_recomputed",
        "offset",
        "order",
        "phase",
        "predicted_output_tokens",
        "preempted_before_first_token",
        "preempted_duration",
        "preempted_until",
        "prefix_tokens",
        "priority",
        "request_class",
        "reserved_blocks",
        "row",
        "running_at_first_token",
        "session",
        "speculation",
        "stops_early",
        "tenant",
        "token_time_sum",
    )

    speculation: SpecState  # set by replicas that speculate, absent elsewhere

    def __init__(
        self, row: int, arrival_time: float, num_prompt_tokens: int, num_output_tokens: int, max_output_tokens: int
    ) -> None:
        self.row = row  # row of the workload; also the tie-breaker of every order
        self.arrival_time = arrival_time
        self.admission_time = arrival_time
        self.num_prompt_tokens = num_prompt_tokens
        self.max_output_tokens = max_output_tokens
        self._num_output_tokens = num_output_tokens  # tokens it will really emit on this replica; not for policies
        self.stops_early = num_output_tokens < max_output_tokens  # ends by a stop token, not by length
        self.predicted_output_tokens: float | None = None
        self.priority = 0  # smaller is more important
        self.tenant: str | None = None
        self.request_class: str | None = None
        self.adapter: str | None = None
        self.session: object | None = None
        self.phase = Phase.WAITING
        self.order = -1  # position in the running list: counts admissions of the replica
        self.num_known = num_prompt_tokens  # tokens to compute before the next new one: prompt and delivered outputs
        self.num_computed = 0  # tokens whose KV is scheduled; stale while in the cohort (offset + clock)
        self.num_emitted = 0  # output tokens scheduled so far; stale while in the cohort
        self.offset = 0  # num_computed - clock while in the cohort
        self.join_clock = 0  # clock of its first decode step in the current span
        self.end_clock = 0  # clock of the step that computes its last token
        self.leave_clock = 0  # first clock at which it is no longer scheduled
        self.last_end = 0.0  # end of the last step with it, outside the cohort
        self.content: Content | None = None  # what its blocks hold, for the prefix cache
        self.held: list[Held] = []  # registered blocks it references, in order
        self.failure: str | None = None  # why the replica gave it up
        self.handoff: Handoff | None = None  # of the prefill of a request that is decoded elsewhere
        self.reserved_blocks = 0  # blocks it holds at least, however few its computed tokens need
        self.cached_at_admission = -1  # prefix-cache tokens at first admission, -1 before
        self.prefix_tokens = 0  # prefix-cache tokens of the latest admission
        self.entered_time = NEVER  # of the latest admission to the running list
        self.num_blocks = 0  # blocks it holds, as of the latest search for a victim
        self.num_preemptions = 0
        self.num_recomputed = 0
        self.first_scheduled_time = NEVER
        self.first_token_time = NEVER
        self.evicted_time = NEVER
        self.preempted_duration = 0.0
        self.preempted_until = 0.0  # end of the latest preemption that preempted_duration holds
        self.preempted_before_first_token = 0.0
        self.running_at_first_token = 0
        self.block_time_sum = 0.0  # sum over held blocks of the time each was taken, decode blocks excluded
        self.token_time_sum = 0.0  # the same for tokens

    def __lt__(self, other: Sequence) -> bool:
        return self.row < other.row
