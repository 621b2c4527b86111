"""Replay of a recorded vLLM V1 scenario on one replica; shared by the golden tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from policies.admission import ADMISSIONS
from policies.preemption import PREEMPTIONS
from policies.router import ROUTERS
from policies.scheduler import SCHEDULERS
from sim.batch import BatchBuilder
from sim.cost.base import BatchShape
from sim.engine import Simulation
from sim.kv.paged import PagedKV
from sim.replica import Limits, Replica
from sim.request import Phase
from sim.result import RunResult
from sim.speculation import SpeculationRules
from sim.speculative_batch import Entry, SpeculativeBuilder
from sim.speculative_replica import SpeculativeReplica
from sim.workload.base import Ragged, Workload

STOP_TOKEN = 99


class UnitCost:
    """Every step takes one second."""

    def step_time(self, shape: BatchShape) -> float:
        return 1.0

    def decode_times(self, num_sequences: int, context: int, max_context: int, num_steps: int) -> np.ndarray:
        return np.ones(num_steps)


@dataclass
class Call:
    """What one scheduling call did."""

    time: float
    scheduled: dict[int, int]
    hits: dict[int, int]
    preempted: list[int]
    running: list[int]
    waiting: list[int]
    free_blocks: int
    num_prefill_tokens: int
    drafts: dict[int, int] = field(default_factory=dict)
    padded: list[int] = field(default_factory=list)


@dataclass
class Delivery:
    """What came back for one sequence at the end of one speculative batch."""

    row: int
    time: float
    num_tokens: int
    num_drafts: int
    num_accepted: int


@dataclass
class RecordedAcceptance:
    """The acceptance rule of the recordings; `numbers` are the K of the requests rK, by row."""

    numbers: list[int]
    num_drafts: int

    def num_accepted(self, row: int, num_verified: int, num_emitted: int, num_drafts: int) -> int:
        v = num_verified
        return min(num_drafts, (7 * self.numbers[row] + 5 * v + v * v) % (self.num_drafts + 1))


@dataclass
class Replay:
    """A finished replay: evaluated calls, and the times of every token and every end by row."""

    result: RunResult
    calls: list[Call] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)

    @property
    def finished(self) -> dict[int, float]:
        return dict(enumerate(self.result.requests["finish_time"].tolist()))

    def token_times(self) -> list[list[float]]:
        """Delivery times of the tokens of each request."""
        times: list[list[float]] = [[t] for t in self.result.requests["first_token_time"].tolist()]
        for spans in self.result.spans:
            for row, time in zip(spans.resumed_row, spans.resumed_time, strict=True):
                times[row].append(float(time))
            for row, first, last in zip(spans.row, spans.first, spans.last, strict=True):
                times[row] += spans.ends[first : last + 1].tolist()
        return [sorted(row) for row in times]


def contents(prompts: list[list[int]], outputs: list[list[int]], block_size: int) -> tuple[Ragged, Ragged]:
    """Chained ids of the blocks of prompts and of what follows, equal exactly where all tokens up to there are."""
    known: dict[tuple[Any, ...], int] = {}
    prompt_ids, output_ids = [], []
    for prompt, output in zip(prompts, outputs, strict=True):
        tokens, parent, ids = prompt + output, -1, []
        for end in range(block_size, len(tokens) + 1, block_size):
            parent = known.setdefault((parent, *tokens[end - block_size : end]), len(known))
            ids.append(parent)
        full = len(prompt) // block_size
        prompt_ids.append(ids[:full])
        output_ids.append(ids[full:])
    return ragged(prompt_ids), ragged(output_ids)


def ragged(rows: list[list[int]]) -> Ragged:
    offsets = np.cumsum([0, *map(len, rows)])
    return Ragged(np.array([value for row in rows for value in row], dtype=np.int64), offsets)


def replay(
    config: dict[str, Any],
    arrivals: list[float],
    prompts: list[list[int]],
    declared: list[int],
    stop_after: list[int],
    priorities: list[int],
    asynchronous: bool = False,
    step_by_step: bool = True,
    numbers: list[int] | None = None,
    adapters: list[str | None] | None = None,
) -> Replay:
    """Run a scenario. Rows are in the order given; `numbers` (K of rK) where the scenario speculates."""
    lengths = [min(stop, most) if stop else most for stop, most in zip(stop_after, declared, strict=True)]
    caching = config["enable_prefix_caching"]
    method = config.get("spec_method")
    hash_size = 1 if method else config["block_size"]  # a block's hash may cover a token of the next block
    prompt_ids = output_ids = None
    if caching:
        outputs = [[7] * (n - 1) + [7 if n == most else STOP_TOKEN] for n, most in zip(lengths, declared, strict=True)]
        prompt_ids, output_ids = contents(prompts, outputs, hash_size)
    workload = Workload(
        arrival_time=np.array(arrivals, dtype=float),
        num_prompt_tokens=np.array([len(prompt) for prompt in prompts]),
        num_output_tokens=np.array(lengths),
        max_output_tokens=np.array(declared),
        priority=np.array(priorities),
        hash_ids=prompt_ids,
        output_hash_ids=output_ids,
        hash_block_size=hash_size,
        adapter=adapters,
    )
    num_blocks = config["usable_blocks"] + 1
    limits = Limits(
        max_num_seqs=config["max_num_seqs"],
        max_num_batched_tokens=config["max_num_batched_tokens"],
        max_model_len=config.get("max_model_len", config["usable_blocks"] * config["block_size"]),
        depth=2 if asynchronous else 1,
        reserve_full_isl=config["scheduler_reserve_full_isl"],
        watermark_blocks=int(config["watermark"] * num_blocks),
    )
    policy = config["policy"]
    scheduler_fields = {"long_prefill_token_threshold": config["long_prefill_token_threshold"]}
    if "max_loras" in config:
        scheduler_fields["max_loras"] = config["max_loras"]
    calls: list[Call] = []

    def make(clock: Any, on_end: Any, columns: Any) -> list[Replica]:
        make_replica: Any = Replica
        if method:
            drafts = config["num_speculative_tokens"]
            acceptance = RecordedAcceptance(numbers or [], drafts)
            make_replica = partial(SpeculativeReplica, rules=SpeculationRules.of(method, drafts), acceptance=acceptance)
        replica = make_replica(
            0,
            clock,
            SCHEDULERS[policy](**scheduler_fields),
            PREEMPTIONS["newest" if policy == "fcfs" else "lowest_priority"](),
            PagedKV(num_blocks, config["block_size"], caching),
            UnitCost(),
            limits,
            on_end,
            columns.content_spans,
            step_by_step=step_by_step,
        )
        if step_by_step or method:
            replica.observer = lambda builder: calls.append(call_of(replica, builder))
        return [replica]

    simulation = Simulation(workload, make, ROUTERS["round_robin"](), ADMISSIONS["always"]())
    result = simulation.run()
    simulation.replicas[0].kv.check_integrity()
    assert simulation.replicas[0].kv.num_free == config["usable_blocks"]
    return Replay(result, calls, deliveries_of(simulation.replicas[0]))


def deliveries_of(replica: Replica) -> list[Delivery]:
    """Deliveries of a replica that speculates, in order; nothing of another."""
    if not isinstance(replica, SpeculativeReplica):
        return []
    table = replica.deliveries
    columns = [table.column(name).tolist() for name in table.columns]
    return [Delivery(int(row), time, *map(int, counts)) for row, time, *counts in zip(*columns, strict=True)]


def call_of(replica: Replica, builder: BatchBuilder) -> Call:
    chunks = {seq.row: tokens for seq, tokens in builder.chunks}
    scheduled: dict[int, int] = {}
    entries: list[Entry] = []
    if isinstance(builder, SpeculativeBuilder):
        entries = list(builder.entries.values())
        chunks, scheduled = {}, {entry.seq.row: entry.tokens for entry in entries}
    for seq in replica.running.values():
        if seq.row in chunks:
            scheduled[seq.row] = chunks[seq.row]
        elif builder.decoded and seq.phase is Phase.DECODE:
            scheduled[seq.row] = 1
    return Call(
        time=builder.now,
        scheduled=scheduled,
        hits={seq.row: seq.prefix_tokens for seq in builder.admitted},
        preempted=[seq.row for seq in builder.preempted],
        running=[seq.row for seq in replica.running.values()],
        waiting=[seq.row for seq in replica.waiting],
        free_blocks=replica.kv.num_free,
        num_prefill_tokens=sum(tokens for _, tokens in builder.chunks),
        drafts={entry.seq.row: entry.num_drafts for entry in entries if entry.num_drafts},
        padded=[entry.seq.row for entry in entries if entry.padded],
    )
