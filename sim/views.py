"""What policies may read. These are types: the engine passes its own objects, and mypy lets a policy see only this.

Never in a view: the true output length, the SimPy environment, another policy's state.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from typing import Protocol

import numpy as np
import numpy.typing as npt


class RequestView(Protocol):
    """A request as its client sent it."""

    @property
    def row(self) -> int:
        """Row in the workload; the last tie-breaker of every order."""

    @property
    def arrival_time(self) -> float: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def max_output_tokens(self) -> int:
        """Most output tokens, as the client declared it."""

    @property
    def predicted_output_tokens(self) -> float | None:
        """What the length predictor said; None without a predictor."""

    @property
    def priority(self) -> int:
        """Smaller is more important."""

    @property
    def tenant(self) -> str | None: ...
    @property
    def request_class(self) -> str | None: ...
    @property
    def adapter(self) -> str | None: ...
    @property
    def session(self) -> object | None:
        """The conversation that the request is a turn of; None where the workload has no sessions."""


class SequenceView(RequestView, Protocol):
    """A sequence on a replica."""

    @property
    def num_known(self) -> int:
        """Prompt tokens and output tokens so far, as of its latest admission or return to the queue."""

    @property
    def num_computed(self) -> int:
        """Tokens whose KV is scheduled (0 while waiting)."""

    @property
    def num_blocks(self) -> int:
        """KV blocks that it holds, shared ones included; up to date when a preemption policy is asked."""

    @property
    def num_emitted(self) -> int:
        """Output tokens scheduled so far, as of its latest admission or return to the queue."""

    @property
    def num_preemptions(self) -> int: ...
    @property
    def order(self) -> int:
        """Position in the running list: grows with every admission on the replica."""


class ReplicaView(Protocol):
    """A replica as a router sees it, as of now."""

    @property
    def index(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...
    @property
    def num_running(self) -> int: ...
    @property
    def num_outstanding(self) -> int:
        """Waiting plus running."""

    @property
    def num_kv_blocks(self) -> int:
        """Blocks of KV memory that sequences can use."""

    @property
    def kv_block_size(self) -> int:
        """Tokens a block."""

    @property
    def kv_usage(self) -> float:
        """Share of usable blocks that are referenced, 0 to 1."""

    @property
    def prefill_speed(self) -> float:
        """Prompt tokens a second, alone on an idle replica; a fact of model and hardware, whatever the load."""

    @property
    def decode_speed(self) -> float:
        """Output tokens a second of a well-filled batch without prompts; a fact like `prefill_speed`."""


class ReplicaShape(Protocol):
    """What a replica needs: so many GPUs of one type, in groups that work on one layer together."""

    @property
    def gpu(self) -> str:
        """Name of the GPU type."""

    @property
    def tensor_parallel(self) -> int: ...
    @property
    def pipeline_parallel(self) -> int: ...


class NodeView(Protocol):
    """A server with GPUs of one type."""

    @property
    def index(self) -> int: ...
    @property
    def rack(self) -> int: ...
    @property
    def gpu(self) -> str:
        """Name of the GPU type."""

    @property
    def num_gpus(self) -> int: ...
    @property
    def free(self) -> Ordered[int]:
        """Numbers of the GPUs that no replica has, ascending."""


class PoolView(Protocol):
    """A pool as a disaggregation policy sees it, as of now. `role`: mixed, prefill or decode."""

    @property
    def name(self) -> str: ...
    @property
    def role(self) -> str: ...
    @property
    def replicas(self) -> Ordered[ReplicaView]: ...
    @property
    def outstanding_requests(self) -> npt.NDArray[np.int64]:
        """Waiting plus running requests of each replica."""

    @property
    def outstanding_tokens(self) -> npt.NDArray[np.int64]:
        """Tokens of each replica's outstanding requests: of a split one the prompt on the side that computes it."""

    def num_cached_tokens(self, request: RequestView) -> int:
        """Prompt tokens that the prefix cache of a replica holds now: the most of any replica of the pool."""
        ...

    def prefill_duration(self, num_tokens: int) -> float:
        """Seconds of a step that computes a prompt of so many tokens and nothing else."""
        ...

    def transfer_duration(self, num_tokens: int) -> float:
        """Seconds in which the KV of so many tokens would leave the pool's first replica, sharing links as of now."""
        ...


class ClusterView(Protocol):
    """The replicas a router may choose from, in stable order, and their loads as arrays in the same order."""

    @property
    def replicas(self) -> Ordered[ReplicaView]: ...
    @property
    def outstanding_requests(self) -> npt.NDArray[np.int64]:
        """Waiting plus running requests of each replica."""

    @property
    def outstanding_tokens(self) -> npt.NDArray[np.int64]:
        """Prompt tokens plus predicted (else declared) output tokens of each replica's outstanding requests."""


class PrefixIndex(Protocol):
    """Which replicas (by index) hold which prefix ids."""

    def add(self, keys: Iterable[object], replica: int) -> None:
        """The replica holds these ids."""

    def discard(self, keys: Iterable[object], replica: int) -> None:
        """The replica does not hold these ids (any more)."""

    def holds(self, key: object, replica: int) -> bool:
        """Whether the replica holds this id."""

    def leading(self, keys: Ordered[object]) -> npt.NDArray[np.int64]:
        """How many ids each replica holds from the first one on without a gap, by replica index."""

    def leading_closed(self, keys: Ordered[object]) -> npt.NDArray[np.int64]:
        """The same and faster, where whoever holds an id holds those before it."""


class RouterSignals(Protocol):
    """What a router may know besides a ClusterView, handed to its method `begin`. Arrays are by `ReplicaView.index`."""

    @property
    def num_replicas(self) -> int: ...
    @property
    def block_size(self) -> int:
        """Tokens a prefix id."""

    def prefix(self, request: RequestView) -> Ordered[object]:
        """Ids of the prompt; an id stands for its block and everything before. Empty without ids in the workload."""

    def make_index(self) -> PrefixIndex:
        """An empty index of prefix ids, for a router that keeps its own."""

    def cached_tokens(self, request: RequestView) -> npt.NDArray[np.int64]:
        """Leading prompt tokens that each replica caches, as its cache events told (`cluster.router.event_delay`)."""

    @property
    def prefill_tokens(self) -> npt.NDArray[np.int64]:
        """Prompt tokens sent to each replica for requests that have no first token yet; the router's own books."""

    @property
    def num_waiting(self) -> npt.NDArray[np.int64]:
        """Requests in each waiting queue (`cluster.router.snapshot_interval`)."""

    @property
    def kv_usage(self) -> npt.NDArray[np.float64]:
        """Share of each replica's usable blocks that are referenced (`cluster.router.snapshot_interval`)."""
