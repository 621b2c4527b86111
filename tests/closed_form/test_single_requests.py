"""Requests worked out by hand: chunks, first tokens and gaps with one and with two batches in flight.

A step takes 0.25 s (the "quarter" cost model) unless a test says otherwise; step n lasts from n/4 to (n+1)/4 seconds.
"""

from __future__ import annotations

import numpy as np
import pytest
from scenarios import Row, Scenario, simulate
from test_fast_forward import deliveries

from sim.result import RunResult

SYNCHRONOUS, ASYNCHRONOUS = 1, 2
BOTH = pytest.mark.parametrize("depth", [SYNCHRONOUS, ASYNCHRONOUS])
EACH_WAY = pytest.mark.parametrize("step_by_step", [True, False])


def token_steps(result: RunResult) -> list[list[float]]:
    """Delivery times of all tokens by row, in steps of 0.25 s."""
    first = result.requests["first_token_time"].tolist()
    return [
        [4 * time for time in ([] if np.isnan(start) else [start]) + later]
        for start, later in zip(first, deliveries(result), strict=True)
    ]


def steps(result: RunResult, name: str) -> list[float]:
    """A column of instants in steps."""
    return [4 * time for time in result.requests[name].tolist()]


@BOTH
@EACH_WAY
def test_an_idle_replica_starts_at_once(depth: int, step_by_step: bool) -> None:
    """100 prompt tokens at 64 a step: two steps to the first token, then one a step; scheduling ahead costs nothing."""
    scenario = Scenario(rows=(Row(gap=3.0, prompt=100, output=4),), max_num_batched_tokens=64, depth=depth)
    result = simulate(scenario, step_by_step)
    assert steps(result, "first_scheduled_time") == [3]
    assert token_steps(result) == [[5, 6, 7, 8]]
    assert steps(result, "finish_time") == [8]
    assert result.replicas[0].busy_time == 5 * 0.25


@BOTH
@EACH_WAY
@pytest.mark.parametrize(("arrival", "step"), [(2.0, 2), (2.25, 2), (2.75, 2), (3.0, 3)])
def test_an_arrival_during_a_step_waits_for_the_batches_already_made(
    depth: int, step_by_step: bool, arrival: float, step: int
) -> None:
    """During step n: joins n+1 on the synchronous engine, n+2 on the asynchronous one.

    At the very start of step n: joins n on the synchronous engine; batch n has long been made on the asynchronous one,
    which makes batch n+1 at this instant.
    """
    rows = (Row(prompt=5, output=20), Row(gap=arrival, prompt=5, output=2))
    result = simulate(Scenario(rows=rows, depth=depth, max_num_batched_tokens=64), step_by_step)
    inside = arrival > step
    joins = step + inside + (depth - 1)
    assert steps(result, "first_scheduled_time")[1] == joins
    assert token_steps(result) == [list(range(1, 21)), [joins + 1, joins + 2]]


@BOTH
@EACH_WAY
def test_a_slot_is_free_when_the_last_token_is_back(depth: int, step_by_step: bool) -> None:
    """One place: the second request starts when the first has ended; with two batches in flight nothing overlaps.

    The last token of a length that was declared is known in advance, so no surplus step is run.
    """
    rows = (Row(prompt=5, output=3), Row(prompt=5, output=2))
    result = simulate(Scenario(rows=rows, depth=depth, max_num_seqs=1), step_by_step)
    assert token_steps(result) == [[1, 2, 3], [4, 5]]
    assert result.replicas[0].num_steps == 5


@EACH_WAY
def test_a_stop_token_costs_the_asynchronous_engine_one_surplus_step(step_by_step: bool) -> None:
    """Declared more than it says: the step after the stop token has been made already and is thrown away."""
    rows = (Row(prompt=5, output=3, surplus=9), Row(prompt=5, output=2))
    for depth, starts in ((SYNCHRONOUS, 3), (ASYNCHRONOUS, 4)):
        result = simulate(Scenario(rows=rows, depth=depth, max_num_seqs=1), step_by_step)
        assert token_steps(result)[0] == [1, 2, 3]
        assert steps(result, "finish_time")[0] == 3
        assert steps(result, "first_scheduled_time")[1] == starts
        assert result.replicas[0].num_steps == 5 + (depth - 1)


@EACH_WAY
def test_a_prefill_in_between_stretches_one_gap(step_by_step: bool) -> None:
    """Steps of 0.25 s + 1/128 s a prefill token + 1/32 s a sequence: every instant by hand, synchronous engine.

    A (8 prompt, 4 output) at 0: step 0 takes 1/4 + 8/128 + 1/32 = 11/32. B (16 prompt, 1 output) arrives meanwhile:
    step 1 holds A's decode and B's prefill, 1/4 + 16/128 + 2/32 = 14/32. Steps 2 and 3 hold A alone, 9/32.
    """
    rows = (Row(prompt=8, output=4), Row(gap=0.5, prompt=16, output=1))
    scenario = Scenario(rows=rows, cost="dyadic", depth=SYNCHRONOUS, max_num_batched_tokens=64)
    result = simulate(scenario, step_by_step)
    first = result.requests["first_token_time"]
    assert (32 * first).tolist() == [11, 25]
    assert (32 * np.array(deliveries(result)[0])).tolist() == [25, 34, 43]
    # What A's second token waited longer than its step alone (9/32) would have taken.
    assert (32 * result.requests["interference_duration"]).tolist() == [5, 0]


@BOTH
@EACH_WAY
def test_preemption_by_hand(depth: int, step_by_step: bool) -> None:
    """Two sequences of 8 tokens in 3 blocks of 4: the second one loses its block and computes again what it had.

    Synchronous: both prefill 3 tokens in step 0 (one block each) and decode in step 1, which fills the block. In step 2
    both need a second block and one is left: A takes it, B is the victim and its known tokens (3 + 2) need two blocks.
    A's fifth token comes in step 4, after which B computes 5 tokens in step 5 and has its third token at 6.
    """
    rows = (Row(prompt=3, output=5), Row(prompt=3, output=5))
    scenario = Scenario(rows=rows, depth=depth, num_blocks=4, prefix_caching=False)
    result = simulate(scenario, step_by_step)
    assert result.requests["num_preemptions"].tolist() == [0, 1]
    assert token_steps(result) == [[1, 2, 3, 4, 5], [1, 2, 6, 7, 8]]
    assert result.requests["num_recomputed_tokens"].tolist() == [0, 5]
    assert (4 * result.requests["preempted_duration"]).tolist() == [0, 4]


@BOTH
@EACH_WAY
@pytest.mark.parametrize(("patience", "delivered"), [(2.0, 2), (2.5, 2), (3.0, 3), (4.0, 4)])
def test_a_cancelled_request_keeps_what_was_delivered(
    depth: int, step_by_step: bool, patience: float, delivered: int
) -> None:
    """Cancelled at the end of a step: that step's token still counts. At the end of the last one it has finished."""
    rows = (Row(prompt=5, output=4, cancel_after=patience),)
    result = simulate(Scenario(rows=rows, depth=depth), step_by_step)
    assert result.requests["num_output_tokens"].tolist() == [delivered]
    assert steps(result, "finish_time") == [patience]
    assert result.requests["status"].tolist() == [1 if patience == 4.0 else 3]


@BOTH
@EACH_WAY
def test_the_next_turn_comes_a_delay_after_the_answer(depth: int, step_by_step: bool) -> None:
    """A session: the second prompt holds the first one and its answer, and hits their full blocks."""
    rows = (Row(prompt=7, output=3), Row(follows=1, delay=2.0, prompt=2, output=1))
    scenario = Scenario(rows=rows, depth=depth, hashed=True, outputs_hashed=True, hash_block_size=4)
    result = simulate(scenario, step_by_step)
    assert token_steps(result)[0] == [1, 2, 3]
    assert steps(result, "arrival_time") == [0, 5]
    assert result.requests["num_cached_tokens"].tolist() == [0, 8]  # of 7 + 3 + 2; the 10th token was never computed
    assert token_steps(result)[1] == [6]
