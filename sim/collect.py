"""From the records of a finished simulation to `RunResult`: columns by request, spans and totals by replica."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sim.cost.base import BatchShape
from sim.kv.contiguous import ContiguousKV
from sim.kv.warm import cache_state
from sim.preemptions import preemption_columns
from sim.result import DecodeSpans, MemoryTotals, ReplicaResult, RunResult, SpeculationTotals
from sim.speculative_replica import SpeculativeReplica
from sim.units import to_grid

if TYPE_CHECKING:
    from sim.engine import Simulation
    from sim.pools import Pools
    from sim.replica import Replica
    from sim.units import FloatArray, IntArray

INTEGERS = (
    "num_output_tokens",
    "num_cached_tokens",
    "num_preemptions",
    "num_recomputed_tokens",
    "num_running_at_first_token",
)


def collect(simulation: Simulation, wall_seconds: float) -> RunResult:
    """Read everything off a simulation that has run."""
    requests = request_columns(simulation)
    spans = [decode_spans(replica, requests["finish_time"]) for replica in simulation.replicas]
    interference = np.zeros(len(simulation.workload))
    for replica, span in zip(simulation.replicas, spans, strict=True):
        add_interference(interference, replica, span)
    requests["interference_duration"] = interference
    transfers = None if simulation.pools is None else transfer_columns(simulation.pools)
    requests["transfer_duration"] = np.zeros(len(simulation.workload))
    if transfers is not None:
        add_transfers(requests, transfers)
    if len(simulation.predictions):
        predicted = np.full(len(simulation.workload), np.nan)
        predicted[simulation.predictions.column("row").astype(np.int64)] = simulation.predictions.column("num_tokens")
        requests["predicted_output_tokens"] = predicted
    requests["saved_prefill_seconds"] = saved_prefill(simulation, requests)
    return RunResult(
        requests=requests,
        spans=spans,
        replicas=[replica_result(replica, span) for replica, span in zip(simulation.replicas, spans, strict=True)],
        end_time=simulation.end_time,
        wall_seconds=wall_seconds,
        timeline=timeline_columns(simulation),
        steps=step_columns(simulation),
        preemptions=preemption_columns(simulation.replicas, requests),
        cache_states=cache_states(simulation) if simulation.saves_cache else None,
        transfers=transfers,
        links=[] if simulation.fabric is None else simulation.fabric.accounts(),
        pool_roles=None if simulation.pools is None else {pool.name: pool.role for pool in simulation.pools.pools},
        routing=None if simulation.cluster.routing.log is None else simulation.cluster.routing.log.columns(),
        warnings=list(simulation.warnings),
    )


def cache_states(simulation: Simulation) -> dict[str, Any]:
    """Cached content of the replicas that have any, by name."""
    states = {replica.name: cache_state(replica.kv) for replica in simulation.replicas}
    return {name: state for name, state in states.items() if state is not None}


def transfer_columns(pools: Pools) -> dict[str, np.ndarray]:
    """One row a split request that ended, in the order in which they did."""
    table = pools.transfers.records
    columns: dict[str, np.ndarray] = {name: table.column(name) for name in table.columns}
    for name in ("row", "prefill_replica", "decode_replica", "num_local_tokens", "num_bytes", "num_failed"):
        columns[name] = columns[name].astype(np.int64)
    return columns


def add_transfers(requests: dict[str, np.ndarray], transfers: dict[str, np.ndarray]) -> None:
    """The part of each request's time that its transfer took, and what of it lies before the first token."""
    requests["transfer_before_first_token"] = np.zeros(len(requests["status"]))
    requests["transfer_duration"][transfers["row"]] = transfers["transfer_duration"]
    requests["transfer_before_first_token"][transfers["row"]] = transfers["before_first_token"]


def request_columns(simulation: Simulation) -> dict[str, np.ndarray]:
    """The records in row order."""
    table = simulation.records
    rows = table.column("row").astype(np.int64)
    size = len(simulation.workload)
    requests: dict[str, np.ndarray] = {}
    for name in table.columns:
        if name == "row":
            continue
        column = np.full(size, np.nan)
        column[rows] = table.column(name)
        requests[name] = column
    requests["status"] = requests["status"].astype(np.int8)
    for name in (*INTEGERS, "prefill_replica", "decode_replica"):
        requests[name] = requests[name].astype(np.int64)
    reasons = np.full(size, None, dtype=object)
    for row, reason in simulation.reasons.items():
        reasons[row] = reason
    requests["reject_reason"] = reasons
    return requests


def decode_spans(replica: Replica, end_time: FloatArray) -> DecodeSpans:
    """The token times of a replica, without what came back after its request had ended (surplus steps, cancellations).

    `end_time`: one entry a request, seconds.
    """
    clock = replica.cohort.clock
    ends = replica.times.ends[:clock].copy()
    row, first = replica.spans.integers("row"), replica.spans.integers("first")
    last = np.minimum(replica.spans.integers("last"), np.searchsorted(ends, end_time[row], side="right") - 1)
    real = last >= first
    resumed_row, resumed_time = replica.resumed.column("row").astype(np.int64), replica.resumed.column("time")
    came = resumed_time <= end_time[resumed_row]
    return DecodeSpans(
        ends=ends,
        calls=replica.times.calls[:clock].copy(),
        row=row[real],
        first=first[real],
        last=last[real],
        resumed_row=resumed_row[came],
        resumed_time=resumed_time[came],
    )


def add_interference(total: FloatArray, replica: Replica, spans: DecodeSpans) -> None:
    """Add to each request the time that mixed steps took longer than the same steps without their prefill tokens."""
    mixed = replica.mixed
    if isinstance(replica, SpeculativeReplica):
        np.add.at(total, replica.delays.column("row").astype(np.int64), replica.delays.column("seconds"))
    if not len(mixed):
        return
    extra = np.zeros(len(spans.ends) + 1)
    columns = [mixed.column(name) for name in mixed.columns]
    for clock, duration, size, context, longest in zip(*columns, strict=True):
        shape = BatchShape(0, 0, 0, 0, int(size), int(context), int(longest))
        extra[int(clock) + 1] = max(0.0, duration - to_grid(replica.cost.step_time(shape)))
    summed = np.cumsum(extra)
    np.add.at(total, spans.row, summed[spans.last + 1] - summed[spans.first])


def saved_prefill(simulation: Simulation, requests: dict[str, np.ndarray]) -> FloatArray:
    """Seconds that a step with only the cached tokens of each request would have taken."""
    saved = np.zeros(len(requests["num_cached_tokens"]))
    for row in np.flatnonzero(requests["num_cached_tokens"]):
        tokens = int(requests["num_cached_tokens"][row])
        cost = simulation.replicas[int(requests["prefill_replica"][row])].cost
        saved[row] = to_grid(cost.step_time(BatchShape(tokens, 1, tokens * (tokens + 1) // 2, tokens, 0, 0, tokens)))
    return saved


def strided_sums(times: FloatArray, stride: int) -> FloatArray:
    """sums[i] = times[i] + times[i - stride] + times[i - 2*stride] + ...; length rounded up to whole strides."""
    padded = np.zeros(-(-max(len(times), 1) // stride) * stride)
    padded[: len(times)] = times
    return np.cumsum(padded.reshape(-1, stride), axis=0).reshape(-1)


def decode_take_times(replica: Replica, spans_calls: FloatArray) -> tuple[float, float]:
    """Sums of the instants at which decode steps took blocks, and of those at which they wrote tokens."""
    first, last = replica.spans.column("first"), replica.spans.column("last_scheduled")
    phase, size = replica.spans.column("phase"), replica.kv.block_size
    if not len(first):
        return 0.0, 0.0
    by_token = np.concatenate([[0.0], np.cumsum(spans_calls)])
    tokens = float(np.sum(by_token[last + 1] - by_token[first]))
    by_block = np.concatenate([np.zeros(size), strided_sums(spans_calls, size)])  # shifted by one stride
    wanted = -phase % size  # a block is taken at clocks congruent to -phase
    first = replica.spans.column("first_take")
    low, high = first + (wanted - first) % size, last - (last - wanted) % size
    some = high >= low
    blocks = float(np.sum(by_block[high[some] + size] - by_block[low[some]]))
    return blocks, tokens


def replica_result(replica: Replica, spans: DecodeSpans) -> ReplicaResult:
    """Totals of one replica."""
    blocks, tokens = decode_take_times(replica, spans.calls)
    shared = replica.accounts.shared_block_seconds
    kv = replica.kv
    return ReplicaResult(
        name=replica.name,
        pool=replica.pool,
        busy_time=replica.busy_time,
        num_steps=replica.num_steps,
        num_tokens=replica.num_tokens,
        num_blocks=kv.num_blocks,
        block_size=kv.block_size,
        peak_used_blocks=kv.num_usable - kv.min_free,
        used_block_seconds=replica.accounts.block_seconds - blocks - shared,
        filled_token_seconds=replica.accounts.token_seconds - tokens - shared * kv.block_size,
        num_evicted_blocks=kv.num_evicted,
        num_lookup_tokens=replica.num_lookup_tokens,
        num_hit_tokens=replica.num_hit_tokens,
        num_preemptions=replica.num_preemptions,
        num_skipped_steps=replica.num_planned_steps - replica.num_plans,
        num_fast_forwards=replica.num_plans,
        prefix_caching=kv.prefix_caching,
        num_gpus=replica.num_gpus,
        gpu=replica.gpu,
        memory=memory_totals(replica),
        num_evicted_dead=kv.num_evicted_dead,
        num_evicted_preempted=kv.num_evicted_preempted,
        shared_block_seconds=shared,
        speculation=speculation_totals(replica),
    )


def speculation_totals(replica: Replica) -> SpeculationTotals | None:
    """Drafts and what became of them; None for a replica without speculation."""
    if not isinstance(replica, SpeculativeReplica):
        return None
    drafts = replica.deliveries.column("num_drafts").astype(np.int64)
    accepted = replica.deliveries.column("num_accepted").astype(np.int64)
    return SpeculationTotals(int(np.count_nonzero(drafts)), int(drafts.sum()), int(accepted.sum()))


def memory_totals(replica: Replica) -> MemoryTotals:
    """Integrals of the stays of one replica and of what its allocator could not give away."""
    kv = replica.kv
    all_reserved = replica.accounts.running_seconds == replica.accounts.reserved_seconds > 0
    lost = (kv.rounding_seconds, kv.fragmented_seconds, kv.remainder_seconds) if isinstance(kv, ContiguousKV) else None
    rounding, fragmented, remainder = lost or (0.0, 0.0, 0.0)
    return MemoryTotals(
        running_seconds=replica.accounts.running_seconds,
        final_token_seconds=replica.accounts.final_token_seconds if all_reserved else None,
        rounding_block_seconds=rounding,
        fragmented_block_seconds=fragmented,
        remainder_block_seconds=remainder,
        num_ended_tokens=replica.accounts.num_ended_tokens,
        num_ended_held_tokens=replica.accounts.num_ended_held_tokens,
    )


def timeline_columns(simulation: Simulation) -> dict[str, np.ndarray] | None:
    """Samples in time order, replicas in stable order within a sample."""
    if simulation.timeline_interval is None:
        return None
    columns: dict[str, np.ndarray] = {}
    for name in simulation.timeline.columns:
        column = simulation.timeline.column(name)
        columns[name] = column if name in ("time", "busy_time") else column.astype(np.int64)
    return columns


def step_columns(simulation: Simulation) -> dict[str, np.ndarray] | None:
    """All steps, by replica, then in order."""
    logged = [replica.steps for replica in simulation.replicas if replica.steps is not None]
    if not logged:
        return None
    columns: dict[str, np.ndarray] = {
        "replica": np.repeat(np.arange(len(logged)), [len(table) for table in logged]),
        "step": np.concatenate([np.arange(len(table)) for table in logged]),
    }
    for name in logged[0].columns:
        column = np.concatenate([table.column(name) for table in logged])
        columns[name] = column if name in ("start_time", "duration") else _integers(column)
    return columns


def _integers(column: FloatArray) -> IntArray:
    return column.astype(np.int64)
