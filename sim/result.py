"""What a finished simulation hands to metrics, files and reports: plain arrays, no statistics.

`requests` holds one entry a request in workload order. A sequence's tokens are not recorded one by one: its first token
has a time of its own, and its later tokens are slices of its replica's array of decode step ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from sim.fabric import LinkAccount
    from sim.units import FloatArray, IntArray


class Status(IntEnum):
    """How a request ended; the names are the values of `status` in requests.parquet."""

    UNFINISHED = 0  # only when a run was stopped at a horizon
    FINISHED = 1
    REJECTED = 2
    CANCELLED = 3
    TIMED_OUT = 4
    FAILED = 5
    UNSERVABLE = 6


@dataclass
class DecodeSpans:
    """The decode tokens of one replica.

    Span (row, first, last): request `row` received one token at each of `ends[first..last]` (inclusive). A request that
    was preempted or skipped has several spans, in time order. Its first token is not in a span, nor is the first token
    after each preemption: `resumed_rows/resumed_times` list those, in time order.
    """

    ends: FloatArray  # ends of the steps in which the decode cohort advanced, seconds
    calls: FloatArray  # when each of those steps was scheduled, seconds
    row: IntArray
    first: IntArray
    last: IntArray
    resumed_row: IntArray
    resumed_time: FloatArray


@dataclass
class MemoryTotals:
    """What became of the memory that sequences held. Integrals over time; block and token seconds."""

    running_seconds: float = 0.0  # stays in the running list, summed over sequences
    final_token_seconds: float | None = None  # stays times the final length; None unless every stay had a reservation
    rounding_block_seconds: float = 0.0  # added to reservations by their placement
    fragmented_block_seconds: float = 0.0  # free, while a request was refused that would have fitted in one piece
    remainder_block_seconds: float = 0.0  # free, while a request was refused that needed more
    num_ended_tokens: int = 0  # lengths of the sequences that ended
    num_ended_held_tokens: int = 0  # tokens of the blocks that they held then


@dataclass
class SpeculationTotals:
    """Speculative decoding over the run. Dummy drafts that pad an admission count as drafts, and are never accepted."""

    num_drafts: int  # steps of a sequence that verified drafts
    num_draft_tokens: int
    num_accepted_tokens: int  # those beyond a request's last token included


@dataclass
class ReplicaResult:
    """Totals of one replica over the run."""

    name: str
    pool: str
    busy_time: float  # seconds in a step
    num_steps: int
    num_tokens: int  # scheduled tokens, prefill and decode
    num_blocks: int  # the engine's count, its reserved null block included
    block_size: int
    peak_used_blocks: int
    used_block_seconds: float  # integral over time of referenced blocks
    filled_token_seconds: float  # integral over time of KV tokens written into those blocks
    num_evicted_blocks: int
    num_lookup_tokens: int  # prefix cache: known tokens of first admissions
    num_hit_tokens: int
    num_preemptions: int
    num_skipped_steps: int  # steps that fast-forward did not evaluate one by one
    num_fast_forwards: int
    prefix_caching: bool
    num_gpus: int
    gpu: str
    memory: MemoryTotals = field(default_factory=MemoryTotals)
    num_evicted_dead: int = 0  # of the evicted blocks, what nobody could have hit any more
    num_evicted_preempted: int = 0  # and what a preempted sequence could have hit when it comes back
    shared_block_seconds: float = 0.0  # integral over time of references to blocks beyond the first: blocks saved
    speculation: SpeculationTotals | None = None  # None: the replica does not speculate


@dataclass
class RunResult:
    """Everything a run produced. Times in seconds from the start of the simulation; nan where it did not happen."""

    requests: dict[str, np.ndarray]
    spans: list[DecodeSpans]  # one a replica
    replicas: list[ReplicaResult]
    end_time: float
    wall_seconds: float
    timeline: dict[str, np.ndarray] | None = None
    steps: dict[str, np.ndarray] | None = None
    cache_states: dict[str, Any] | None = None  # cached content by replica at the end, where asked for
    preemptions: dict[str, np.ndarray] | None = None  # one row a preemption (sim/preemptions.py)
    routing: dict[str, np.ndarray] | None = None  # one row a decision of the router, where logged (sim/routing.py)
    warnings: list[str] = field(default_factory=list)
    transfers: dict[str, np.ndarray] | None = None  # one row a split request (sim/transfer.py); None: none can be split
    links: list[LinkAccount] = field(default_factory=list)  # of the fabric, those that some route crosses
    pool_roles: dict[str, str] | None = None  # role by pool; None: requests cannot be split
