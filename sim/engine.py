"""Simulation: the event clock, the arrivals, and the record of every request. `run()` plays the workload to its end."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from sim.clock import Clock, Order
from sim.cluster import Cluster
from sim.collect import collect
from sim.errors import RunError
from sim.recorder import REQUEST_COLUMNS, Table
from sim.request import NEVER, Phase, Sequence
from sim.result import RunResult, Status
from sim.routing import Routing, RoutingSettings
from sim.units import to_grid
from sim.workload.columns import Columns

if TYPE_CHECKING:
    from sim.fabric import Fabric
    from sim.interfaces import AdmissionPolicy, LengthPredictor, Router
    from sim.pools import Pools
    from sim.replica import Replica
    from sim.transfer import Handoff
    from sim.workload.base import Workload

Progress = Callable[[float, int], None]
PROGRESS_EVERY = 512  # requests between two calls of the progress function
NAN = float("nan")
NOWHERE = -1, -1  # indices of the prefill and the decode replica

EndFunction = Callable[[Sequence, float, "Replica"], None]
ReplicaFactory = Callable[[Clock, EndFunction, Columns], list["Replica"]]


class Simulation:
    """One run. `make_replicas` builds the replicas on the simulation's clock; they call a function at each end.

    `make_pools`: how requests are split between pools of replicas; None: they never are.
    """

    def __init__(
        self,
        workload: Workload,
        make_replicas: ReplicaFactory,
        router: Router,
        admission: AdmissionPolicy,
        timeline_interval: float | None = None,
        client_timeout: float | None = None,
        length_predictor: LengthPredictor | None = None,
        make_pools: Callable[[Cluster, EndFunction], Pools] | None = None,
        routing: RoutingSettings | None = None,
    ) -> None:
        self.clock = Clock()
        self.workload = workload
        self.warnings = list(workload.warnings)  # for the summary
        self.columns = Columns(workload)
        self.replicas = make_replicas(self.clock, self._on_end, self.columns)
        self.cluster = Cluster(
            self.clock, self.replicas, router, admission, self._on_refused, self._on_delayed, length_predictor
        )
        settings = routing or RoutingSettings()
        self.cluster.routing = Routing(self.clock, self.replicas, self.cluster, self.columns, settings)
        self.pools = None if make_pools is None else make_pools(self.cluster, self._on_end)
        if self.pools is None:
            self.cluster.routing.enlist(router)
        self.fabric: Fabric | None = None  # whose links the result accounts for
        self.saves_cache = False  # whether the result states what is cached at the end
        self.predictions = Table(("row", "num_tokens"))
        self.timeline_interval = timeline_interval
        self.client_timeout = NEVER if client_timeout is None else to_grid(client_timeout)
        self.records = Table(REQUEST_COLUMNS)
        self.reasons: dict[int, str] = {}
        self.end_time = 0.0  # of the last request that ended
        self.timeline = Table(TIMELINE_COLUMNS)
        self._placed: dict[int, tuple[Sequence, Replica | Handoff]] = {}  # only requests that may be cancelled
        self._next_row = 0
        self._progress: Progress | None = None

    def run(self, progress: Progress | None = None) -> RunResult:
        """Play the whole workload; `progress(simulated seconds, requests done)` is called now and then.

        Raises `RunError` when requests are left that nothing will ever serve, `PolicyError` when a policy breaks its
        rules.
        """
        self._progress = progress
        self._start_arrivals()
        if self.timeline_interval is not None:
            for replica in self.replicas:
                replica.sampled = True
            self._sample_timeline(None)
        started = time.perf_counter()
        collecting = gc.isenabled()
        gc.disable()  # no cycles are made in the loop, and full collections over a million requests cost seconds
        try:
            self.clock.env.run()
        finally:
            if collecting:
                gc.enable()
        wall = time.perf_counter() - started
        self._check_all_ended()
        return collect(self, wall)

    # --- arrivals -----------------------------------------------------------------------------------------------------

    def _start_arrivals(self) -> None:
        loop = self.workload.closed_loop
        if loop is None:
            self._rows: Iterator[int] = iter(self.columns.open_rows())
            self._schedule_next()
            return
        self._rows = iter(range(len(self.workload)))
        for _ in range(min(loop.concurrency, len(self.workload))):
            row = next(self._rows)
            self._arrive_at(to_grid(float(loop.think_times[row])), row)

    def _schedule_next(self) -> None:
        row = next(self._rows, -1)
        if row >= 0:
            self._next_row = row
            self.clock.at(self.columns.arrival_time[row], Order.ARRIVAL, row, self._on_arrival)

    def _on_arrival(self, _: object) -> None:
        row = self._next_row
        self._schedule_next()  # first, so that arrivals of this very instant are in the heap before replicas look
        self._arrive(row)

    def _arrive_at(self, time: float, row: int) -> None:
        self.clock.at(time, Order.ARRIVAL, row, lambda _: self._arrive(row))

    def _arrive(self, row: int) -> None:
        seq = self.columns.sequence(row, self.clock.now)
        self.cluster.predict(seq)
        if seq.predicted_output_tokens is not None:
            self.predictions.append((row, seq.predicted_output_tokens))
        self._enter(seq)
        patience = min(self.columns.cancel_after(row), self.client_timeout)
        if patience < NEVER and seq.phase is not Phase.ENDED:
            self.clock.at(seq.arrival_time + patience, Order.CANCELLATION, row, lambda _: self._on_impatience(seq))
        if self._progress is not None and row % PROGRESS_EVERY == 0:
            self._progress(self.clock.now, len(self.records))

    def _enter(self, seq: Sequence) -> None:
        replica = self.cluster.arrive(seq)
        if replica is not None and (self.client_timeout < NEVER or self.columns.cancel_after(seq.row) < NEVER):
            self._placed[seq.row] = seq, replica

    def _on_delayed(self, seq: Sequence, until: float) -> None:
        def enter(_: object) -> None:
            if seq.phase is not Phase.ENDED:
                self._enter(seq)

        self.clock.at(until, Order.ARRIVAL, seq.row, enter)

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _on_end(self, seq: Sequence, time: float, replica: Replica) -> None:
        """The last token of a request has been delivered, or the replica gave it up."""
        if seq.handoff is not None:
            seq.handoff.prefill_ended(time)
            return
        places = self.cluster.left(seq, replica.index, finished=seq.failure is None)
        if self._placed:
            self._placed.pop(seq.row, None)
        status = Status.FINISHED
        if seq.failure is not None:
            status = Status.FAILED if seq.num_emitted else Status.UNSERVABLE
            self.reasons[seq.row] = seq.failure
        self._record(seq, status, time, seq.num_emitted, places)

    def _on_impatience(self, seq: Sequence) -> None:
        """The client cancels, or its time-out strikes."""
        if seq.phase is Phase.ENDED:
            return
        now = self.clock.now
        timed_out = self.client_timeout < self.columns.cancel_after(seq.row)
        status = Status.TIMED_OUT if timed_out else Status.CANCELLED
        placed = self._placed.pop(seq.row, None)
        if placed is None:  # still at the door
            seq.phase = Phase.ENDED
            self._record(seq, status, now, 0, NOWHERE)
            return
        delivered = placed[1].cancel(seq, now)
        places = self.cluster.left(seq, placed[1].index)
        if delivered == 0:
            seq.first_token_time = NEVER
        seq.preempted_duration -= max(0.0, seq.preempted_until - now)  # its re-prefill is in flight
        if seq.evicted_time < now:
            seq.preempted_duration += now - seq.evicted_time
            if delivered == 0:
                seq.preempted_before_first_token = seq.preempted_duration
        self._record(seq, status, now, delivered, places)

    def _on_refused(self, seq: Sequence, reason: str, unservable: bool) -> None:
        seq.phase = Phase.ENDED
        self.reasons[seq.row] = reason
        self._record(seq, Status.UNSERVABLE if unservable else Status.REJECTED, self.clock.now, 0, NOWHERE)

    def _record(self, seq: Sequence, status: Status, time: float, delivered: int, places: tuple[int, int]) -> None:
        admitted = places[0] >= 0 or status is Status.UNSERVABLE
        started = seq.first_scheduled_time < time
        self.end_time = time
        first_token = seq.first_token_time
        self.records.append(
            (
                seq.row,
                status,
                seq.admission_time if admitted else NAN,
                seq.first_scheduled_time if started else NAN,
                first_token if first_token < NEVER else NAN,
                time,
                delivered,
                max(seq.cached_at_admission, 0),
                seq.num_preemptions,
                seq.num_recomputed,
                *places,
                seq.preempted_before_first_token,
                seq.preempted_duration,
                seq.running_at_first_token,
                seq.arrival_time,
            )
        )
        self._continue_after(seq.row, time)

    def _continue_after(self, row: int, time: float) -> None:
        """Next turn of the session, or next request of the closed-loop user."""
        follower = self.columns.follower(row)
        if follower >= 0:
            self._arrive_at(time + self.columns.delay(follower), follower)
        loop = self.workload.closed_loop
        if loop is not None:
            upcoming = next(self._rows, -1)
            if upcoming >= 0:
                self._arrive_at(time + to_grid(float(loop.think_times[upcoming])), upcoming)

    def _check_all_ended(self) -> None:
        missing = len(self.workload) - len(self.records)
        if missing:
            stuck = [seq.row for replica in self.replicas for seq in replica.outstanding()]
            raise RunError(f"{missing} requests never ended (rows {stuck[:5]}...): no event is left to serve them")

    # --- the timeline -------------------------------------------------------------------------------------------------

    def _sample_timeline(self, _: object) -> None:
        now = self.clock.now
        for replica in self.replicas:
            self.timeline.append(replica.sample(now))
        if len(self.records) < len(self.workload) and self.clock.has_events:  # else nothing will ever happen again
            assert self.timeline_interval is not None
            self.clock.watch(to_grid(now + self.timeline_interval), self._sample_timeline)


TIMELINE_COLUMNS = (
    "time",
    "replica",
    "waiting",
    "running",
    "used_blocks",
    "cached_blocks",
    "free_blocks",
    "batch_tokens",
    "busy_time",
    "num_preemptions",
)
