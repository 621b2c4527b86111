"""The questions a policy answers, one Protocol each. A policy is a dataclass: its YAML parameters are its fields.

A policy is given read-only views and `now`, and returns a decision; the engine acts on it. It does not sleep, log, draw
from a global generator or write to what it was given. Ties end with (arrival_time, row). One instance of a Scheduler
and a PreemptionPolicy per replica, one of the others per cluster. A policy that draws random numbers has a field `rng`,
which the engine fills with a generator of its own.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from sim.batch import BatchBuilder
    from sim.decisions import Admission, NotPlaced, Placed, Placement
    from sim.views import ClusterView, NodeView, PoolView, ReplicaShape, RequestView, SequenceView


@dataclass(frozen=True)
class Traits:
    """How an engine's rules differ from vLLM V1's; a scheduler states them as its attribute `traits`."""

    sorted_queue: bool = False  # the waiting queue is sorted by `queue_key`
    preempted_last: bool = False  # preempted sequences go to the end of the waiting queue, not to its front
    decode_spare_blocks: int = 0  # free blocks that each decode must find at its turn, needed or not
    chunk_needs_block: bool = False  # so must a chunk of a running prefill, unless its prompt fills whole blocks
    extra_tokens: int = 0  # tokens by which a sequence may outgrow max_model_len before it is stopped
    drops_unservable: bool = False  # the scheduler drops at their turn prompts beyond the token budget, not the door
    restarts_output_count: bool = False  # a sequence preempted for recomputation counts its output from zero again
    looks_at_every_arrival: bool = False  # not only one that becomes the first may change the answer
    high_water: float = 1.0  # share of the blocks above which the scheduler reclaims (`BatchBuilder.reclaim`)
    padded: bool = False  # rows of a batch are padded to the longest, compute on when finished, and end together


class Scheduler(Protocol):
    """Decides what one replica executes in the next step.

    May have an attribute `traits: Traits`, and a method `never_fits(seq, pool_tokens, block_size, longest)` that says
    why a request could not be admitted even on an empty replica, or None (`longest`: tokens at which it is stopped).
    """

    # Further optional members. `next_tenant(tenants) -> tenant`: the waiting queue is one queue a tenant, and this says
    # whose turn it is; `left(seq, ended)`: a sequence left the running list; `max_wait`: seconds after which a waiting
    # sequence goes before all others, whatever its key; `uses_prediction`: whether its order depends on predicted
    # output lengths.

    def queue_key(self, seq: SequenceView) -> tuple[float, ...] | None:
        """Sort key of the waiting queue, least first, fixed while the sequence waits; None for arrival order.

        Without a key a preempted sequence goes to the front of the queue, with one to its place. (arrival_time, row)
        is added to the key.
        """
        ...

    def schedule(self, batch: BatchBuilder) -> None:
        """Fill the batch of the next step. Asked before every step that has anything to decide.

        Between two calls nothing changed that could alter the answer: fast-forward repeats a pure decode batch as long
        as nobody arrives, ends or is cancelled and blocks suffice. A waiting queue whose first candidate was refused
        stays refused meanwhile, since free blocks, slots and budget can only shrink.
        """
        ...


class PreemptionPolicy(Protocol):
    """Chooses who loses its blocks when a running sequence needs one and none is free."""

    def victim(self, candidates: Ordered[SequenceView]) -> SequenceView:
        """One of the candidates (never empty), which are the running sequences in running order."""
        ...


class LengthPredictor(Protocol):
    """Says how many output tokens a request will have; one for the cluster.

    May have an attribute `is_oracle = True`: only then is it told the truth.
    """

    def predict(self, request: RequestView, true_output_tokens: int | None) -> float | None:
        """Expected output tokens of an arriving request, or None for no prediction. Asked once a request."""
        ...

    def learn(self, request: RequestView, num_output_tokens: int) -> None:
        """A request finished with so many output tokens."""
        ...


class Router(Protocol):
    """Chooses the replica of a request. One instance a cluster.

    `cluster.replicas` are the candidates, perhaps not all replicas of the cluster: state is kept by `replica.index`.
    May have `begin(signals: RouterSignals)`, called once before the first request; `ended(request, replica_index)`,
    told of every request that was routed and ended, however it did; and an attribute `scores`, the numbers (one a
    candidate) that its latest decision compared, for the log of decisions.
    """

    def route(self, request: RequestView, cluster: ClusterView, now: float) -> int:
        """Position in `cluster.replicas`."""
        ...


class PlacementPolicy(Protocol):
    """Chooses the GPUs of replicas."""

    def place(self, wanted: Ordered[ReplicaShape], nodes: Ordered[NodeView]) -> Placed | NotPlaced:
        """Free GPUs of the right type for every replica, none twice, or why that cannot be. Asked at the start.

        Nodes come in order of their indices; neighbours share a rack.
        """
        ...


class DisaggregationPolicy(Protocol):
    """Decides whether prompt and output of a request are computed on different replicas; asked after admission.

    May have an attribute `splits = False`: it never answers `Split`, so that no pools for it are needed.
    """

    def place(self, request: RequestView, pools: Ordered[PoolView], now: float) -> Placement:
        """Colocated in a pool, or split between two; positions in `pools`. The router chooses the replicas."""
        ...


class AdmissionPolicy(Protocol):
    """Decides at the door whether a request enters the cluster.

    May have a method `ended(request, num_output_tokens, finished)`, told of every admitted request that ended,
    however it did.
    """

    def admit(self, request: RequestView, cluster: ClusterView, now: float) -> Admission:
        """Admit, delay until an instant, or reject with a reason."""
        ...
