"""The cluster: the way of a request from the door to a replica, and the loads that policies read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sim.decisions import Delay, Reject, Split
from sim.errors import PolicyError
from sim.units import to_grid

if TYPE_CHECKING:
    from collections.abc import Callable

    from sim.clock import Clock
    from sim.interfaces import AdmissionPolicy, LengthPredictor, Router
    from sim.pools import Pools
    from sim.replica import Replica
    from sim.request import Sequence
    from sim.routing import Routing
    from sim.transfer import Handoff


class Cluster:
    """Replicas in stable order, the door (admission) and the router."""

    def __init__(
        self,
        clock: Clock,
        replicas: list[Replica],
        router: Router,
        admission: AdmissionPolicy,
        on_refused: Callable[[Sequence, str, bool], None],
        on_delayed: Callable[[Sequence, float], None],
        predictor: LengthPredictor | None = None,
    ) -> None:
        self.clock = clock
        self.replicas = replicas
        self.router = router
        self.admission = admission
        self.predictor = predictor
        self._on_ended: Callable[[Sequence, int, bool], None] | None = getattr(admission, "ended", None)
        self.on_refused = on_refused  # (sequence, reason, whether it could never be served)
        self.on_delayed = on_delayed
        self.outstanding_requests = np.zeros(len(replicas), dtype=np.int64)
        self.outstanding_tokens = np.zeros(len(replicas), dtype=np.int64)
        self.pools: Pools | None = None  # where requests may be split between pools
        self.routing: Routing  # set once the cluster exists, whose loads it reads

    def arrive(self, seq: Sequence) -> Replica | Handoff | None:
        """Admission, routing and submission of a request, all at its instant; None if it did not get in."""
        now = self.clock.now
        decision = self.admission.admit(seq, self, now)
        if isinstance(decision, Reject):
            self.on_refused(seq, decision.reason, False)
            return None
        if isinstance(decision, Delay):
            self._delay(seq, decision, now)
            return None
        seq.admission_time = now
        if self.pools is None:
            return self._submit(seq, self._route(seq, now), now)
        placement = self.pools.place(seq, now)
        if not isinstance(placement, Split):
            return self._submit(seq, self.pools.route(seq, placement.pool), now)
        handoff = self.pools.split(seq, placement)
        if isinstance(handoff, str):
            self._refuse(seq, handoff)
            return None
        return handoff

    def _submit(self, seq: Sequence, replica: Replica, now: float) -> Replica | None:
        reason = replica.unservable(seq)
        if reason is not None:
            self.routing.left(seq, replica.index)
            self._refuse(seq, reason)
            return None
        self.count(replica, 1, expected_tokens(seq))
        self.routing.prompt_sent(seq, replica.index)
        replica.submit(seq, now)
        return replica

    def _refuse(self, seq: Sequence, reason: str) -> None:
        self._tell(seq, False)
        self.on_refused(seq, reason, True)

    def count(self, replica: Replica, num_requests: int, num_tokens: int) -> None:
        """Outstanding on a replica from now on: more requests and tokens, or fewer."""
        self.outstanding_requests[replica.index] += num_requests
        self.outstanding_tokens[replica.index] += num_tokens
        if num_requests > 0:
            self.routing.sent(replica.index, num_tokens)

    def _delay(self, seq: Sequence, decision: Delay, now: float) -> None:
        until = to_grid(decision.until)
        if until <= now:
            raise PolicyError(f"{type(self.admission).__name__} delayed request {seq.row} at {now} s until {until} s")
        self.on_delayed(seq, until)

    def _route(self, seq: Sequence, now: float) -> Replica:
        position = self.routing.choose(self.router, seq, self, now)
        if not 0 <= position < len(self.replicas):
            name = type(self.router).__name__
            raise PolicyError(f"{name} sent request {seq.row} at {now} s to replica {position} of {len(self.replicas)}")
        return self.replicas[position]

    def left(self, seq: Sequence, replica: int, finished: bool = False) -> tuple[int, int]:
        """A request ended on a replica, however it ended; where its prompt and where its output was computed."""
        places = replica, replica
        if self.pools is not None and seq.row in self.pools.transfers.active:
            places = self.pools.transfers.finish(seq.row, self.clock.now)
        else:
            self.count(self.replicas[replica], -1, -expected_tokens(seq))
            self.routing.left(seq, replica)
        self._tell(seq, finished)
        return places

    def _tell(self, seq: Sequence, finished: bool) -> None:
        """Admission policies that keep accounts, and predictors that learn, hear of ends."""
        if self._on_ended is not None:
            self._on_ended(seq, seq.num_emitted, finished)
        if finished and self.predictor is not None:
            self.predictor.learn(seq, seq.num_emitted)

    def predict(self, seq: Sequence) -> None:
        """Fill in what the length predictor says of an arriving request."""
        if self.predictor is not None:
            truth = min(seq._num_output_tokens, seq.max_output_tokens)
            oracle = getattr(self.predictor, "is_oracle", False)
            seq.predicted_output_tokens = self.predictor.predict(seq, truth if oracle else None)


def expected_tokens(seq: Sequence) -> int:
    """Tokens a request is counted with while outstanding: its prompt and its predicted, else declared, output."""
    predicted = seq.predicted_output_tokens
    return seq.num_prompt_tokens + (seq.max_output_tokens if predicted is None else round(predicted))
