"""A replica: one copy of the model, one scheduler, one KV memory, and the loop that runs its steps.

The loop keeps up to `depth` batches in flight (2: the asynchronous engine, 1: the synchronous one). In the steady state
call k is made when batch k-2 has ended and batch k-1 starts; what arrives during step n joins step n+2. A pure decode
batch that nothing can change is not called step by step: the ends of all coming steps up to the next decision point are
planned with one vectorised call of the cost model, and the replica sleeps once. Whoever looks in meanwhile makes it
commit the calls that lie in the past; whoever changes something cuts the plan at the next call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from sim.batch import BatchBuilder
from sim.clock import Clock, Order, Timer
from sim.cohort import Cohort
from sim.cost.base import BatchShape
from sim.interfaces import Traits
from sim.kv.paged import NO_MATCH, Match, PagedKV
from sim.padding import Padding
from sim.preemptions import Cause, cause_of
from sim.recorder import EVICTION_COLUMNS, READMISSION_COLUMNS, SPAN_COLUMNS, StepTimes, Table
from sim.request import NEVER, Phase, Sequence
from sim.stays import MAX_FRUITLESS, FruitlessPreemptions, MemoryAccounts
from sim.step_log import StepLog
from sim.units import TICK, to_grid
from sim.waiting import AgeingQueue, ArrivalQueue, SortedQueue, TenantQueue, WaitingQueue

if TYPE_CHECKING:
    from sim.cost.base import CostModel
    from sim.inbox import Inbox
    from sim.interfaces import PreemptionPolicy, Scheduler
    from sim.kv.host import HostMemory
    from sim.signals import Changes
    from sim.views import SequenceView

# Adding and subtracting this rounds a float64 to the time grid: its last bit is worth one TICK. Half goes to even, as
# in `sim.units.to_grid`. Exact for durations below 2**20 s.
GRID_SHIFT = 1.5 * 2.0**52 * TICK
SPEED_PROMPT, SPEED_SEQUENCES, SPEED_CONTEXT = 2048, 64, 1024  # batches by which replicas are compared
QUEUED = (Phase.WAITING, Phase.SWAPPED)
MIN_HORIZON, MAX_HORIZON = 64, 1024  # steps of a plan: short after a change, longer the longer nothing changes


@dataclass(frozen=True)
class Limits:
    """Budgets of a step and of the memory of one replica."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    depth: int = 2  # batches in flight: 1 synchronous, 2 asynchronous scheduling
    chunked_prefill: bool = True
    reserve_full_isl: bool = True  # a prompt is admitted only if all of it would fit now
    watermark_blocks: int = 0  # free blocks that an admission must leave while others run


class Replica:
    """One model replica on its GPUs. See the module docstring for the loop."""

    def __init__(
        self,
        index: int,
        clock: Clock,
        scheduler: Scheduler,
        preemption: PreemptionPolicy,
        kv: PagedKV,
        cost: CostModel,
        limits: Limits,
        on_end: Callable[[Sequence, float, Replica], None],
        content_spans: Callable[[int], list[tuple[object, int, int]]],
        name: str = "replica",
        pool: str = "main",
        gpu: str = "",
        num_gpus: int = 1,
        step_by_step: bool = False,
        step_log: bool = False,
    ) -> None:
        self.index = index
        self.name, self.pool, self.gpu, self.num_gpus = name, pool, gpu, num_gpus
        self.clock = clock
        self.scheduler = scheduler
        self.traits: Traits = getattr(scheduler, "traits", None) or Traits()
        if kv.reserves:  # every decode and every chunk has its slot
            self.traits = replace(self.traits, decode_spare_blocks=0, chunk_needs_block=False)
        self.preemption = preemption
        bound = getattr(preemption, "max_preemptions", None)
        self.max_preemptions: float = NEVER if bound is None else bound
        self.kv = kv
        self.cost = cost
        self.limits = limits
        self.on_end = on_end
        self.content_spans = content_spans
        self.step_by_step = step_by_step
        self.steps = StepLog() if step_log else None
        self.cohort = Cohort(kv.block_size)
        self.times = StepTimes()
        self.spans = Table(SPAN_COLUMNS, "q")
        self.resumed = Table(("row", "time"))
        self.evictions = Table(EVICTION_COLUMNS)
        self.readmissions = Table(READMISSION_COLUMNS, "q")
        self.mixed = Table(("clock", "duration", "num_sequences", "context", "max_context"))
        self.waiting: WaitingQueue = self._make_queue()
        self.host: HostMemory | None = None  # where preempted sequences may be swapped to
        self.swaps: Callable[[Sequence], bool] | None = None  # whether a victim is swapped; None: all are recomputed
        self.swapped: deque[Sequence] = deque()  # in host memory, first to come back first
        self.inbox: Inbox | None = None  # where requests whose prompt was computed elsewhere come in
        self.high_water_spare = kv.num_usable - int(self.traits.high_water * kv.num_usable)  # blocks above the mark
        self._plan_spare = max(self.traits.decode_spare_blocks, self.high_water_spare)
        self.empty_call_duration = 0.0  # seconds until the next call after one that changed something but ran nothing
        self._ask_again = False
        self._padding = Padding() if self.traits.padded else None
        self.running: dict[int, Sequence] = {}  # by order, oldest admission first
        self.prefills: dict[int, Sequence] = {}
        self.paused: dict[int, Sequence] = {}
        self.builder = BatchBuilder(self)
        self.sampled = False  # whether somebody asks for `sample`
        self.on_first_token: Callable[[int, float], None] | None = None  # (row, instant), told ahead of the instant
        self.on_cache_change: Callable[[int, Changes], None] | None = None  # (own index, what is cached or not now)
        self.observer: Callable[[BatchBuilder], None] | None = None  # sees every evaluated call (golden tests)
        # The plan: calls of clocks [cohort.clock, planned) are decided and lie ahead (or at this very instant).
        self.planned = 0
        self.next_call = NEVER  # instant of the first call that is not planned
        # when the replica must wake for it: later than next_call where that call is sure to be steady
        self._due = NEVER
        self.in_flight: deque[float] = deque(maxlen=limits.depth)  # ends of the latest batches, oldest first
        # heap: (instant the last token comes back, order, sequence)
        self.finishing: list[tuple[float, int, Sequence]] = []
        self._refused = False  # the head of the waiting queue cannot get in as things are
        self._look = False  # something changed that the plan does not know
        self._looks: set[float] = set()  # instants at which the scheduler wants to be asked
        self._on_leave: Callable[[Sequence, bool], None] | None = getattr(scheduler, "left", None)
        self._horizon = MIN_HORIZON
        self._timer: Timer | None = None
        self._timer_time = NEVER
        self._scheduling = False
        self._plan_start = 0.0  # start of the first planned step that is not committed
        self._decode_max_context = 0
        self._recent: deque[tuple[float, int]] = deque(maxlen=limits.depth + 1)  # (end, tokens) of the latest batches
        # Totals.
        self.num_orders = 0
        self.num_departures = 0  # sequences that ended, were cancelled or preempted
        self.num_steps = 0
        self.num_tokens = 0
        self.num_planned_steps = 0
        self.num_plans = 0
        self.busy_time = 0.0
        self.num_preemptions = 0
        self._fruitless = FruitlessPreemptions()
        self.num_lookup_tokens = 0
        self.num_hit_tokens = 0
        self.accounts = MemoryAccounts()

    def _make_queue(self) -> WaitingQueue:
        key = self.scheduler.queue_key
        choose, max_wait = getattr(self.scheduler, "next_tenant", None), getattr(self.scheduler, "max_wait", None)
        if choose is not None:
            return TenantQueue(choose)
        if max_wait is not None:
            return AgeingQueue(lambda seq: key(seq) or (), max_wait, lambda: self.builder.now)
        if self.traits.sorted_queue:
            return SortedQueue(lambda seq: key(seq) or ())
        return ArrivalQueue(self.traits.preempted_last, self.traits.looks_at_every_arrival)

    # --- as others see it ---------------------------------------------------------------------------------------------

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + len(self.swapped) + (0 if self.inbox is None else len(self.inbox))

    @property
    def _anybody_waits(self) -> bool:
        """Whether a call might let somebody in."""
        return bool(self.waiting or self.swapped or (self.inbox is not None and self.inbox.waits))

    @property
    def num_running(self) -> int:
        return len(self.running)

    @property
    def num_kv_blocks(self) -> int:
        return self.kv.num_usable

    @property
    def kv_block_size(self) -> int:
        return self.kv.block_size

    @property
    def num_outstanding(self) -> int:
        return self.num_waiting + len(self.running)

    def outstanding(self) -> list[Sequence]:
        """Every sequence of the replica."""
        coming = [] if self.inbox is None else self.inbox.sequences()
        return [*self.waiting, *self.swapped, *self.running.values(), *coming]

    @property
    def kv_usage(self) -> float:
        self.advance(self.clock.now)
        return 1.0 - self.kv.num_free / self.kv.num_usable

    @cached_property
    def prefill_speed(self) -> float:
        """Tokens a second of a step with one prompt of 2,048 tokens (or as many as a step holds)."""
        tokens = min(SPEED_PROMPT, self.limits.max_num_batched_tokens)
        return tokens / self.cost.step_time(BatchShape(tokens, 1, tokens * (tokens + 1) // 2, tokens, 0, 0, tokens))

    @cached_property
    def decode_speed(self) -> float:
        """Tokens a second of steps of 64 sequences (or as many as may run) with contexts of 1,024 tokens."""
        size = min(SPEED_SEQUENCES, self.limits.max_num_seqs)
        return size / self.cost.step_time(BatchShape(0, 0, 0, 0, size, size * SPEED_CONTEXT, SPEED_CONTEXT))

    def batch_tokens(self, now: float) -> int:
        """Tokens of the step that executes at `now`; 0 when idle."""
        self.advance(now)
        return next((tokens for end, tokens in self._recent if end > now), 0)

    def sample(self, now: float) -> tuple[float, ...]:
        """One row of the timeline."""
        tokens = self.batch_tokens(now)
        kv = self.kv
        ahead = max(0.0, self.in_flight[-1] - now) if self.in_flight else 0.0  # booked, but not yet executed
        return (
            now,
            self.index,
            self.num_waiting,
            len(self.running),
            kv.num_usable - kv.num_free,
            kv.num_idle,
            kv.num_free - kv.num_idle,
            tokens,
            self.busy_time - ahead,
            self.num_preemptions,
        )

    # --- from outside -------------------------------------------------------------------------------------------------

    def unservable(self, seq: Sequence) -> str | None:
        """Why this replica could never serve the sequence, or None; also settles how many tokens it will emit here."""
        longest = min(self.limits.max_model_len + self.traits.extra_tokens, self.kv.longest_sequence)
        room = longest - seq.num_prompt_tokens
        too_long = self.limits.max_model_len < seq.num_prompt_tokens <= self.kv.longest_sequence
        if too_long and self.traits.drops_unservable:
            return None  # the scheduler drops it when its turn comes
        if room < 1:
            return f"prompt of {seq.num_prompt_tokens} tokens does not fit a sequence of at most {longest} tokens"
        late = self.limits.chunked_prefill or self.traits.drops_unservable
        if not late and seq.num_prompt_tokens > self.limits.max_num_batched_tokens:
            budget = self.limits.max_num_batched_tokens
            return (
                f"prompt of {seq.num_prompt_tokens} tokens exceeds max_num_batched_tokens {budget} and is not chunked"
            )
        allowed = seq.max_output_tokens if self.kv.shifts else min(seq.max_output_tokens, room)
        seq.stops_early = seq._num_output_tokens < allowed
        seq._num_output_tokens = min(seq._num_output_tokens, allowed)
        blocks = -(-(seq.num_prompt_tokens + seq._num_output_tokens - 1) // self.kv.block_size)
        if blocks > self.kv.num_usable and not self.kv.shifts:
            return f"needs {blocks} KV blocks at its full length, the replica has {self.kv.num_usable}"
        never_fits = getattr(self.scheduler, "never_fits", None)
        reason: str | None = self.kv.never_fits(seq, self.limits.max_model_len)
        if reason is None and never_fits is not None:
            size = self.kv.block_size
            reason = never_fits(seq, self.kv.num_usable * size, size, longest)
        return reason

    def submit(self, seq: Sequence, now: float) -> None:
        """A request arrives at the replica."""
        self.advance(now)  # calls before its arrival must not see it
        if self.kv.prefix_caching:
            seq.content = self.kv.content(self.content_spans(seq.row), seq.num_prompt_tokens)
        first = self.waiting.push(seq)
        if first or self.builder.num_set_aside:  # it may get in past those set aside
            self.wake(now)

    def wake(self, now: float) -> None:
        """Something changed that may let somebody in: have the scheduler asked at the next call, at once when idle."""
        self._refused = False
        if self.next_call == NEVER:
            self._awake(now)
        self._request_look(now)

    def cancel(self, seq: Sequence, now: float) -> int:
        """The client gave up: forget the sequence, free its blocks; return its delivered output tokens.

        The step in flight runs on with it; the next call is made without it.
        """
        self.advance(now)
        if self.kv.reserves:
            self.kv.account(now)
        if seq.phase in QUEUED:
            self._leave_queue(seq)
            delivered = seq.num_emitted - (1 if seq.last_end > now else 0)
        else:
            delivered = self._leave_running(seq, now)
        seq.phase = Phase.ENDED
        self.finishing = [entry for entry in self.finishing if entry[2] is not seq]
        heapify(self.finishing)
        self._refused = False
        self._request_look(now)
        return delivered

    def _request_look(self, now: float) -> None:
        self._look = True
        if not self._scheduling:
            self._cut(now)
            self._set_timer()

    def look_at(self, time: float) -> None:
        """Let the first call from `time` on ask the scheduler."""
        time = to_grid(time)
        if time not in self._looks and time > self.clock.now:
            self._looks.add(time)
            self.clock.at(time, Order.CONTROL_LOOP, self.index, self._on_look)

    def _on_look(self, _: object) -> None:
        now = self.clock.now
        self._looks.discard(now)
        if self.waiting:
            self.advance(now)
            self._refused = False
            self._request_look(now)

    def _awake(self, now: float) -> None:
        """Leave idleness: call at once, unless batches are still in flight (their queue is full, or an empty one
        waits).
        """
        self.next_call = self._due = next((end for end in self.in_flight if end > now), now)

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _on_timer(self, _: object) -> None:
        """Completions of this instant; then, when nothing else is due at it, the calls of this instant."""
        now = self.clock.now
        self._timer_time = NEVER
        self.advance(now)
        self._retire(now)
        if self.clock.more_now():
            self._scheduling = True
            self.clock.at(now, Order.SCHEDULING, self.index, self._on_scheduling)
        else:
            self._make_calls(now)

    def _on_scheduling(self, _: object) -> None:
        self._scheduling = False
        self._make_calls(self.clock.now)

    def _make_calls(self, now: float) -> None:
        if self._look:
            self._cut(now)
        while self.next_call <= now:
            if not self.running and not self._anybody_waits:
                self.next_call = self._due = NEVER
                break
            self._call(now)
            if self.builder.dropped and self.clock.more_now():  # whom a drop made arrive comes before the next call
                self._scheduling = True
                self.clock.at(now, Order.SCHEDULING, self.index, self._on_scheduling)
                return
        self._set_timer()

    def _call(self, now: float) -> None:
        """One scheduling call: plan far ahead where nothing can change, else build one batch (and plan from there)."""
        if self.planned > self.cohort.clock:
            self._commit(self.planned - self.cohort.clock)
        self._retire(now)
        self._look = False
        if self._is_steady() and self._plan(now):
            return
        builder = self.builder
        builder.begin(now)
        if self.inbox is not None:
            self.inbox.admit(now)
            if self.inbox.stalls:  # the landing wakes
                self.next_call = self._due = NEVER
                return
        self.scheduler.schedule(builder)
        if self.swapped and not self.running and not builder.num_preempted:
            builder.resume_swapped()  # whatever the scheduler thinks of, an idle replica takes them back
        builder.finish()
        self._refused = builder.stays_refused
        self._ask_again = builder.again
        if self.observer:
            self.observer(builder)
        if self.on_cache_change is not None and builder.chunks:
            self.publish()
        self._launch(builder, now)
        self._due = self.next_call
        if self._is_steady() and self.cohort.size and self.cohort.leave_at > self.cohort.clock:
            self._plan(self.next_call)

    def _set_timer(self) -> None:
        time = self._due
        if self.finishing and self.finishing[0][0] < time:
            time = self.finishing[0][0]
        if time == self._timer_time:
            return
        if self._timer is not None and self._timer_time != NEVER:
            self._timer.cancel()
        self._timer_time = time
        if time != NEVER:
            self._timer = self.clock.at(time, Order.STEP_COMPLETION, self.index, self._on_timer)

    # --- fast-forward -------------------------------------------------------------------------------------------------

    def _is_steady(self) -> bool:
        """Whether the coming batch is the decode cohort (if any) and nothing else, whatever the scheduler is asked."""
        return not (
            self.prefills
            or self.paused
            or ((self.waiting or self.swapped) and not self._refused)
            or self._ask_again
            or (self.inbox is not None and (self.inbox.wants_call or self.inbox.stalls))
            or self.cohort.size > self.limits.max_num_batched_tokens
            or self.step_by_step
        )

    def _plan(self, now: float) -> bool:
        """Plan the coming steps of the cohort up to the next decision point; False if not even one fits in memory."""
        cohort, times = self.cohort, self.times
        size, first = cohort.size, cohort.clock
        unfinished = self._unfinished(now)
        if not size:  # the last tokens are on their way
            self.next_call = unfinished[0] if unfinished else NEVER
            self._due = self.next_call if self._anybody_waits else NEVER
            return True
        limit = min(self._horizon, min(cohort.leave_at, cohort.cover_at) - first)
        steps = cohort.steps_within(self.kv.num_free - self._plan_spare, limit)
        if steps < 1:
            return False
        end = first + steps
        times.reserve(end + self.limits.depth)
        ends = times.ends[first:end]
        if self._padding is None:
            durations = self.cost.decode_times(size, cohort.computed + size, cohort.max_computed() + 1, steps)
        else:
            durations = self._padding.decode_times(self, steps)
        np.add(durations, GRID_SHIFT, out=ends)
        np.subtract(ends, GRID_SHIFT, out=ends)
        self._plan_start = unfinished[-1] if unfinished else now
        times.end_at[first] += self._plan_start
        np.add.accumulate(ends, out=ends)  # exact on the grid, and so the same bits as adding step by step
        self._plan_calls(now, first, steps, unfinished)
        self.planned = end
        self.num_plans += 1
        self._horizon = min(4 * self._horizon, MAX_HORIZON)
        # Copies occupy links from the instant of their call, so a replica that swaps makes its calls in time.
        alone = not self._anybody_waits and self.host is None
        returns = self._next_return() if end == cohort.leave_at and alone else now
        # A prefill step may have come between: then the last token is back before its surplus step is called.
        self._due = returns if returns > now else self.next_call
        return True

    def _next_return(self) -> float:
        """Instant at which the last token of the member that leaves first comes back.

        With nobody waiting, its leaving alone changes nothing that others could see: the call is made when they look.
        """
        seq = self.cohort.first_leaver()
        return self.times.end_at[seq.end_clock] if seq.end_clock >= seq.join_clock else seq.last_end

    def _unfinished(self, now: float) -> list[float]:
        """Ends of the batches in flight, oldest first."""
        return [end for end in self.in_flight if end > now]

    def _plan_calls(self, now: float, first: int, steps: int, unfinished: list[float]) -> None:
        """Instants of the planned calls and of the one after them: call i follows the end of batch i - depth."""
        depth, times = self.limits.depth, self.times
        head = [now] * (depth - len(unfinished)) + unfinished
        if steps > depth:
            times.calls[first + depth : first + steps] = times.ends[first : first + steps - depth]
        for i in range(min(depth, steps)):
            times.call_at[first + i] = head[i]
        self.next_call = head[steps] if steps < depth else times.end_at[first + steps - depth]

    def advance(self, now: float) -> None:
        """Make the calls that lie before `now`: commit planned ones, catch up on steady ones nobody woke for."""
        while True:
            first = self.cohort.clock
            if first < self.planned and self.times.call_at[first] < now:
                self._commit(self.times.first_call_from(now, first, self.planned) - first)
            if self.next_call >= now:
                return
            self._call(self.next_call)

    def _commit(self, steps: int) -> None:
        """The next `steps` planned calls have been made."""
        if not steps:
            return
        cohort, times = self.cohort, self.times
        if self.steps is not None:
            self.steps.add_planned(cohort, times, self._plan_start, steps, self.kv.num_free)
        blocks = cohort.new_blocks(steps)
        if blocks:
            self.kv.take(blocks)
        first = cohort.clock
        cohort.advance(steps)
        last = cohort.clock
        end = times.end_at[last - 1]
        self.busy_time += end - self._plan_start
        self._plan_start = end
        self.num_steps += steps
        self.num_tokens += steps * cohort.size
        self.num_planned_steps += steps
        in_flight = self.in_flight
        for clock in range(max(first, last - self.limits.depth), last):
            in_flight.append(times.end_at[clock])
        if self.sampled:
            for clock in range(max(first, last - self.limits.depth), last):
                self._recent.append((times.end_at[clock], cohort.size))

    def _cut(self, now: float) -> None:
        """Give up planned calls at or after `now`: the next one is decided afresh."""
        self.advance(now)
        if self.cohort.clock < self.planned:
            self.planned = self.cohort.clock
            self.next_call = self.times.call_at[self.planned]
            self._horizon = MIN_HORIZON
        self._due = self.next_call

    # --- one evaluated step -------------------------------------------------------------------------------------------

    def _launch(self, builder: BatchBuilder, now: float) -> None:
        """Queue the batch that the scheduler built and work out what follows from it."""
        cohort = self.cohort
        size = cohort.size if builder.decoded else 0
        builder.close()
        chunks = builder.chunks
        unfinished = self._unfinished(now)
        if self.inbox is not None and self.inbox.joined:
            self.inbox.note_batch(unfinished[-1] if unfinished else now, size, chunks)
        if not size and not chunks:
            self.next_call = unfinished[0] if unfinished else self._after_empty_call(builder, now)
            return
        shape = self._shape(size, chunks)
        start = unfinished[-1] if unfinished else now
        seconds = self.cost.step_time(shape if self._padding is None else self._padding.shape(self, size, chunks))
        if self.host is not None:
            seconds += self.host.delay(builder.num_blocks_out, builder.num_blocks_in)
        duration = seconds + GRID_SHIFT - GRID_SHIFT
        end = start + duration
        if self.steps is not None:
            self.steps.add(shape, start, duration, builder, self.kv.num_free)
        if size:
            self._advance_one(now, end)
            if chunks:
                self.mixed.append((cohort.clock - 1, duration, size, shape.decode_context, self._decode_max_context))
        self.planned = cohort.clock
        for seq, tokens in chunks:
            self._account_chunk(seq, start, end, size + len(chunks))
            self.num_tokens += tokens
        for seq in builder.swapped_in:
            self._account_return(seq, end if size else now)
        self.busy_time += duration
        self.num_steps += 1
        self.num_tokens += size
        self.in_flight.append(end)
        if self.sampled:
            self._recent.append((end, size + shape.num_prefill_tokens))
        self.next_call = now if len(unfinished) + 1 < self.limits.depth else (unfinished[0] if unfinished else end)

    def _after_empty_call(self, builder: BatchBuilder, now: float) -> float:
        """Instant of the call after one without a batch: soon if it changed something, else when something happens."""
        self._drop_hopeless(builder, now)
        if builder.again or builder.num_preempted or builder.dropped or builder.swapped_in:
            copies = 0.0 if self.host is None else self.host.delay(builder.num_blocks_out, builder.num_blocks_in)
            return now + to_grid(self.empty_call_duration + copies)
        if self.running and self.inbox is not None and self.inbox.give_way(now):
            return now + to_grid(self.empty_call_duration)
        return NEVER

    def _drop_hopeless(self, builder: BatchBuilder, now: float) -> None:
        """Who is refused for want of memory while all of it is free will never get in."""
        seq = builder.refused_for_memory
        if seq is None or builder.num_preempted or self.running or self.kv.num_free < self.kv.num_usable:
            return
        self._leave_queue(seq)
        self._refused = False
        self.drop(seq, f"all {self.kv.num_usable} KV blocks are free and it does not get in with this scheduler", now)

    def _advance_one(self, now: float, end: float) -> None:
        clock = self.cohort.clock
        self.times.reserve(clock + 1)
        self.times.end_at[clock] = end
        self.times.call_at[clock] = now
        self.cohort.advance(1)

    def _shape(self, size: int, chunks: list[tuple[Sequence, int]]) -> BatchShape:
        self._decode_max_context = longest = self.cohort.max_computed() + 1 if size else 0
        context = self.cohort.computed + size if size else 0
        if not chunks:
            return BatchShape(0, 0, 0, 0, size, context, longest)
        total = pairs = read = 0
        for seq, tokens in chunks:
            after = seq.num_computed
            total += tokens
            pairs += tokens * (after - tokens) + tokens * (tokens + 1) // 2
            read += after
            longest = max(longest, after)
        return BatchShape(total, len(chunks), pairs, read, size, context, longest)

    def _account_chunk(self, seq: Sequence, start: float, end: float, running: int) -> None:
        if seq.first_scheduled_time == NEVER:
            seq.first_scheduled_time = start
        seq.last_end = end
        if seq.handoff is not None:
            seq.handoff.chunk_scheduled(start, end)
        if seq.num_computed < seq.num_known:
            return
        del self.prefills[seq.order]
        if seq.num_emitted == 0:
            seq.first_token_time = end
            seq.running_at_first_token = running
            if self.on_first_token is not None:
                self.on_first_token(seq.row, end)
        else:
            self.resumed.append((seq.row, end))
        if seq.evicted_time != NEVER:
            seq.preempted_duration += end - seq.evicted_time
            if seq.num_emitted == 0:
                seq.preempted_before_first_token = seq.preempted_duration
            seq.evicted_time, seq.preempted_until = NEVER, end
        seq.num_emitted += 1
        self.join_decodes(seq)

    def _account_return(self, seq: Sequence, time: float) -> None:
        """A swapped decode has its next token at `time`; a prefill is accounted for with its last chunk."""
        if seq.phase is not Phase.PREFILL and seq.evicted_time != NEVER:
            seq.preempted_duration += time - seq.evicted_time
            seq.evicted_time, seq.preempted_until = NEVER, time

    def join_decodes(self, seq: Sequence) -> None:
        """Become a decode: work out the clock of the last token, and when the scheduler stops asking for it."""
        cohort = self.cohort
        if seq.reserved_blocks and seq.reserved_blocks <= -(-seq.num_computed // self.kv.block_size):
            seq.reserved_blocks = 0  # a reserve that is full already changes nothing, but would cut plans
        left = seq._num_output_tokens - seq.num_emitted
        if self.kv.shifts and left:
            if not self.kv.tokens_until_shift(seq.num_computed):
                self._shift(seq)
            left = min(left, self.kv.tokens_until_shift(seq.num_computed))
        seq.end_clock = cohort.clock + left - 1
        seq.leave_clock = cohort.clock + left + (self.limits.depth - 1 if seq.stops_early else 0)
        if seq.leave_clock > cohort.clock:
            cohort.add(seq, seq.num_computed)
        else:
            seq.phase = Phase.DRAINING
            heappush(self.finishing, (seq.last_end, seq.order, seq))

    def _shift(self, seq: Sequence) -> None:
        """A sequence that has filled its memory drops old tokens, to go on decoding."""
        dropped = self.kv.shift(seq)
        seq.num_computed -= dropped
        seq.token_time_sum -= dropped * seq.last_end

    # --- sequences come and go ----------------------------------------------------------------------------------------

    def enter(self, seq: Sequence, num_cached_tokens: int) -> None:
        """A waiting sequence joins the running list (called by the builder)."""
        seq.order = self.num_orders
        self.num_orders += 1
        self.running[seq.order] = self.prefills[seq.order] = seq
        seq.entered_time = self.builder.now
        seq.phase = Phase.PREFILL
        seq.num_computed = seq.prefix_tokens = num_cached_tokens
        if seq.content is not None and seq.content.reaches_outputs:
            self.kv.growing[seq.order] = seq
        if seq.cached_at_admission < 0:
            seq.cached_at_admission = num_cached_tokens
            if self.kv.prefix_caching:
                self.num_lookup_tokens += seq.num_known
                self.num_hit_tokens += num_cached_tokens
        else:
            seq.num_recomputed += seq.num_known - num_cached_tokens
            self.readmissions.append((seq.row, seq.num_known - num_cached_tokens, num_cached_tokens))

    def match(self, seq: Sequence) -> Match:
        """Prefix-cache look-up for a waiting sequence: at least one known token is left to compute."""
        if not self.kv.prefix_caching:
            return NO_MATCH
        if self.kv.growing:
            self.register_growing()
        return self.kv.match(seq.content, seq.num_known - 1)

    def register_growing(self) -> None:
        """Register the generated blocks that others could hit, in the order in which the engine did: step, then running
        order.

        Called before anything that depends on them: look-ups, registrations and releases.
        """
        size, pending = self.kv.block_size, []
        for seq in self.kv.growing.values():
            assert seq.content is not None
            computed = self.num_computed(seq) + self.builder.took_token(seq)
            last = min(self._registered(seq, computed, self.clock.now) // size, seq.content.num_shared_blocks)
            for block in range(seq.content.num_registered + 1, last + 1):
                pending.append((block * size - seq.offset, seq.order, block * size, seq))
        for _, _, tokens, seq in sorted(pending):
            self.kv.register(seq, tokens)

    def publish(self) -> None:
        """Tell the listener which contents have been cached or lost since it was told last.

        Only when a prompt is being computed or a sequence leaves: both happen at the same instants however the run is
        executed. What decode steps overwrite in between is told then.
        """
        assert self.on_cache_change is not None
        if self.kv.growing:
            self.register_growing()
        changes = self.kv.changes()
        if changes:
            self.on_cache_change(self.index, changes)

    def own(self, view: SequenceView) -> Sequence:
        """The sequence behind a policy's view."""
        assert isinstance(view, Sequence)
        return view

    def num_computed(self, seq: Sequence) -> int:
        """Tokens whose KV is scheduled."""
        return seq.offset + self.cohort.clock if seq.phase is Phase.DECODE else seq.num_computed

    def choose_victim(self) -> Sequence:
        """Ask the preemption policy for one of the running sequences, those that were preempted often enough
        left out.
        """
        candidates = list(self.running.values())
        if self.max_preemptions < NEVER:
            candidates = [seq for seq in candidates if seq.num_preemptions < self.max_preemptions] or candidates
        if self._padding is not None:
            candidates = [seq for seq in candidates if seq not in self._padding.held_back]
        size = self.kv.block_size
        for seq in candidates:
            if seq.phase is Phase.DECODE:
                seq.num_computed = seq.offset + self.cohort.clock
            seq.num_blocks = max(-(-seq.num_computed // size), seq.reserved_blocks)
        chosen = self.preemption.victim(candidates)
        return self.running[chosen.order]

    def whole_length(self, seq: Sequence) -> int:
        """Most tokens of KV that the sequence may come to hold, as far as anybody can know, and at most all
        there are.
        """
        declared = min(seq.num_prompt_tokens + seq.max_output_tokens, self.limits.max_model_len)
        return min(declared, self.kv.num_usable * self.kv.block_size)

    def evict(self, seq: Sequence, now: float, took_token: bool) -> None:
        """Carry out a preemption: blocks freed, computed tokens 0, back into the waiting queue."""
        was_prefill = seq.phase is Phase.PREFILL
        lost, free = self.num_computed(seq) + took_token, self.kv.num_free
        self._leave_running(seq, now, took_token)
        self._log_eviction(seq, now, lost, self.kv.num_free - free)
        seq.evicted_time = max(now, seq.last_end) if seq.evicted_time == NEVER else seq.evicted_time
        if was_prefill:
            seq.last_end = 0.0  # nothing to wait for: a chunk in flight returns no token
        seq.num_known = seq.num_prompt_tokens + seq.num_emitted
        if self.traits.restarts_output_count and not seq.stops_early:
            room = self.limits.max_model_len - seq.num_prompt_tokens + self.traits.extra_tokens
            seq._num_output_tokens = min(seq.num_emitted + seq.max_output_tokens, room)
        seq.num_computed = 0
        if self._count_preemption(seq, now):
            seq.phase = Phase.WAITING
            self.waiting.push_preempted(seq)

    def _count_preemption(self, seq: Sequence, now: float) -> bool:
        """False where the same preemption would go on for ever, as in a real engine it can: the sequence is dropped."""
        seq.num_preemptions += 1
        self.num_preemptions += 1
        if not self._fruitless.too_many(seq, self.cohort.clock):
            return True
        reason = f"preempted {MAX_FRUITLESS} times in a row without a new token: it never gets on in "
        self.drop(seq, f"{reason}{self.kv.num_usable} KV blocks with this scheduler", now)
        return False

    def num_held(self, seq: Sequence) -> int:
        """Blocks that the sequence holds, or held when it was swapped out."""
        return max(-(-self.num_computed(seq) // self.kv.block_size), seq.reserved_blocks)

    def swap_out(self, seq: Sequence, num_blocks: int, now: float, took_token: bool) -> None:
        """Carry out a preemption by swapping: GPU blocks freed, computed tokens kept, to the end of the swapped
        queue.
        """
        assert self.host is not None
        free, reserved = self.kv.num_free, seq.reserved_blocks
        was_prefill = seq.phase is Phase.PREFILL
        self._leave_running(seq, now, took_token)
        seq.reserved_blocks = reserved
        self._log_eviction(seq, now, 0, self.kv.num_free - free, num_blocks)
        if was_prefill:
            seq.last_end = 0.0
        seq.evicted_time = max(now, seq.last_end) if seq.evicted_time == NEVER else seq.evicted_time
        if self._count_preemption(seq, now):
            seq.phase = Phase.SWAPPED
            self.swapped.append(seq)
        else:
            self.host.forget(self.num_held(seq))

    def swap_in(self, seq: Sequence, num_blocks: int, now: float) -> int:
        """The first swapped sequence runs again, on `num_blocks` fresh blocks; return how many were copied."""
        assert self.host is not None
        assert self.swapped[0] is seq
        self.swapped.popleft()
        copied = self.num_held(seq)
        self.host.copy_in(copied)
        self.readmissions.append((seq.row, 0, seq.num_computed))
        self.kv.place(seq, num_blocks)
        seq.order = self.num_orders
        self.num_orders += 1
        self.running[seq.order] = seq
        seq.entered_time = now
        seq.token_time_sum = seq.num_computed * now
        if seq.content is not None and seq.content.reaches_outputs:
            self.kv.growing[seq.order] = seq
        if seq.num_computed < seq.num_known:
            seq.block_time_sum = num_blocks * now
            seq.phase = Phase.PREFILL
            self.prefills[seq.order] = seq
        else:
            seq.block_time_sum = copied * now  # the block of the coming token is taken by the decode step
            self.join_decodes(seq)
        return copied

    def _leave_queue(self, seq: Sequence) -> None:
        """Take a sequence out of the queue in which it stands; what the host holds of a swapped one is given up."""
        if seq.phase is Phase.WAITING:
            self.waiting.remove(seq)
            return
        assert self.host is not None
        self.swapped.remove(seq)
        self.host.forget(self.num_held(seq))

    def drop(self, seq: Sequence, reason: str, now: float) -> None:
        """Give up a sequence that is in none of the queues any more."""
        self.builder.dropped.append(seq)
        if seq.evicted_time != NEVER:
            seq.preempted_duration += max(0.0, now - seq.evicted_time)
        seq.failure = reason
        seq.phase = Phase.ENDED
        self.num_departures += 1
        self.on_end(seq, now, self)

    def reorder(self, running: list[Sequence]) -> None:
        """Bring the running list into this order."""
        if all(seq is other for seq, other in zip(running, self.running.values(), strict=True)):
            return
        growing = [seq for seq in running if seq.order in self.kv.growing]
        for seq in running:
            seq.order = self.num_orders
            self.num_orders += 1
        self.running = {seq.order: seq for seq in running}
        self.prefills = {seq.order: seq for seq in running if seq.phase is Phase.PREFILL}
        self.paused = {seq.order: seq for seq in running if seq.phase is Phase.PAUSED}
        self.kv.growing = {seq.order: seq for seq in growing}
        self.cohort.reorder([seq for seq in running if seq.phase is Phase.DECODE])

    def _log_eviction(
        self, seq: Sequence, now: float, num_lost_tokens: int, num_freed_blocks: int, num_copied_blocks: int = 0
    ) -> None:
        asker, start = self.builder.asker, max(now, seq.last_end)
        cause, row = (Cause.SCHEDULER, -1) if asker is None else (cause_of(asker), asker.row)
        self.evictions.append((now, start, cause, row, seq.row, num_lost_tokens, num_freed_blocks, num_copied_blocks))

    def _leave_running(self, seq: Sequence, now: float, took_token: bool = False) -> int:
        """Take a sequence out of every running structure and free its blocks; return its tokens delivered by `now`."""
        delivered = seq.num_emitted - (1 if seq.last_end > now and seq.phase is not Phase.PREFILL else 0)
        if seq.phase is Phase.DECODE:
            delivered = self._leave_cohort(seq, now)
        del self.running[seq.order]
        self.prefills.pop(seq.order, None)
        self.paused.pop(seq.order, None)
        self._free(seq, now, took_token, ended=False)
        return delivered

    def _leave_cohort(self, seq: Sequence, now: float) -> int:
        """A member leaves before its time; return its tokens delivered by `now`."""
        clock = self.cohort.clock
        self.cohort.remove(seq)
        last = min(clock - 1, seq.end_clock)
        in_flight = 1 if seq.last_end > now else 0
        self._record_span(seq, last, clock - 1)
        if last >= seq.join_clock:
            in_flight = last + 1 - self.times.first_end_after(now, seq.join_clock, last + 1)
            in_flight += 1 if seq.last_end > now else 0
            seq.num_emitted += last + 1 - seq.join_clock
            seq.last_end = self.times.end_at[last]
        if seq.end_clock <= clock - 1:
            heappush(self.finishing, (seq.last_end, seq.order, seq))
        return seq.num_emitted - in_flight

    def settle(self, accepted: dict[int, Sequence]) -> None:
        """Some decodes were accepted one by one: pause the members left out, take in the paused that were accepted."""
        for seq in list(self.running.values()):
            if seq.phase is Phase.DECODE and seq.order not in accepted:
                self._leave_cohort(seq, self.clock.now)
                if seq.end_clock < self.cohort.clock:
                    seq.phase = Phase.DRAINING
                else:
                    seq.phase = Phase.PAUSED
                    self.paused[seq.order] = seq
        for order in [order for order in self.paused if order in accepted]:
            self.join_decodes(self.paused.pop(order))

    def _retire(self, now: float) -> None:
        """Members whose last token is scheduled leave the cohort; sequences whose last token is back end."""
        cohort = self.cohort
        while cohort.leave_at == cohort.clock:
            seq = cohort.first_leaver()
            cohort.remove(seq)
            self._record_span(seq, seq.end_clock, cohort.clock - 1)
            if seq.end_clock >= seq.join_clock:
                seq.num_emitted += seq.end_clock + 1 - seq.join_clock
                seq.last_end = self.times.end_at[seq.end_clock]
            if self.kv.shifts and seq.num_emitted < seq._num_output_tokens:
                self.join_decodes(seq)
                continue
            seq.phase = Phase.DRAINING
            heappush(self.finishing, (seq.last_end, seq.order, seq))
            self._refused = False
        while self.finishing and self.finishing[0][0] <= now:
            time, _, seq = heappop(self.finishing)
            if self._padding is None or seq.order not in self.running:
                self._end(time, seq)
            else:
                self._end_together(time, seq)
        if self._padding is not None and self._padding.held_back:
            self._end_together(now, None)

    def _end_together(self, time: float, done: Sequence | None) -> None:
        """A sequence of a padded batch is finished, or the batch may have shrunk to its finished ones."""
        assert self._padding is not None
        for seq in self._padding.finished(self, done):
            self._end(time, seq)

    def _end(self, time: float, seq: Sequence) -> None:
        if seq.handoff is not None and seq.phase in QUEUED:
            self._compute_again(seq)
            return
        if seq.phase in QUEUED:  # preempted with its last token in flight
            self._leave_queue(seq)
            seq.preempted_duration += max(0.0, time - seq.evicted_time)
        else:
            del self.running[seq.order]
            if seq.handoff is not None and seq.handoff.keeps_kv:
                self._lease(seq)
            else:
                self._free(seq, time, False, ended=True)
        seq.phase = Phase.ENDED
        if self._anybody_waits:
            self._refused = False
            self._look = True
        self.on_end(seq, time, self)

    def _lease(self, seq: Sequence) -> None:
        """A prompt is computed that is decoded elsewhere: it keeps its blocks until `end_lease`."""
        if self._on_leave is not None:
            self._on_leave(seq, True)
        self.num_departures += 1

    def end_lease(self, seq: Sequence, now: float) -> None:
        """The KV of a computed prompt is needed here no more."""
        seq.entered_time += now - seq.last_end  # it was not running meanwhile
        self.advance(now)
        self._free(seq, now, False, ended=True)
        if self._anybody_waits:
            self.wake(now)

    def free_blocks(self, seq: Sequence, now: float) -> None:
        """Take the blocks of a sequence that does not run."""
        self._free(seq, now, False, ended=False)

    def _compute_again(self, seq: Sequence) -> None:
        """A prompt was preempted with its token in flight: its KV, which another replica needs, is lost."""
        self._leave_queue(seq)
        seq.num_emitted = seq.num_computed = 0
        seq.num_known, seq._num_output_tokens = seq.num_prompt_tokens, 1
        seq.phase = Phase.WAITING
        self.waiting.push_preempted(seq)
        self._refused = False
        self._look = True

    def _free(self, seq: Sequence, now: float, took_token: bool, ended: bool) -> None:
        size = self.kv.block_size
        computed = seq.num_computed + took_token
        reserved = seq.reserved_blocks
        held = max(-(-computed // size), reserved)
        # The KV of the last token is never computed.
        registered = seq.num_prompt_tokens + seq.num_emitted - 1 if ended else self._registered(seq, computed, now)
        self.count_shared(now)
        if self.kv.growing:
            self.register_growing()
        if self.kv.reserves:
            self.kv.account(now)
        if self._on_leave is not None and seq.phase not in (Phase.ENDED, Phase.LOADING):  # these did not run
            self._on_leave(seq, ended)
        self.kv.release(seq, held, registered, ended)
        if self.kv.growing:
            self.kv.growing.pop(seq.order, None)
        seq.reserved_blocks = 0
        self.num_departures += 1
        self.accounts.end_stay(seq, now, size, reserved, held)
        if ended:
            self.accounts.end(seq, held * size)
        if self.on_cache_change is not None:
            self.publish()

    def _registered(self, seq: Sequence, computed: int, now: float) -> int:
        """Tokens whose blocks are hashed: prompt tokens as scheduled, generated ones when they have come back."""
        if seq.phase in (Phase.PREFILL, Phase.LOADING):
            return computed
        if seq.phase is Phase.DRAINING:  # a surplus step after a stop token computed one more, which is thrown away
            computed = min(computed, seq.num_prompt_tokens + seq.num_emitted - 1)
        last_end = seq.last_end
        if seq.phase is Phase.DECODE and self.cohort.clock > seq.join_clock:
            last_end = self.times.end_at[self.cohort.clock - 1]
        in_flight = last_end > now and self.limits.depth > 1  # a synchronous engine knows the token that it feeds
        return max(seq.num_known, computed - in_flight)

    def count_shared(self, now: float) -> None:
        """Integrate the shared references up to `now`; called before anything that changes them."""
        self.accounts.count_shared(self.kv.num_shared_extra, now)

    def _record_span(self, seq: Sequence, last: int, last_scheduled: int) -> None:
        if last_scheduled >= seq.join_clock:
            size = self.kv.block_size
            first_take = max(seq.join_clock, seq.reserved_blocks * size - seq.offset)
            self.spans.append((seq.row, seq.join_clock, last, last_scheduled, seq.offset % size, first_take))
