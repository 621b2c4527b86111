"""A hand-made RunResult of random spans, with the token times of every request listed one by one beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from sim.config import PoolConfig
from sim.result import DecodeSpans, ReplicaResult, RunResult, Status
from sim.units import to_grid
from sim.workload.base import Ragged, Workload


@dataclass
class FakeRun:
    result: RunResult
    workload: Workload
    config: SimpleNamespace
    tokens: list[list[float]]  # times at which each request got a token


@dataclass
class Lists:
    """The spans of one replica while they are being made."""

    ends: np.ndarray
    spans: list[tuple[int, int, int]] = field(default_factory=list)
    resumed: list[tuple[int, float]] = field(default_factory=list)

    def freeze(self) -> DecodeSpans:
        row, first, last = np.array(self.spans, dtype=np.int64).reshape(-1, 3).T
        return DecodeSpans(
            ends=self.ends,
            calls=self.ends - 0.01,
            row=row,
            first=first,
            last=last,
            resumed_row=np.array([r for r, _ in self.resumed], dtype=np.int64),
            resumed_time=np.array([t for _, t in self.resumed], dtype=np.float64),
        )


def config(**sections: Any) -> SimpleNamespace:
    """An experiment configuration with the sections that metrics read; the rest is as contract.md's defaults."""
    values = {
        "name": "fake",
        "slo": {"ttft": 1.0, "tpot": 0.05, "attainment": 0.9},
        "client": SimpleNamespace(base_latency=0.0, latency_per_running_sequence=0.0),
        "metrics": SimpleNamespace(warmup_requests=0, warmup_duration=0.0),
        "cluster": SimpleNamespace(pools=[PoolConfig(model="llama-3.1-8b", gpu="h100-sxm")]),
        "prices": {"h100-sxm": 2.0},
    }
    return SimpleNamespace(**(values | sections))


def fake_run(
    seed: int, num_requests: int = 60, num_replicas: int = 2, num_steps: int = 500, **sections: Any
) -> FakeRun:
    """Random requests on random step ends: several spans each, preemptions, transfers, every way to end."""
    rng = np.random.default_rng(seed)
    replicas = [Lists(grid(np.cumsum(rng.uniform(0.01, 0.05, num_steps)))) for _ in range(num_replicas)]
    arrivals = grid(np.sort(rng.uniform(0, 8, num_requests)))
    rows = [one_request(rng, row, float(arrivals[row]), replicas) for row in range(num_requests)]
    tokens = [row.pop("tokens") for row in rows]
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    columns["reject_reason"] = columns["reject_reason"].astype(object)
    columns["status"] = columns["status"].astype(np.int8)
    result = RunResult(
        requests=columns,
        spans=[replica.freeze() for replica in replicas],
        replicas=[fake_replica(i, num_steps) for i in range(num_replicas)],
        end_time=float(max(replica.ends[-1] for replica in replicas)),
        wall_seconds=0.1,
    )
    return FakeRun(result, fake_workload(rng, arrivals, columns["num_output_tokens"]), config(**sections), tokens)


def one_request(rng: np.random.Generator, row: int, arrival: float, replicas: list[Lists]) -> dict[str, Any]:
    status = Status(rng.choice([1, 1, 1, 1, 1, 2, 3, 4]))
    values = blank(row, arrival, status)
    if status == Status.REJECTED:
        return values | {"reject_reason": "queue full", "finish_time": arrival}
    values["admission_time"] = arrival + delay(rng)
    if status == Status.TIMED_OUT:
        return values | {"finish_time": values["admission_time"] + delay(rng)}
    values["first_scheduled_time"] = values["admission_time"] + delay(rng)
    before = delay(rng) if rng.random() < 0.2 else 0.0
    values["first_token_time"] = values["first_scheduled_time"] + delay(rng) + before
    prefill, decode = int(rng.integers(len(replicas))), int(rng.integers(len(replicas)))
    transfer = delay(rng) if prefill != decode else 0.0
    values |= {"prefill_replica": prefill, "decode_replica": decode}
    values |= {"preempted_before_first_token": before, "num_running_at_first_token": int(rng.integers(1, 9))}
    values |= {"num_cached_tokens": int(rng.integers(0, 8)), "saved_prefill_seconds": delay(rng)}
    tokens, preempted = decode_tokens(rng, row, values["first_token_time"], transfer, replicas[decode])
    values |= {"transfer_duration": transfer if len(tokens) > 1 else 0.0}
    values |= {"num_preemptions": len(preempted), "preempted_duration": before + sum(preempted)}
    return values | {"num_output_tokens": len(tokens), "tokens": tokens, "finish_time": tokens[-1]}


def decode_tokens(
    rng: np.random.Generator, row: int, first_token: float, transfer: float, replica: Lists
) -> tuple[list[float], list[float]]:
    tokens, preempted, now = [first_token], [], first_token + transfer
    for _ in range(int(rng.integers(0, 4))):
        first = int(np.searchsorted(replica.ends, now, side="right")) + int(rng.integers(0, 3))
        last = first + int(rng.integers(0, 30))
        if last >= len(replica.ends):
            break
        replica.spans.append((row, first, last))
        tokens += replica.ends[first : last + 1].tolist()
        if rng.random() < 0.3:
            preempted.append(delay(rng))
            tokens.append(tokens[-1] + preempted[-1])
            replica.resumed.append((row, tokens[-1]))
        now = tokens[-1]
    return tokens, preempted


def blank(row: int, arrival: float, status: Status) -> dict[str, Any]:
    times = ("admission_time", "first_scheduled_time", "first_token_time", "finish_time")
    counts = ("num_output_tokens", "num_cached_tokens", "num_preemptions", "num_recomputed_tokens")
    spans = ("preempted_before_first_token", "preempted_duration", "interference_duration", "transfer_duration")
    return {
        "status": status,
        "reject_reason": None,
        "arrival_time": arrival,
        **dict.fromkeys(times, np.nan),
        **dict.fromkeys(counts, 0),
        "prefill_replica": -1,
        "decode_replica": -1,
        **dict.fromkeys(spans, 0.0),
        "num_running_at_first_token": -1,
        "saved_prefill_seconds": np.nan,
        "tokens": [],
    }


def fake_replica(index: int, num_steps: int) -> ReplicaResult:
    return ReplicaResult(
        name=f"main-{index}",
        pool="main",
        busy_time=5.0 + index,
        num_steps=num_steps,
        num_tokens=4000,
        num_blocks=101,
        block_size=16,
        peak_used_blocks=80,
        used_block_seconds=250.0,
        filled_token_seconds=3600.0,
        num_evicted_blocks=7,
        num_lookup_tokens=0,
        num_hit_tokens=0,
        num_preemptions=3,
        num_skipped_steps=0,
        num_fast_forwards=0,
        prefix_caching=True,
        num_gpus=2,
        gpu="h100-sxm",
    )


def fake_workload(rng: np.random.Generator, arrivals: np.ndarray, output: np.ndarray) -> Workload:
    size = len(arrivals)
    return Workload(
        arrival_time=arrivals,
        num_prompt_tokens=rng.integers(8, 400, size),
        num_output_tokens=np.maximum(output, 1),
        max_output_tokens=np.maximum(output, 1),
        tenant=[f"tenant-{i % 3}" for i in range(size)],
        request_class=["chat" if i % 2 else "code" for i in range(size)],
        hash_ids=Ragged(np.arange(size), np.arange(size + 1)),
    )


def grid(values: np.ndarray) -> np.ndarray:
    return np.rint(values * 2**30) / 2**30


def delay(rng: np.random.Generator) -> float:
    return to_grid(float(rng.exponential(0.2)))
