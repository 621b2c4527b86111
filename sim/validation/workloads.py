"""Workloads of measured runs: replayed requests, regenerated load stages, closed loops, everything at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sim.seeds import Seeds
from sim.units import array_to_grid
from sim.workload.base import ClosedLoop, Ragged, Workload

if TYPE_CHECKING:
    from sim.units import FloatArray, IntArray

STAGE_PAUSE = 6.0  # seconds between the last arrival of a load stage and the next stage: drain, then 1 s


@dataclass(frozen=True)
class Stage:
    """A stretch of Poisson-like load: exactly `num_requests` arrivals, the last one after `duration` seconds."""

    num_requests: int
    duration: float


def replayed(
    arrival: FloatArray, prompt: IntArray, output: IntArray, *, period: int = 0, name: str = "replayed"
) -> Workload:
    """Requests as they were sent; with `period` prompt i equals prompt i - period, token by token."""
    output = np.asarray(output, dtype=np.int64)
    prompt = np.maximum(np.asarray(prompt, dtype=np.int64), 1)
    return Workload(
        arrival_time=array_to_grid(np.asarray(arrival, dtype=np.float64)),
        num_prompt_tokens=prompt,
        num_output_tokens=output,
        max_output_tokens=output.copy(),
        hash_ids=_one_id_each(np.arange(len(prompt)) % period) if period else None,
        hash_block_size=int(prompt.max()) + 1,  # one id stands for a whole prompt
        name=name,
    )


def _one_id_each(ids: IntArray) -> Ragged:
    return Ragged(ids.astype(np.int64), np.arange(len(ids) + 1, dtype=np.int64))


def staged_arrivals(stages: Sequence[Stage], seed: int) -> FloatArray:
    """Arrival times in seconds: exponential gaps of each stage, stretched to its duration."""
    rng = Seeds(seed).generator("validation", "arrivals")
    start, parts = 0.0, []
    for stage in stages:
        ends = np.cumsum(rng.standard_exponential(stage.num_requests))
        parts.append(start + ends * (stage.duration / ends[-1]))
        start += stage.duration + STAGE_PAUSE
    return np.concatenate(parts)


def closed_loop(prompt: IntArray, output: IntArray, concurrency: int) -> Workload:
    """`concurrency` clients that send their next request as soon as the last one ended."""
    zeros = np.zeros(len(prompt))
    return Workload(
        arrival_time=zeros,
        num_prompt_tokens=np.asarray(prompt, dtype=np.int64),
        num_output_tokens=np.asarray(output, dtype=np.int64),
        max_output_tokens=np.asarray(output, dtype=np.int64),
        closed_loop=ClosedLoop(min(concurrency, len(prompt)), zeros),
        name="closed loop",
    )


def all_at_once(num_requests: int, prompt: int, output: int) -> Workload:
    """`num_requests` equal requests that are all there at the start."""
    lengths = np.full(num_requests, output, dtype=np.int64)
    return replayed(np.zeros(num_requests), np.full(num_requests, prompt, dtype=np.int64), lengths, name="all at once")
