"""Split requests worked out by hand. A step takes 0.25 s, here one unit; a link moves so many tokens in a unit."""

from __future__ import annotations

from typing import Any

import pytest
from scenarios import Row, Scenario
from splits import BYTES_PER_TOKEN, Splitting, make_split_simulation
from test_fast_forward import deliveries

from sim.measured import measure
from sim.result import RunResult

EACH_WAY = pytest.mark.parametrize("step_by_step", [True, False])
SYNCHRONOUS, ASYNCHRONOUS = 1, 2


def simulate(rows: list[Row], step_by_step: bool, splitting: Splitting, **options: Any) -> RunResult:
    known = {"max_num_batched_tokens": 16, "depth": SYNCHRONOUS, "prefix_caching": False, "num_blocks": 65}
    scenario = Scenario(rows=tuple(rows), **{**known, **options})
    simulation = make_split_simulation(scenario, splitting, step_by_step)
    result = simulation.run()
    result.requests |= measure(result, simulation.workload, None).columns  # with the parts
    return result


def units(result: RunResult, name: str) -> list[float]:
    return [4 * time for time in result.requests[name].tolist()]


def tokens(result: RunResult) -> list[list[float]]:
    """Delivery times of all tokens by row, in units."""
    first = result.requests["first_token_time"].tolist()
    return [[4 * time for time in (start, *later)] for start, later in zip(first, deliveries(result), strict=True)]


@EACH_WAY
def test_the_first_token_comes_from_the_prefill_side(step_by_step: bool) -> None:
    """8 tokens: computed by 1, sent at 4 a unit until 3, decoded from 3 on."""
    result = simulate([Row(prompt=8, output=3)], step_by_step, Splitting(tokens_per_unit=4.0))
    assert tokens(result) == [[1, 4, 5]]
    assert units(result, "ttft") == [1]
    assert units(result, "prefill_duration") == [1]
    assert units(result, "transfer_duration") == [2]
    assert units(result, "decode_duration") == [2]
    assert units(result, "e2e") == [5]
    assert result.transfers is not None
    assert result.transfers["num_bytes"].tolist() == [8 * BYTES_PER_TOKEN]
    assert (result.requests["prefill_replica"][0], result.requests["decode_replica"][0]) == (0, 1)


@EACH_WAY
def test_the_first_token_comes_from_the_decode_side(step_by_step: bool) -> None:
    """As above; the step from 3 to 4 computes the last prompt token again, and the transfer is a part of the ttft."""
    splitting = Splitting(tokens_per_unit=4.0, first_token="decode")
    result = simulate([Row(prompt=8, output=3)], step_by_step, splitting)
    assert tokens(result) == [[4, 5, 6]]
    assert units(result, "prefill_duration") == [2]
    assert units(result, "transfer_duration") == [2]
    assert units(result, "decode_duration") == [2]
    assert result.replicas[0].num_tokens == 8
    assert result.replicas[1].num_tokens == 3


@EACH_WAY
@pytest.mark.parametrize(("granularity", "landed"), [("whole", 6), ("chunk", 4)])
def test_chunks_leave_as_they_are_computed(step_by_step: bool, granularity: Any, landed: int) -> None:
    """12 tokens in chunks of 4 that end at 1, 2, 3, each one unit on the link: only the last is not hidden."""
    splitting = Splitting(tokens_per_unit=4.0, mode="push", granularity=granularity)
    result = simulate([Row(prompt=12, output=2)], step_by_step, splitting, max_num_batched_tokens=4)
    assert tokens(result) == [[3, landed + 1]]
    assert units(result, "transfer_duration") == [landed - 3]


@EACH_WAY
@pytest.mark.parametrize("tokens_per_unit", [64.0, 16.0, 8.0, 4.0, 1.0])
def test_layers_hide_behind_the_step(step_by_step: bool, tokens_per_unit: float) -> None:
    """Step T, transfer X, L layers: what remains after the step is max(X / L, X - T (L - 1) / L)."""
    splitting = Splitting(tokens_per_unit=tokens_per_unit, mode="push", granularity="layer")
    result = simulate([Row(prompt=16, output=2)], step_by_step, splitting)
    layers, transfer = splitting.rules.num_layers, 16 / tokens_per_unit
    remains = max(transfer / layers, transfer - (layers - 1) / layers)
    assert units(result, "transfer_duration") == [remains]
    assert tokens(result) == [[1, 1 + remains + 1]]


@EACH_WAY
def test_computed_prompts_keep_their_memory_until_they_have_left(step_by_step: bool) -> None:
    """3 blocks of 4 on each side: B's prompt of 2 blocks waits until A's has been pulled (4 units, from 1 to 5).

    A decodes on 3 blocks from 5 to 7, so B, computed by 6, is pulled from 7 to 11.
    """
    rows = [Row(prompt=8, output=3), Row(prompt=8, output=3)]
    result = simulate(rows, step_by_step, Splitting(tokens_per_unit=2.0), num_blocks=4, block_size=4)
    assert units(result, "first_scheduled_time") == [0, 5]
    assert tokens(result) == [[1, 6, 7], [6, 12, 13]]
    assert units(result, "transfer_duration") == [4, 5]


@EACH_WAY
def test_pushing_reserves_the_destination_first(step_by_step: bool) -> None:
    """As above, but B's prompt is not even computed before there are blocks for it on the decode side, at 7."""
    rows = [Row(prompt=8, output=3), Row(prompt=8, output=3)]
    splitting = Splitting(tokens_per_unit=2.0, mode="push")
    result = simulate(rows, step_by_step, splitting, num_blocks=4, block_size=4)
    assert units(result, "first_scheduled_time") == [0, 7]
    assert tokens(result) == [[1, 6, 7], [8, 13, 14]]


@EACH_WAY
@pytest.mark.parametrize(("depth", "second_token"), [(SYNCHRONOUS, 6), (ASYNCHRONOUS, 7)])
def test_what_lands_during_a_step_waits_for_the_batches_already_made(
    step_by_step: bool, depth: int, second_token: int
) -> None:
    """Row 1 is computed at 2.5, in the decode step from 2 to 3; its blocks are taken at the next call, at 3.

    6 tokens at 4 a unit land at 4.5. The call at 5 makes the batch that starts at 5, or at 6 with two in flight.
    """
    rows = [Row(prompt=4, output=20), Row(gap=1.5, prompt=6, output=2)]
    result = simulate(rows, step_by_step, Splitting(tokens_per_unit=4.0), depth=depth)
    assert tokens(result)[0][:3] == [1, 3, 4]
    assert tokens(result)[1] == [2.5, second_token]
    assert units(result, "transfer_duration")[1] == second_token - 1 - 2.5


@EACH_WAY
def test_a_request_of_one_token_is_not_transferred(step_by_step: bool) -> None:
    result = simulate([Row(prompt=8, output=1)], step_by_step, Splitting())
    assert tokens(result) == [[1]]
    assert result.transfers is not None
    assert result.transfers["num_bytes"].tolist() == [0]
    assert result.replicas[1].num_steps == 0


@EACH_WAY
def test_a_lost_transfer_is_sent_again_then_computed_again(step_by_step: bool) -> None:
    """All attempts are lost: 2 units each, from 1 to 5; the decode side computes 9 tokens in the step from 5 to 6."""
    splitting = Splitting(tokens_per_unit=4.0, failure_rate=1.0, retries=1)
    result = simulate([Row(prompt=8, output=3)], step_by_step, splitting)
    assert tokens(result) == [[1, 6, 7]]
    assert units(result, "transfer_duration") == [4]
    assert units(result, "preempted_duration") == [1]
    assert result.requests["num_recomputed_tokens"].tolist() == [9]
    assert result.requests["num_preemptions"].tolist() == [0]


@EACH_WAY
def test_a_lost_transfer_can_fail_the_request(step_by_step: bool) -> None:
    splitting = Splitting(tokens_per_unit=4.0, failure_rate=1.0, on_failure="fail")
    result = simulate([Row(prompt=8, output=3)], step_by_step, splitting)
    assert result.requests["status"].tolist() == ["failed"]
    assert result.requests["reject_reason"].tolist() == ["KV transfer failed 1 times"]
    assert units(result, "finish_time") == [3]


@EACH_WAY
def test_prompts_that_wait_are_bounded(step_by_step: bool) -> None:
    """Three prompts of 4 computed by 1 share a link of 4 a unit. Bound 1: one after the other, each beside a decode."""
    rows = [Row(prompt=4, output=2)] * 3
    free = simulate(rows, step_by_step, Splitting(tokens_per_unit=4.0))
    bounded = simulate(rows, step_by_step, Splitting(tokens_per_unit=4.0, max_inflight_tokens=1))
    assert [row[1] for row in tokens(free)] == [5, 5, 5]
    assert [row[1] for row in tokens(bounded)] == [3, 4, 5]


@EACH_WAY
def test_distserve_accepts_until_the_waiting_prompts_reach_five_per_cent(step_by_step: bool) -> None:
    """1,000 blocks of one token, so a bound of 50: with 48 on the way 10 more are accepted (58), the next are not.

    All are computed by 1 and share 4 tokens a unit. The first ten land at 6, whereupon the next ten leave and land at
    11; the 48 have the link to themselves from then on and land at 18. With a bound of 48 they go alone until 13; the
    others share 4 a unit until 18.
    """
    rows = [Row(prompt=48, output=2), Row(prompt=10, output=2), Row(prompt=10, output=2)]
    options = {"num_blocks": 1001, "block_size": 1, "max_num_batched_tokens": 100}
    bounded = Splitting(tokens_per_unit=4.0, max_inflight_tokens=50)
    assert [row[1] for row in tokens(simulate(rows, step_by_step, bounded, **options))] == [19, 7, 12]
    alone = Splitting(tokens_per_unit=4.0, max_inflight_tokens=48)
    assert [row[1] for row in tokens(simulate(rows, step_by_step, alone, **options))] == [14, 19, 19]


@EACH_WAY
def test_the_decode_loop_stands_still_during_a_pull(step_by_step: bool) -> None:
    """The second prompt is computed from 2 to 3 and pulled until 5; the first request makes no steps at 3 and 4."""
    rows = [Row(prompt=4, output=5), Row(prompt=8, output=2, gap=2)]
    beside = simulate(rows, step_by_step, Splitting(tokens_per_unit=4.0))
    assert tokens(beside) == [[1, 3, 4, 5, 6], [3, 6]]
    blocked = simulate(rows, step_by_step, Splitting(tokens_per_unit=4.0, blocking=True))
    assert tokens(blocked) == [[1, 3, 6, 7, 8], [3, 6]]


def test_a_reserve_for_each_sequence_holds_loads_back() -> None:
    """16 tokens of memory, 4 reserved a sequence: the third prompt of 4 waits until a sequence has left."""
    rows = [Row(prompt=4, output=4)] * 3
    options = {"num_blocks": 5, "block_size": 4}
    free = simulate(rows, False, Splitting(tokens_per_unit=400.0), **options)
    held = simulate(rows, False, Splitting(tokens_per_unit=400.0, reserved_tokens_per_sequence=4), **options)
    assert free.transfers is not None
    assert held.transfers is not None
    assert max(free.transfers["transfer_duration"]) < max(held.transfers["transfer_duration"])
