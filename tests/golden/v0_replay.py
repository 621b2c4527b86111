"""Replay of a recorded scenario of a synchronous engine (vLLM V0, the Sarathi tree) on one replica, steps of 1 s."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from v1_replay import Replay, UnitCost

from policies.admission import ADMISSIONS
from policies.preemption import PREEMPTIONS
from policies.router import ROUTERS
from policies.scheduler import SCHEDULERS
from sim.batch import BatchBuilder
from sim.engine import Simulation
from sim.errors import RunError
from sim.kv.host import HostMemory
from sim.kv.paged import PagedKV
from sim.replica import Limits, Replica
from sim.request import Phase
from sim.result import RunResult, Status
from sim.workload.base import Workload


@dataclass
class Engine:
    """What is built: scheduler and limits, memory, host memory (blocks; None where nothing is swapped)."""

    scheduler: str
    params: dict[str, Any]
    limits: Limits
    num_blocks: int
    block_size: int
    host_blocks: int | None = None
    new_first: bool = True  # whether the recording lists chunks of new prompts before those of running ones


@dataclass
class Step:
    """What one scheduling call did; requests by name."""

    time: float
    scheduled: list[
        tuple[str, int]
    ]  # in batch order: new prompts, running ones, swapped-in ones, decodes, swapped-in decodes
    prefill: list[str]
    lists: dict[str, list[str]]  # running, waiting, swapped; admitted, preempted, swapped_out, swapped_in, dropped
    free_blocks: int
    free_host_blocks: int
    blocks_out: int
    blocks_in: int


@dataclass
class EngineReplay:
    """A finished replay, or one that `error` stopped."""

    steps: list[Step]
    names: list[str]
    result: RunResult | None = None
    error: str | None = None
    num_skipped_steps: int = 0
    emitted: dict[str, list[float]] = field(default_factory=dict)

    def finished_at(self, time: float) -> list[str]:
        """Names of the requests that finished at an instant; dropped ones did not finish."""
        assert self.result is not None
        table = self.result.requests
        done = (table["finish_time"] == time) & (table["status"] == Status.FINISHED)
        return sorted(self.names[row] for row in np.flatnonzero(done))

    def token_times(self) -> dict[str, list[float]]:
        """Delivery times of the tokens of every request."""
        assert self.result is not None
        times = Replay(self.result).token_times()
        return {name: [t for t in row if not np.isnan(t)] for name, row in zip(self.names, times, strict=True)}


def replay_engine(engine: Engine, requests: list[dict[str, Any]], step_by_step: bool) -> EngineReplay:
    """Run a scenario; request keys as in the recordings."""
    replay = EngineReplay([], [request["id"] for request in requests])

    def make(clock: Any, on_end: Any, columns: Any) -> list[Replica]:
        replica = Replica(
            0,
            clock,
            SCHEDULERS[engine.scheduler](**engine.params),
            PREEMPTIONS["newest"](),
            PagedKV(engine.num_blocks + 1, engine.block_size, prefix_caching=False),
            UnitCost(),
            engine.limits,
            on_end,
            columns.content_spans,
            step_by_step=step_by_step,
        )
        replica.empty_call_duration = 1.0
        if engine.host_blocks is not None:
            replica.host = HostMemory(engine.host_blocks, abort_when_full=True)
            replica.swaps = lambda seq: True
        if step_by_step:
            replica.observer = lambda builder: replay.steps.append(step_of(replica, builder, replay, engine.new_first))
        return [replica]

    simulation = Simulation(workload(requests), make, ROUTERS["round_robin"](), ADMISSIONS["always"]())
    replica = simulation.replicas[0]
    try:
        replay.result = simulation.run()
    except RunError as error:
        replay.error = str(error)
        return replay
    replica.kv.check_integrity()
    assert replica.kv.num_free == engine.num_blocks
    assert replica.host is None or replica.host.num_free == engine.host_blocks
    replay.num_skipped_steps = replay.result.replicas[0].num_skipped_steps
    return replay


def workload(requests: list[dict[str, Any]]) -> Workload:
    """The requests of a scenario, in the order of the recording."""
    declared = np.array([request["max_tokens"] for request in requests])
    return Workload(
        arrival_time=np.array([request["arrival_step"] - 1.0 for request in requests]),
        num_prompt_tokens=np.array([request["prompt_len"] for request in requests]),
        num_output_tokens=declared,
        max_output_tokens=declared,
        priority=np.array([request.get("priority", 0) for request in requests]),
    )


def step_of(replica: Replica, builder: BatchBuilder, replay: EngineReplay, new_first: bool) -> Step:
    """The builder's step in the words of the recordings."""
    back = {seq.row for seq in builder.swapped_in}
    new = {seq.row for seq in builder.admitted if new_first}
    chunks = sorted(builder.chunks, key=lambda chunk: 0 if chunk[0].row in new else 1 + (chunk[0].row in back))
    decodes = [seq for seq in replica.running.values() if builder.decoded and seq.phase is Phase.DECODE]
    decodes.sort(key=lambda seq: seq.row in back)
    lists = {
        "running": replica.running.values(),
        "waiting": replica.waiting,
        "swapped": replica.swapped,
        "admitted": builder.admitted,
        "preempted": builder.preempted,
        "swapped_out": builder.swapped_out,
        "swapped_in": builder.swapped_in,
        "dropped": builder.dropped,
    }
    name = replay.names
    host, done = replica.host, replay.steps
    return Step(
        time=builder.now,
        scheduled=[(name[seq.row], tokens) for seq, tokens in chunks] + [(name[seq.row], 1) for seq in decodes],
        prefill=[name[seq.row] for seq, _ in chunks],
        lists={key: [name[seq.row] for seq in seqs] for key, seqs in lists.items()},
        free_blocks=replica.kv.num_free,
        free_host_blocks=host.num_free if host else 0,
        blocks_out=(host.num_copied_out if host else 0) - sum(step.blocks_out for step in done),
        blocks_in=(host.num_copied_in if host else 0) - sum(step.blocks_in for step in done),
    )
