"""From a `WorkloadConfig` to a `Workload`: where lengths and times come from, then what is drawn for every request."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sim.errors import InputError
from sim.seeds import Seeds
from sim.units import array_to_grid
from sim.workload.arrivals import Arrivals, ClosedLoopArrivals
from sim.workload.base import ClosedLoop, Workload
from sim.workload.config import Component, Factor, WorkloadConfig
from sim.workload.distributions import Distribution
from sim.workload.prefix import session_ids, shared_prefixes
from sim.workload.rows import select_rows
from sim.workload.samples import with_samples
from sim.workload.synthesize import load_statistics, synthesize
from sim.workload.trace import load_trace, order_by_arrival

if TYPE_CHECKING:
    from sim.units import FloatArray, IntArray


def build(config: WorkloadConfig, seeds: Seeds, base_dir: Path) -> Workload:
    """See `sim.workload.config.build_workload`."""
    if config.trace is not None:
        workload = _from_trace(config, seeds, base_dir / config.trace)
    elif config.statistics is not None:
        workload = _from_statistics(config, seeds, base_dir / config.statistics)
    else:
        workload = _generated(config, seeds)
    workload = _with_mix(workload, config, seeds)
    workload = _with_declared(workload, config, seeds)
    return with_samples(_with_cancellation(workload, config, seeds), config.samples)


def _from_trace(config: WorkloadConfig, seeds: Seeds, path: Path) -> Workload:
    trace = load_trace(path, config, seeds)
    if config.arrivals is None:
        if not trace.has_times:
            raise InputError(
                f"{path}: has no arrival times ({trace.format}); give workload.arrivals, such as "
                "{process: poisson, rate: 1.0}"
            )
        return trace.workload
    return _with_arrivals(trace.workload, config, seeds)


def _from_statistics(config: WorkloadConfig, seeds: Seeds, path: Path) -> Workload:
    statistics = load_statistics(path)
    num = config.num_requests
    if num is None:
        num = statistics.num_requests if config.duration is None else round(statistics.rate * config.duration)
    workload = synthesize(statistics, max(1, num), seeds)
    if config.rate_scale != 1.0:
        workload = replace(workload, arrival_time=array_to_grid(workload.arrival_time / config.rate_scale))
    return workload if config.arrivals is None else _with_arrivals(workload, config, seeds)


def _with_arrivals(workload: Workload, config: WorkloadConfig, seeds: Seeds) -> Workload:
    """Lengths of a trace in row order, times of a process; the rows are gone through again where more are asked for."""
    arrivals = config.arrivals
    assert arrivals is not None
    first_turns = _first_turns(workload)
    wanted = config.num_requests
    if wanted is None and config.duration is None:
        wanted = len(first_turns)
    times = arrivals.times(seeds.generator("workload", "arrivals"), wanted, config.duration)
    if len(times) > len(first_turns) and workload.previous is None:
        workload = select_rows(workload, np.arange(len(times)) % len(workload))
        workload.notes.append(f"{len(first_turns)} rows gone through {len(times) / len(first_turns):.2f} times")
    elif len(times) > len(first_turns):
        raise InputError(f"workload: the trace has {len(first_turns)} sessions, {len(times)} arrivals were asked for")
    return _timed(workload, times, arrivals, seeds)


def _timed(workload: Workload, times: FloatArray, arrivals: Arrivals, seeds: Seeds) -> Workload:
    """Give the first turns `times`, in row order; sessions beyond them are left out."""
    previous = workload.previous if workload.previous is not None else np.full(len(workload), -1, dtype=np.int64)
    root = np.arange(len(workload))
    for i in np.flatnonzero(previous >= 0).tolist():
        root[i] = root[previous[i]]
    rank = np.cumsum(previous < 0) - 1
    keep = rank[root] < len(times)
    arrival = times[rank[root[keep]]]
    kept = replace(select_rows(workload, np.flatnonzero(keep)), arrival_time=arrival)
    if isinstance(arrivals, ClosedLoopArrivals):
        if workload.previous is not None:
            raise InputError("workload.arrivals: closed_loop does not go with sessions: their turns wait already")
        return replace(kept, closed_loop=_closed_loop(arrivals, len(kept), seeds))
    return order_by_arrival(kept)


def _first_turns(workload: Workload) -> IntArray:
    return np.arange(len(workload)) if workload.previous is None else np.flatnonzero(workload.previous < 0)


def _closed_loop(arrivals: ClosedLoopArrivals, n: int, seeds: Seeds) -> ClosedLoop:
    think = array_to_grid(arrivals.think_time.times(seeds.generator("workload", "think_time"), n))
    think[: arrivals.concurrency] = 0.0
    return ClosedLoop(arrivals.concurrency, think)


def _generated(config: WorkloadConfig, seeds: Seeds) -> Workload:
    arrivals = config.arrivals
    assert arrivals is not None
    arrival = arrivals.times(seeds.generator("workload", "arrivals"), config.num_requests, config.duration)
    if not len(arrival):
        raise InputError("workload: no request arrives; raise the rate or the duration")
    turns = _turns(config, seeds, len(arrival))
    session = np.repeat(np.arange(len(arrival)), turns)
    prompt, output = _lengths(config, seeds, len(session))
    workload = Workload(array_to_grid(arrival)[session], prompt, output, output, name="generated")
    if config.sessions is not None:
        workload = _with_sessions(workload, config, seeds, session)
    if config.prefix is not None:
        workload = _with_prefix(workload, config, seeds)
    if isinstance(arrivals, ClosedLoopArrivals):
        workload = replace(workload, closed_loop=_closed_loop(arrivals, len(workload), seeds))
    return workload


def _turns(config: WorkloadConfig, seeds: Seeds, n: int) -> IntArray:
    if config.sessions is None:
        return np.ones(n, dtype=np.int64)
    return config.sessions.turns.tokens(seeds.generator("workload", "turns"), n)


def _lengths(config: WorkloadConfig, seeds: Seeds, n: int) -> tuple[IntArray, IntArray]:
    component = None if config.mix is None else _components(config.mix, seeds, n)
    result = []
    for name in ("prompt_tokens", "output_tokens"):
        rng = seeds.generator("workload", name)
        common: Distribution | None = getattr(config, name)
        if component is None or config.mix is None:
            assert common is not None
            result.append(common.tokens(rng, n))
            continue
        result.append(_mixed_lengths(config.mix, component, name, common, rng))
    return result[0], result[1]


def _mixed_lengths(
    mix: list[Component], component: IntArray, name: str, common: Distribution | None, rng: np.random.Generator
) -> IntArray:
    lengths = np.empty(len(component), dtype=np.int64)
    for i, part in enumerate(mix):
        mine = component == i
        distribution = getattr(part, name) or common
        if distribution is None:
            raise InputError(f"workload.mix.{i}: needs {name}, here or for the whole workload")
        lengths[mine] = distribution.tokens(rng, int(mine.sum()))
    return lengths


def _components(mix: list[Component], seeds: Seeds, n: int) -> IntArray:
    return _choose(seeds.generator("workload", "mix"), [part.weight for part in mix], n)


def _choose(rng: np.random.Generator, weights: list[float], n: int) -> IntArray:
    """Indices drawn with these weights; cheaper than `choice` for millions of draws of a few values."""
    edges = np.cumsum(weights)
    drawn: IntArray = np.minimum(np.searchsorted(edges, rng.random(n) * edges[-1], side="right"), len(weights) - 1)
    return drawn


def _with_sessions(workload: Workload, config: WorkloadConfig, seeds: Seeds, session: IntArray) -> Workload:
    """Rows of a session, one after the other: growing prompts, block ids, think times."""
    assert config.sessions is not None
    n = len(session)
    first = np.flatnonzero(np.diff(session, prepend=-1))
    previous = np.arange(n) - 1
    previous[first] = -1
    grown = np.cumsum(workload.num_prompt_tokens + workload.num_output_tokens) - workload.num_output_tokens
    before = (grown - workload.num_prompt_tokens)[first]
    prompt = grown - before[session]
    delay = array_to_grid(config.sessions.think_time.times(seeds.generator("workload", "think_time"), n))
    ids = session_ids(prompt, workload.num_output_tokens, previous, config.hash_block_size or 16)
    grown_workload = replace(
        workload,
        num_prompt_tokens=prompt,
        session_id=session.tolist(),
        previous=previous,
        delay=np.where(previous >= 0, delay, 0.0),
        hash_ids=ids.hash_ids,
        output_hash_ids=ids.output_hash_ids,
        hash_block_size=ids.hash_block_size,
    )
    return order_by_arrival(grown_workload)


def _with_prefix(workload: Workload, config: WorkloadConfig, seeds: Seeds) -> Workload:
    prefix = config.prefix
    assert prefix is not None
    if workload.previous is not None:
        raise InputError("workload: prefix does not go with sessions: they share their own context")
    block_size = config.hash_block_size or prefix.tokens
    if block_size > prefix.tokens:
        raise InputError(
            f"workload: hash_block_size {block_size} is above prefix.tokens {prefix.tokens}: nothing is shared"
        )
    weights = [1.0 / k**prefix.zipf for k in range(1, prefix.groups + 1)]
    group = _choose(seeds.generator("workload", "prefix"), weights, len(workload))
    prompt = workload.num_prompt_tokens + prefix.tokens
    ids = shared_prefixes(group, prefix.tokens, prompt, block_size, prefix.groups)
    return replace(workload, num_prompt_tokens=prompt, hash_ids=ids, hash_block_size=block_size)


def _with_mix(workload: Workload, config: WorkloadConfig, seeds: Seeds) -> Workload:
    n = len(workload)
    changes: dict[str, object] = {}
    if config.mix is not None:
        component = _components(config.mix, seeds, n)
        for name in ("tenant", "request_class", "adapter", "model"):
            if any(getattr(part, name) is not None for part in config.mix):
                names = [getattr(part, name) or "" for part in config.mix]
                changes[name] = [names[i] for i in component.tolist()]
        if any(part.priority is not None for part in config.mix):
            changes["priority"] = np.array([part.priority or 0 for part in config.mix])[component]
    for key, name in (("tenants", "tenant"), ("classes", "request_class"), ("adapters", "adapter")):
        weights: dict[str, float] | None = getattr(config, key)
        if weights is not None:
            drawn = _choose(seeds.generator("workload", key), list(weights.values()), n)
            known = list(weights)
            changes[name] = [known[i] for i in drawn.tolist()]
    if config.priorities is not None:
        drawn = _choose(seeds.generator("workload", "priorities"), list(config.priorities.values()), n)
        changes["priority"] = np.array(list(config.priorities), dtype=np.int64)[drawn]
    return replace(workload, **changes)  # type: ignore[arg-type]


def _with_declared(workload: Workload, config: WorkloadConfig, seeds: Seeds) -> Workload:
    """Declared maxima; a true length above its maximum is cut to it, as an engine would."""
    declared = config.max_output_tokens
    if declared is None:
        return workload
    n, true = len(workload), workload.num_output_tokens
    if isinstance(declared, int):
        most = np.full(n, declared, dtype=np.int64)
    elif isinstance(declared, Factor):
        most = np.ceil(true * declared.factor).astype(np.int64)
    else:
        most = declared.tokens(seeds.generator("workload", "max_output_tokens"), n)
    cut = int((true > most).sum())
    notes = workload.notes + ([f"{cut} outputs cut to the declared max_output_tokens"] if cut else [])
    if cut and workload.output_hash_ids is not None:
        raise InputError("workload.max_output_tokens: would cut outputs that later turns of a session contain")
    return replace(workload, num_output_tokens=np.minimum(true, most), max_output_tokens=most, notes=notes)


def _with_cancellation(workload: Workload, config: WorkloadConfig, seeds: Seeds) -> Workload:
    if config.cancel_after is None:
        return workload
    rng, n = seeds.generator("workload", "cancellation"), len(workload)
    gives_up = rng.random(n) < config.cancel_after.fraction
    after = array_to_grid(config.cancel_after.after.times(rng, n))
    return replace(workload, cancel_after=np.where(gives_up, after, np.inf))
