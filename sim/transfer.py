"""Handoffs: a prompt is computed on one replica, its KV moves to another one, and the output comes from there.

A split request is two sequences. The *leg* runs on the prefill replica with one output token; when it has ended its
blocks are leased until the transfer is confirmed. The request's own sequence gets blocks for the whole prompt on the
decode replica before anything moves (`sim/inbox.py`) and runs there once everything has arrived.

Modelled on vLLM's NIXL connector (0.33: pull, whole prompts, the last prompt token computed again), SGLang's queues
(0.5.23: push, chunk by chunk, destination reserved first) and DistServe (82831f1: bridge queue, prefill memory kept
until the pull, for which the decode loop stands still). Not modelled: lease time-outs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from sim.clock import Order
from sim.cluster import expected_tokens
from sim.recorder import Table
from sim.request import NEVER, Phase, Sequence
from sim.units import to_grid

if TYPE_CHECKING:
    from sim.clock import Clock
    from sim.replica import Replica

# `num_local_tokens`: of the prompt, what the decode side had cached. `num_failed`: attempts that were lost. `duration`:
# seconds from the first byte's start to the last one's arrival.
TRANSFER_COLUMNS = (
    "row",
    "prefill_replica",
    "decode_replica",
    "transfer_duration",
    "before_first_token",
    "num_local_tokens",
    "num_bytes",
    "duration",
    "num_failed",
)
COPIED = (  # what the course of the prompt says about the request
    "cached_at_admission",
    "num_preemptions",
    "num_recomputed",
    "first_scheduled_time",
    "first_token_time",
    "evicted_time",
    "preempted_duration",
    "preempted_until",
    "preempted_before_first_token",
    "running_at_first_token",
)


@dataclass(frozen=True)
class TransferRules:
    """How KV moves between replicas. Tokens, bytes."""

    bytes_per_token: int
    num_layers: int = 1
    mode: Literal["pull", "push"] = "pull"
    granularity: Literal["whole", "chunk", "layer"] = "whole"
    first_token: Literal["prefill", "decode"] = "prefill"
    blocking: bool = False
    max_inflight_tokens: int | None = None
    reserved_tokens_per_sequence: int = 0
    failure_rate: float = 0.0
    retries: int = 0
    on_failure: Literal["recompute", "fail"] = "recompute"


class Network(Protocol):
    """Moves bytes between replicas, named by their index; a flow is whatever `start` returns."""

    def start(self, source: int, destination: int, num_bytes: float, on_done: Callable[[Any], None]) -> Any:
        """Send bytes from now on; `on_done(flow)` is called when the last one has arrived, never at once."""
        ...

    def cancel(self, flow: Any) -> None:
        """Give up what is left of a flow."""
        ...

    def expected_duration(self, source: int, destination: int, num_bytes: float) -> float:
        """Seconds that a flow would take if it started now and nothing else came."""
        ...


class Stream:
    """The bytes of one handoff, one flow at a time: what has become available meanwhile goes with the next one."""

    def __init__(self, network: Network, source: int, destination: int, on_sent: Callable[[], None]) -> None:
        self._network = network
        self._ends = source, destination
        self._on_sent = on_sent  # called when the stream is closed and everything has arrived
        self._flow: Any = None
        self._moving = 0
        self._ready = 0
        self._closed = False
        self.num_sent = 0

    def offer(self, num_bytes: int) -> None:
        """Bytes that may leave from now on."""
        self._ready += num_bytes
        if self._flow is None and self._ready:
            self._moving, self._ready = self._ready, 0
            self._flow = self._network.start(*self._ends, self._moving, self._on_done)

    def close(self) -> None:
        """Nothing more will be offered."""
        self._closed = True
        if self._flow is None:
            self._on_sent()

    def cancel(self) -> None:
        """Give up; bytes in flight are lost."""
        if self._flow is not None:
            self._network.cancel(self._flow)
        self._flow, self._ready, self._closed = None, 0, False

    def _on_done(self, flow: Any) -> None:
        if flow is not self._flow:
            return
        self._flow = None
        self.num_sent += self._moving
        if self._ready:
            self.offer(0)
        elif self._closed:
            self._on_sent()


class Handoff:
    """One split request. `seq`: the request's own sequence, on the decode side; `leg`: its prefill."""

    def __init__(self, transfers: Transfers, seq: Sequence, leg: Sequence, source: Replica, decode_pool: int) -> None:
        self._transfers = transfers
        self.rules = transfers.rules
        self.seq, self.leg = seq, leg
        self.source = source
        self.decode_pool = decode_pool
        self.destination: Replica | None = None  # once it is chosen
        self.prefill_end = NEVER
        self.batch_time = NEVER  # start of the first batch on the decode side (or when it was given up before)
        self.start_time = NEVER  # of the first byte
        self.landed_time = NEVER
        self.num_failed = 0
        self._counted: dict[int, tuple[Replica, int]] = {}  # loads that the router sees, by replica
        self._stream: Stream | None = None
        self._submitted = False
        self.num_local = 0  # prompt tokens that the decode side had cached
        self._num_offered = 0  # prompt tokens whose KV was offered to the stream, the local ones included
        self._num_covered = 0  # the same, chunks in flight included
        self._residence = 0

    @property
    def index(self) -> int:
        """Index of the prefill replica."""
        return self.source.index

    # --- loads --------------------------------------------------------------------------------------------------------

    def count(self, replica: Replica, num_tokens: int) -> None:
        """From now on it is outstanding on a replica."""
        self._counted[replica.index] = replica, num_tokens
        self._transfers.count(replica, 1, num_tokens)

    def discount(self, replica: Replica) -> None:
        """It is no longer outstanding there."""
        if (entry := self._counted.pop(replica.index, None)) is not None:
            self._transfers.count(entry[0], -1, -entry[1])
            self._transfers.left(self.seq, replica.index)

    def discount_all(self) -> None:
        """It is outstanding nowhere."""
        for replica, _ in list(self._counted.values()):
            self.discount(replica)

    # --- the prefill side ---------------------------------------------------------------------------------------------

    def submit(self, _: object = None) -> None:
        """The prompt goes to its replica."""
        if self.seq.phase is not Phase.ENDED:
            self._submitted = True
            self.source.submit(self.leg, self._transfers.clock.now)

    def chunk_scheduled(self, start: float, end: float) -> None:
        """A chunk of the prompt is computed from `start` to `end`; its KV may leave as the granularity says."""
        if self.rules.granularity == "whole":
            return
        leg = self.leg
        if leg.num_preemptions != self._residence:
            self._residence, self._num_covered = leg.num_preemptions, self._num_offered
        low, high = max(self._num_covered, self.num_local), leg.num_computed
        cached = min(leg.prefix_tokens, high)
        if cached > low:  # it was there before the step
            self._offer_at(start, self._bytes(cached - low), cached)
            low = cached
        if high > low:
            self._offer_step(low, high, start, end)
        self._num_covered = max(high, low)

    def _offer_step(self, low: int, high: int, start: float, end: float) -> None:
        if self.rules.granularity == "layer":
            self._offer_layers(low, high, start, end)
        else:
            self._offer_at(end, self._bytes(high - low), high)

    def _offer_layers(self, low: int, high: int, start: float, end: float) -> None:
        """The bytes of a step become available evenly, layer after layer."""
        layers, total = self.rules.num_layers, self._bytes(high - low)
        for layer in range(1, layers + 1):
            share = total * layer // layers - total * (layer - 1) // layers
            time = end if layer == layers else to_grid(start + (end - start) * layer / layers)
            self._offer_at(time, share, high if layer == layers else None)

    def _bytes(self, num_tokens: int) -> int:
        return num_tokens * self.rules.bytes_per_token

    def _offer_at(self, time: float, num_bytes: int, num_tokens: int | None) -> None:
        """Offer bytes at an instant unless the prefill was preempted meanwhile; `num_tokens` are complete then."""
        residence = self._residence

        def offer(_: object) -> None:
            if self.seq.phase is not Phase.ENDED and residence == self.leg.num_preemptions:
                self._offer(num_bytes, num_tokens)

        self._transfers.clock.at(time, Order.TRANSFER_COMPLETION, self.source.index, offer)

    def prefill_ended(self, time: float) -> None:
        """The prompt is computed (its token is back), or the prefill replica gave it up."""
        seq = self.seq
        self.discount(self.source)
        self._copy_course()
        if self.leg.failure is not None:
            self._end(time, self.source, self.leg.failure)
            return
        self.prefill_end = seq.last_end = time
        if self.rules.first_token == "prefill":
            seq.num_emitted = 1
        else:
            seq.first_token_time = NEVER
        if self.keeps_kv:
            self._transfers.clock.at(time, Order.ARRIVAL, seq.row, self._on_computed)
        else:
            self._end(time, self.source)

    @property
    def keeps_kv(self) -> bool:
        """Whether the KV of the prompt is needed when it is computed: the first token is not the last."""
        return self.rules.first_token == "decode" or self.seq._num_output_tokens > 1

    def _copy_course(self) -> None:
        for name in COPIED:
            setattr(self.seq, name, getattr(self.leg, name))

    def _on_computed(self, _: object) -> None:
        """Everything is computed: what was not offered may go, once the decode side has blocks for it."""
        if self.seq.phase is Phase.ENDED:
            return
        if self.destination is None:
            self._transfers.choose_destination(self)
        elif self._stream is not None:
            self._close()

    # --- the decode side ----------------------------------------------------------------------------------------------

    def accepted(self, num_local_tokens: int) -> None:
        """The decode replica has blocks for the whole prompt; so many of its tokens were cached there."""
        assert self.destination is not None
        self.num_local = self._num_offered = self._num_covered = num_local_tokens
        network = self._transfers.network
        self._stream = Stream(network, self.source.index, self.destination.index, self._on_sent)
        if self.prefill_end < NEVER:
            self._close()
        else:
            self._transfers.clock.at(self._transfers.clock.now, Order.ARRIVAL, self.seq.row, self.submit)

    def _close(self) -> None:
        assert self._stream is not None
        total = self.seq.num_prompt_tokens
        self._offer(self._bytes(total - self._num_offered), total)
        self._stream.close()

    def _offer(self, num_bytes: int, num_tokens: int | None) -> None:
        assert self._stream is not None
        if num_tokens is not None:
            self._num_offered = num_tokens
        if self.start_time == NEVER and num_bytes:
            self.start_time = self._transfers.clock.now
        self._stream.offer(num_bytes)

    def _on_sent(self) -> None:
        """All bytes have arrived; the attempt may turn out to be lost."""
        assert self.destination is not None
        assert self._stream is not None
        now = self._transfers.clock.now
        if not self._transfers.is_lost(self.seq.row, self.num_failed):
            self.landed_time = now
            self.source.end_lease(self.leg, now)
            self._inbox.land(self, now)
            return
        self.num_failed += 1
        if self.num_failed <= self.rules.retries:
            self._stream.offer(self._bytes(self.seq.num_prompt_tokens - self.num_local))
            return
        self.source.end_lease(self.leg, now)
        if self.rules.on_failure == "recompute":
            self._inbox.recompute(self, now)
        else:
            self._end(now, self.destination, f"KV transfer failed {self.num_failed} times")

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _end(self, now: float, replica: Replica, failure: str | None = None) -> None:
        """The request ends although it does not run on the decode side; that side hears of it with the arrivals."""
        if self.destination is not None:
            self._transfers.clock.at(now, Order.ARRIVAL, self.seq.row, lambda _: self._withdraw())
        self.seq.failure = failure
        self.seq.phase = Phase.ENDED
        self._transfers.on_end(self.seq, now, replica)

    def cancel(self, seq: Sequence, now: float) -> int:
        """The client gave up: forget the request wherever it stands; return its delivered output tokens."""
        assert seq is self.seq
        if self.destination is not None and (self.batch_time < NEVER or seq.order in self.destination.running):
            return self.destination.cancel(seq, now)
        if self.prefill_end < NEVER:
            if self.landed_time == NEVER:
                self.source.end_lease(self.leg, now)
        elif self._submitted:
            self.source.cancel(self.leg, now)
            self._copy_course()
        self._withdraw()
        seq.phase = Phase.ENDED
        return seq.num_emitted

    def _withdraw(self) -> None:
        """Stop sending, and leave the decode side."""
        if self._stream is not None:
            self._stream.cancel()
        if self.destination is not None:
            self._inbox.forget(self, self._transfers.clock.now)

    @property
    def _inbox(self) -> Any:
        assert self.destination is not None
        assert self.destination.inbox is not None
        return self.destination.inbox

    def transfer_duration(self, end: float) -> float:
        """Seconds from the end of the prefill to the first batch on the decode side, or to the end of the request."""
        return 0.0 if self.prefill_end == NEVER else min(self.batch_time, end) - self.prefill_end

    @property
    def num_bytes(self) -> int:
        """Bytes that have arrived, lost attempts included."""
        return 0 if self._stream is None else self._stream.num_sent


class Transfers:
    """All handoffs of a simulation."""

    def __init__(
        self,
        clock: Clock,
        network: Network,
        rules: TransferRules,
        is_lost: Callable[[int, int], bool],
        on_end: Callable[[Sequence, float, Replica], None],
    ) -> None:
        self.clock = clock
        self.network = network
        self.rules = rules
        self.is_lost = is_lost  # (row, attempts before): whether this attempt fails
        self.on_end = on_end
        self.active: dict[int, Handoff] = {}  # by row
        self.records = Table(TRANSFER_COLUMNS)
        # Set by the cluster: the loads that routers see, what they are told, and the choice of a replica of a pool.
        self.count: Callable[[Replica, int, int], None] = lambda replica, requests, tokens: None
        self.prompt_sent: Callable[[Sequence, int], None]
        self.left: Callable[[Sequence, int], None]
        self.route: Callable[[Sequence, int], Replica]

    def leg_of(self, seq: Sequence) -> Sequence:
        """The prefill of a request as a sequence of its own, with one output token."""
        leg = Sequence(seq.row, seq.arrival_time, seq.num_prompt_tokens, 1, 1)
        for name in ("admission_time", "priority", "tenant", "request_class", "adapter"):
            setattr(leg, name, getattr(seq, name))
        leg.predicted_output_tokens = None if seq.predicted_output_tokens is None else 1.0
        return leg

    def begin(self, seq: Sequence, leg: Sequence, source: Replica, decode_pool: int) -> Handoff:
        """A request is split from now on."""
        handoff = leg.handoff = Handoff(self, seq, leg, source, decode_pool)
        self.active[seq.row] = handoff
        handoff.count(source, expected_tokens(leg))
        self.prompt_sent(leg, source.index)
        if self.rules.mode == "push":
            self.choose_destination(handoff)
        else:
            handoff.submit()
        return handoff

    def choose_destination(self, handoff: Handoff) -> None:
        """Route a handoff to a replica of its decode pool and let it queue there."""
        replica = self.route(handoff.seq, handoff.decode_pool)
        handoff.destination = replica
        handoff.count(replica, expected_tokens(handoff.seq))
        assert replica.inbox is not None
        replica.inbox.push(handoff, self.clock.now)

    def finish(self, row: int, end: float) -> tuple[int, int]:
        """A split request has ended; the indices of its prefill and decode replicas (-1: none was chosen)."""
        handoff = self.active.pop(row)
        handoff.discount_all()
        destination = -1 if handoff.destination is None else handoff.destination.index
        duration = handoff.transfer_duration(end)
        before = duration if self.rules.first_token == "decode" else 0.0
        landed = handoff.landed_time < NEVER
        moved = handoff.landed_time - handoff.start_time if landed else float("nan")
        source, local = handoff.source.index, handoff.num_local
        sent = handoff.num_bytes, moved, handoff.num_failed
        self.records.append((row, source, destination, duration, before, local, *sent))
        return source, destination
