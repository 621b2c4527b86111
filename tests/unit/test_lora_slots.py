"""LoRA slots of the vLLM V1 scheduler: who is passed over, what adapters share, and that fast-forward goes on."""

from __future__ import annotations

import numpy as np
from engine_runs import build_rows, run_rows

from policies.scheduler import SCHEDULERS
from sim.result import RunResult
from sim.workload.base import Ragged


def starts(result: RunResult) -> list[float]:
    return result.requests["first_scheduled_time"].tolist()


def test_worked_example_one_slot() -> None:
    """EX-V8: a1 b1 a2 n with one slot: a1, a2, n start at once, b1 in step 4, when adapter 1 is gone."""
    result = run_rows([(10, 3)] * 4, adapter=np.array(["1", "2", "1", None], dtype=object))
    assert starts(result) == [0.0, 3.0, 0.0, 0.0]


def test_worked_example_two_slots() -> None:
    """EX-LO1: queue 1 2 3 1 3 2 with two slots: both of adapter 3 wait until 1 and 2 are gone."""
    adapters = np.array(list("123132"), dtype=object)
    result = run_rows([(10, 3)] * 6, adapter=adapters, scheduler=SCHEDULERS["fcfs"](max_loras=2))
    assert starts(result) == [0.0, 0.0, 3.0, 0.0, 3.0, 0.0]


def test_an_arrival_behind_one_that_is_passed_over_gets_in_at_once() -> None:
    """Though it is not the first of the queue, and the decodes before it are fast-forwarded."""
    adapters = np.array(["1", "2", None, "1"], dtype=object)
    result = run_rows([(10, 200), (10, 3), (10, 3), (10, 3)], adapter=adapters, arrivals=[0, 1.5, 50.5, 90.5])
    assert starts(result) == [0.0, 200.0, 51.0, 91.0]


def test_steps_are_skipped_while_somebody_waits_for_a_slot() -> None:
    """And token times are those of the run that is stepped."""
    adapters = np.array(["1", "2", "1", None], dtype=object)
    rows, arrivals = [(10, 300), (10, 50), (10, 9), (10, 40)], [0, 1.5, 20.25, 33.5]
    fast = run_rows(rows, adapter=adapters, arrivals=arrivals)
    stepped = run_rows(rows, adapter=adapters, arrivals=arrivals, step_by_step=True)
    for name in ("first_token_time", "finish_time"):
        assert fast.requests[name].tolist() == stepped.requests[name].tolist()
    assert fast.replicas[0].num_steps == stepped.replicas[0].num_steps
    assert fast.replicas[0].num_skipped_steps > 0.8 * fast.replicas[0].num_steps


def test_adapters_share_no_blocks() -> None:
    """The same prompt of 4 blocks: hit under its own adapter, not under another, nor by the base model."""
    same = Ragged(np.array([1, 2, 3, 4] * 5), np.arange(0, 21, 4))
    adapters = np.array(["1", "1", "2", None, None], dtype=object)
    simulation = build_rows(
        [(65, 1)] * 5,
        arrivals=[0, 10, 20, 30, 40],
        budget=128,
        prefix_caching=True,
        adapter=adapters,
    )
    object.__setattr__(simulation.workload, "hash_ids", same)
    object.__setattr__(simulation.workload, "hash_block_size", 16)
    assert simulation.run().requests["num_cached_tokens"].tolist() == [0, 64, 0, 0, 64]
