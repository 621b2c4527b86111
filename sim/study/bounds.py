"""What can be said of a candidate before any simulation: memory, the latency of a lone request, the work to be done.

Every bound is optimistic, so a candidate that misses one misses it with any number of replicas, or needs at least so
many. They use the candidate's own cost model: its steps at the batch sizes that suit it best.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.build import PoolBuilder
from sim.config import ExperimentConfig
from sim.cost import ExplainingCostModel, build_cost_model
from sim.cost.base import BatchShape, CostModel
from sim.errors import InputError
from sim.memory import plan_memory
from sim.slo import Target, read_slo

if TYPE_CHECKING:
    from sim.units import FloatArray
    from sim.workload.base import Workload

# A bound is only as sharp as the smoothness of the cost model: leave some room before excluding anything by it.
CAUTION = 0.85
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
_MOST_LENGTHS = 400  # of which the latency of a lone request is computed; others are interpolated


@dataclass(frozen=True)
class Bounds:
    """Bounds of one candidate. `replicas`: fewer cannot do the work; `problem`: why no number of them will do."""

    replicas: int = 1
    problem: str | None = None
    change: str | None = None  # the nearest one that would help
    load: Mapping[str, float] | None = None  # replicas that each resource alone asks for


@dataclass(frozen=True)
class Demand:
    """What a workload asks for, in totals."""

    prompt: FloatArray
    output: FloatArray
    span: float  # seconds from first to last arrival
    shares_prefixes: bool
    arrival: FloatArray

    @classmethod
    def of(cls, workload: Workload) -> Demand:
        """From the requests. A closed loop has no span: then the work says nothing about replicas."""
        open_loop = workload.closed_loop is None and workload.previous is None
        span = float(np.ptp(workload.arrival_time)) if open_loop and len(workload) > 1 else 0.0
        prompt, output = (a.astype(np.float64) for a in (workload.num_prompt_tokens, workload.num_output_tokens))
        return cls(prompt, output, span, workload.hash_ids is not None, workload.arrival_time)

    def busiest(self, size: int) -> float:
        """When the `size` successive requests begin that bring the most tokens a second."""
        tokens = np.concatenate([[0.0], np.cumsum(self.prompt + self.output)])
        brought = tokens[size:] - tokens[:-size]
        taken = self.arrival[size - 1 :] - self.arrival[: len(self.arrival) - size + 1]
        return float(self.arrival[int(np.argmax(brought / np.maximum(taken, 1e-9)))])


def bounds_of(config: ExperimentConfig, demand: Demand) -> Bounds:
    """Bounds of the one pool of `config`. What the memory or the facts do not allow is a problem, not an error."""
    try:
        builder = PoolBuilder(config, 0, False, False)
    except InputError as error:
        text = str(error).split(": ", 2)[-1]
        return Bounds(problem=text, change=_change_for_memory(config))
    longest = int(np.max(demand.prompt + demand.output))
    usable = (builder.num_blocks - 1) * config.cluster.pools[0].kv_cache.block_size
    if longest > usable:
        text = f"the longest request has {longest} tokens, the KV cache of a replica {usable}"
        return Bounds(problem=text, change=_change_for_memory(config, longest))
    late = _lone_request(config, builder, demand)
    if late is not None:
        return Bounds(problem=late[0], change=late[1])
    load = _load(config, builder, demand, usable)
    return Bounds(replicas=max(1, math.ceil(CAUTION * max(load.values(), default=0.0))), load=load)


def _change_for_memory(config: ExperimentConfig, longest: int = 0) -> str | None:
    """The smallest tensor parallelism with which the model (and the longest request) fits."""
    from sim.hardware import load_gpu
    from sim.model import load_model

    pool = config.cluster.pools[0]
    size = pool.tensor_parallel
    while size < 64:
        size *= 2
        try:
            plan = plan_memory(
                load_model(pool.model),
                load_gpu(pool.gpu),
                tensor_parallel=size,
                pipeline_parallel=pool.pipeline_parallel,
                block_size=pool.kv_cache.block_size,
                gpu_memory_utilization=pool.kv_cache.gpu_memory_utilization,
                max_num_seqs=pool.scheduler.max_num_seqs,
                max_num_batched_tokens=pool.scheduler.max_num_batched_tokens,
                kv_dtype=pool.kv_cache.dtype,
                engine=pool.kv_cache.memory_of,
                data_parallel=pool.data_parallel,
                expert_parallel=pool.expert_parallel,
            )
        except InputError:
            continue
        if plan.num_tokens >= longest:
            return f"tensor_parallel: {size} fits"
    return None


# --- a request that is alone ---


def _lone_request(config: ExperimentConfig, builder: PoolBuilder, demand: Demand) -> tuple[str, str] | None:
    """Problem and change when too many requests are late even on an idle replica. Classes are not looked at here."""
    objectives = [o for o in read_slo(config.slo) if o.request_class is None]
    if len(objectives) != 1 or len(read_slo(config.slo)) != 1:
        return None
    best = {"tpot": _lone_tpot(builder.cost, demand)}
    if not demand.shares_prefixes:
        best["ttft"] = _lone_ttft(builder, demand)
    for target in objectives[0].targets:
        if target.metric in best:
            found = _missed(target, best[target.metric] + _client(config, target.metric), objectives[0].attainment)
            if found:
                return found
    return None


def _client(config: ExperimentConfig, metric: str) -> float:
    return config.client.base_latency if metric == "ttft" else 0.0


def _missed(target: Target, values: FloatArray, attainment: float | None) -> tuple[str, str] | None:
    """Whether the optimistic `values` miss a target already."""
    if target.statistic == "mean":
        level, wanted = float(values.mean()), "on average"
    else:
        share = target.percentile / 100 if target.percentile is not None else attainment
        if share is None:
            return None
        level, wanted = float(np.quantile(values, share)), f"at {share:.4g} of the requests"
    if level <= target.limit:
        return None
    name = target.metric.upper()
    return (
        f"{name} of a request alone on a replica is {level:.3g} s {wanted}, {level / target.limit:.2f} x the limit",
        f"slo.{target.metric}: {math.ceil(level * 1000) / 1000:g} or a faster replica (tensor_parallel, GPU)",
    )


def _lone_ttft(builder: PoolBuilder, demand: Demand) -> FloatArray:
    lengths = np.unique(demand.prompt.astype(np.int64))
    if len(lengths) > _MOST_LENGTHS:
        lengths = np.unique(np.quantile(lengths, np.linspace(0, 1, _MOST_LENGTHS)).astype(np.int64))
    times = [_prefill_time(builder, int(length)) for length in lengths]
    return np.interp(demand.prompt, lengths, times)


def _prefill_time(builder: PoolBuilder, length: int) -> float:
    """Seconds to prefill a prompt alone, in chunks of the token budget."""
    total, done, budget = 0.0, 0, builder.limits.max_num_batched_tokens
    while done < length:
        n = min(budget, length - done)
        total += builder.cost.step_time(BatchShape(n, 1, n * done + n * (n + 1) // 2, done + n, 0, 0, done + n))
        done += n
    return total


def _lone_tpot(cost: CostModel, demand: Demand) -> FloatArray:
    """Seconds a token of a lone sequence, at the context of the middle of its answer; one-token answers left out."""
    several = demand.output > 1
    contexts = (demand.prompt + demand.output / 2)[several]
    if len(contexts) == 0:
        return np.zeros(1)
    grid = np.unique(np.quantile(contexts, np.linspace(0, 1, 50)).astype(np.int64))
    return np.interp(contexts, grid, [_decode_time(cost, 1, int(context)) for context in grid])


# --- the work ---


def _load(config: ExperimentConfig, builder: PoolBuilder, demand: Demand, usable: int) -> dict[str, float]:
    """Replicas that each resource asks for, at its best: time on the GPU, KV tokens, slots."""
    if demand.span <= 0:
        return {}
    prompt, output = demand.prompt, demand.output
    token = _seconds_a_token(builder)
    computed = output.sum() + (0.0 if demand.shares_prefixes else prompt.sum())
    reads = (output * (prompt + output / 2)).sum()
    work = computed * token + reads * _seconds_a_read(builder)
    # Nobody leaves sooner than at the pace of a lone sequence.
    stay = output * _decode_time(builder.cost, 1, int((prompt + output / 2).mean()))
    held = (stay * (prompt + output / 2)).sum()
    return {
        "compute": float(work / demand.span),
        "kv_memory": float(held / demand.span / max(usable, 1)),
        "slots": float(stay.sum() / demand.span / builder.limits.max_num_seqs),
    }


def _seconds_a_token(builder: PoolBuilder) -> float:
    """The least seconds a token of any step within the budgets, attention to earlier tokens left out."""
    limits, cost = builder.limits, builder.cost
    prefill = [n for n in (*_SIZES, limits.max_num_batched_tokens) if n <= limits.max_num_batched_tokens]
    decode = [n for n in (*_SIZES, limits.max_num_seqs) if n <= limits.max_num_seqs]
    chunks = [cost.step_time(BatchShape(n, 1, n, n, 0, 0, 1)) / n for n in prefill]
    return min(chunks + [_decode_time(cost, n, n) / n for n in decode])


def _seconds_a_read(builder: PoolBuilder) -> float:
    """Seconds for a decode to read one token of context, in the largest batch."""
    n = builder.limits.max_num_seqs
    near, far = _decode_time(builder.cost, n, n * 512), _decode_time(builder.cost, n, n * 1536)
    return max(0.0, (far - near) / (n * 1024))


def _decode_time(cost: CostModel, num: int, context: int) -> float:
    context = max(context, num)
    return cost.step_time(BatchShape(0, 0, 0, 0, num, context, -(-context // num)))


def explain_limit(config: ExperimentConfig, summary: Mapping[str, Any]) -> str:
    """The resource that a finished run leaned on most: kv_memory, slots, compute, bandwidth, network or overhead."""
    pool, cache = config.cluster.pools[0], summary["kv_cache"]
    if summary["num_preemptions"] > 0.01 * summary["num_requests"] or (cache["peak_usage"] or 0) > 0.97:
        return "kv_memory"
    running = _mean_running(summary)
    if running >= 0.9 * pool.scheduler.max_num_seqs:
        return "slots"
    return _bound_of_step(PoolBuilder(config, 0, False, False), summary, max(1, round(running)))


def _rooflines(builder: PoolBuilder) -> ExplainingCostModel:
    pool = builder.pool
    return build_cost_model(
        "roofline",
        {},
        model=builder.model,
        gpu=builder.gpu,
        tensor_parallel=pool.tensor_parallel,
        pipeline_parallel=pool.pipeline_parallel,
        max_num_seqs=pool.scheduler.max_num_seqs,
        max_num_batched_tokens=pool.scheduler.max_num_batched_tokens,
    )


def _mean_running(summary: Mapping[str, Any]) -> float:
    """Sequences that ran at once on a replica, on average (Little's law)."""
    if not summary["duration"] or summary["e2e"]["mean"] is None:
        return 0.0
    stay = summary["e2e"]["mean"] - summary["queueing_delay"]["mean"]
    return float(summary["num_finished"] * stay / summary["duration"] / len(summary["replicas"]))


def _bound_of_step(builder: PoolBuilder, summary: Mapping[str, Any], running: int) -> str:
    """What the average step waits for most, by rooflines: measured step times do not say what bounds them."""
    finished, steps = max(summary["num_finished"], 1), max(summary["num_steps"], 1)
    prompt, output = summary["num_prompt_tokens"] / finished, summary["num_output_tokens"] / finished
    prefill = round(summary["num_prompt_tokens"] / steps)
    context = round(running * (prompt + output / 2))
    shape = BatchShape(
        prefill, 1 if prefill else 0, round(prefill * prompt / 2), round(prompt) if prefill else 0, running, context,
        round(prompt + output),
    )  # fmt: skip
    seconds: dict[str, float] = {}
    for part in _rooflines(builder).breakdown(shape).values():
        bound = str(part["bound"])
        seconds[bound] = seconds.get(bound, 0.0) + float(part["seconds"])
    most = max(seconds, key=lambda bound: seconds[bound])
    return {"memory": "bandwidth", "link": "network"}.get(most, most)
