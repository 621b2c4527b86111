"""Conservation at every step and at the end: budgets, blocks, tokens, statuses, the parts of a latency, integrals."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from scenarios import Row, Scenario, Space, examples, limits_of, make_simulation, scenarios, simulate
from test_fast_forward import deliveries

from policies.scheduler import SCHEDULERS
from sim.batch import BatchBuilder
from sim.clock import Order
from sim.engine import Simulation
from sim.kv.content import Piece
from sim.kv.paged import PagedKV, walk
from sim.measured import PARTS, measure
from sim.replica import Replica
from sim.request import Sequence
from sim.result import RunResult, Status

Ints = npt.NDArray[np.int64]
LATTICES = {"second": 0.5, "quarter": 0.125, "dyadic": 2.0**-7}  # seconds between instants at which anything may happen

# --- what a replica holds, counted afresh -----------------------------------------------------------------------------


def computed_tokens(replica: Replica, builder: BatchBuilder | None = None) -> dict[int, int]:
    """Tokens with KV by row of every running sequence; those of the batch that `builder` is about to launch
    included.
    """
    took = builder.took_token if builder else lambda _: False
    return {seq.row: replica.num_computed(seq) + took(seq) for seq in replica.running.values()}


def holders(running: list[Sequence]) -> collections.Counter[tuple[int, int]]:
    """How many running sequences reference each registered block, by (piece, block of its run)."""
    found: collections.Counter[tuple[int, int]] = collections.Counter()
    for seq in running:
        for piece, low, high in seq.held:
            for part in walk(piece, high):
                found.update((id(part), block) for block in range(max(part.low, low), min(part.high, high)))
    return found


def pieces_in_use(running: list[Sequence]) -> Iterator[Piece]:
    for seq in running:
        for piece, _, high in seq.held:
            yield from walk(piece, high)


def referenced_blocks(replica: Replica, computed: dict[int, int]) -> int:
    """Distinct physical blocks that the running sequences hold."""
    size = replica.kv.block_size
    each = sum(max(-(-computed[seq.row] // size), seq.reserved_blocks) for seq in replica.running.values())
    shared = holders(list(replica.running.values()))
    return each - (sum(shared.values()) - len(shared))


def written_tokens(replica: Replica) -> int:
    """KV tokens in those blocks, a shared block counted once."""
    shared = holders(list(replica.running.values()))
    twice = sum(shared.values()) - len(shared) if is_paged(replica) else replica.kv.num_shared_extra
    return sum(computed_tokens(replica).values()) - twice * replica.kv.block_size


def is_paged(replica: Replica) -> bool:
    """Whether blocks are counted as here; trees and contiguous stretches check themselves (`check_integrity`)."""
    return type(replica.kv) is PagedKV


def check_call(replica: Replica, builder: BatchBuilder) -> None:
    """The invariants of one scheduling call."""
    kv, limits = replica.kv, replica.limits
    decodes = replica.cohort.size if builder.decoded else 0
    scheduled = decodes + sum(tokens for _, tokens in builder.chunks)
    assert scheduled + builder.tokens_left == limits.max_num_batched_tokens
    assert builder.tokens_left >= 0
    assert all(tokens > 0 for _, tokens in builder.chunks)
    assert len(replica.running) <= limits.max_num_seqs
    kv.check_integrity()
    computed = computed_tokens(replica, builder)
    assert all(tokens <= limits.max_model_len for tokens in computed.values())
    if is_paged(replica):
        assert kv.num_free + referenced_blocks(replica, computed) == kv.num_usable
        check_references(replica)


def check_references(replica: Replica) -> None:
    """Every block knows how many hold it."""
    running = list(replica.running.values())
    counted = holders(running)
    for piece in pieces_in_use(running):
        for block in range(piece.low, piece.high):
            assert piece.references == counted[id(piece), block]


def watch(simulation: Simulation) -> list[int]:
    """Check every call of every replica; the list grows by one a call."""
    calls: list[int] = []
    for replica in simulation.replicas:

        def observe(builder: BatchBuilder, replica: Replica = replica) -> None:
            check_call(replica, builder)
            calls.append(1)

        replica.observer = observe
    return calls


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_budgets_and_blocks_at_every_call(scheduler: str) -> None:
    """Tokens within the budget, sequences within theirs, free + referenced = usable, references = holders."""

    @examples(15)
    @given(scenarios(Space(policies={"scheduler": scheduler}, num_replicas=(1, 1, 2), timeline=False)))
    def check(scenario: Scenario) -> None:
        check_every_call(scenario)

    check()


def check_every_call(scenario: Scenario) -> None:
    simulation = make_simulation(scenario, step_by_step=True)
    calls = watch(simulation)
    result = simulation.run()
    assert len(calls) >= sum(replica.num_steps for replica in result.replicas)
    check_nothing_left(simulation)


def check_nothing_left(simulation: Simulation) -> None:
    """After the last event every block is free and nobody is outstanding anywhere."""
    assert not simulation.cluster.outstanding_requests.any()
    assert not simulation.cluster.outstanding_tokens.any()
    for replica in simulation.replicas:
        replica.kv.check_integrity()
        assert replica.kv.num_free == replica.kv.num_usable
        assert replica.num_outstanding == 0
        assert replica.cohort.size == 0
        assert replica.cohort.computed == 0
        assert replica.kv.num_shared_extra == 0


# --- what the requests got --------------------------------------------------------------------------------------------


@examples(35)
@given(scenarios(Space(num_replicas=(1, 2))))
def test_requests_end_once_with_the_tokens_they_are_due(scenario: Scenario) -> None:
    """Statuses add up; finished requests got min(true, declared, room) tokens; times are in order."""
    simulation = make_simulation(scenario)
    result = simulation.run()
    requests = result.requests
    status = requests["status"]
    assert set(status.tolist()) <= {int(s) for s in Status if s is not Status.UNFINISHED}
    due, exact = tokens_due(scenario, simulation, result)
    finished = status == Status.FINISHED
    np.testing.assert_array_equal(requests["num_output_tokens"][finished & exact], due[finished & exact])
    assert (requests["num_output_tokens"][~finished & exact] <= due[~finished & exact].clip(0)).all()
    check_order_of_times(result)
    check_deliveries(result)
    check_nothing_left(simulation)


def tokens_due(scenario: Scenario, simulation: Simulation, result: RunResult) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """min(true, declared, room) by row, and where that is the rule.

    Not where a slot ends a request, nor after a preemption by an engine that counts the output from zero again.
    """
    traits, workload = simulation.replicas[0].traits, simulation.workload
    room = limits_of(scenario).max_model_len - workload.num_prompt_tokens + traits.extra_tokens
    due = np.minimum(np.minimum(workload.num_output_tokens, workload.max_output_tokens), room)
    exact = np.full(len(due), scenario.allocator != "slots")
    if traits.restarts_output_count:
        exact &= result.requests["num_preemptions"] == 0
    return due, exact


def check_order_of_times(result: RunResult) -> None:
    """arrival <= admission <= first scheduled < first token <= end <= end of the run, where they happened."""
    requests = result.requests
    names = ("arrival_time", "admission_time", "first_scheduled_time", "first_token_time", "finish_time")
    for row in zip(*(requests[name].tolist() for name in names), strict=True):
        happened = [time for time in row if not math.isnan(time)]
        assert happened == sorted(happened)
        assert row[4] <= result.end_time
        assert math.isnan(row[3]) or row[2] < row[3]


def check_deliveries(result: RunResult) -> None:
    """Tokens come one by one; as many by the end as the request is said to have got; the last one is the end."""
    requests = result.requests
    for row, later in enumerate(deliveries(result)):
        first, end = float(requests["first_token_time"][row]), float(requests["finish_time"][row])
        times = [time for time in ([] if math.isnan(first) else [first]) + later if time <= end]
        assert all(a < b for a, b in itertools.pairwise(times))
        assert len(times) == requests["num_output_tokens"][row]
        if requests["status"][row] == Status.FINISHED:
            assert times[-1] == end
            assert len(later) == len(times) - 1


@examples(35)
@given(scenarios(Space(num_replicas=(1, 2), timeline=False)))
def test_no_gap_is_counted_to_a_token_that_never_came(scenario: Scenario) -> None:
    """max_itl is the largest gap between tokens delivered before the request ended, cancelled requests included."""
    simulation = make_simulation(scenario)
    result = simulation.run()
    measured = measure(result, simulation.workload, None)
    for row, later in enumerate(deliveries(result)):
        first, end = float(result.requests["first_token_time"][row]), float(result.requests["finish_time"][row])
        times = [] if math.isnan(first) else [first, *(time for time in later if time <= end)]
        largest = max((b - a for a, b in itertools.pairwise(times)), default=math.nan)
        np.testing.assert_equal(float(measured.columns["max_itl"][row]), largest)


@examples(35)
@given(scenarios(Space(num_replicas=(1, 2), timeline=False)))
def test_parts_of_a_latency_add_up_exactly(scenario: Scenario) -> None:
    """All parts to end - arrival, those before the first token to ttft, bit for bit; none is negative."""
    simulation = make_simulation(scenario)
    result = simulation.run()
    columns = measure(result, simulation.workload, None).columns
    total = np.sum([columns[name] for name in PARTS], axis=0)  # exact on the time grid, in any order
    np.testing.assert_array_equal(total, columns["finish_time"] - columns["arrival_time"] + columns["client_latency"])
    for name in PARTS:
        assert (columns[name] >= 0).all(), name
    finished = columns["status"] == "finished"
    np.testing.assert_array_equal(total[finished], columns["e2e"][finished])
    came = ~np.isnan(columns["first_token_time"])
    before = sum(columns[name] for name in ("admission_delay", "waiting_duration", "prefill_duration"))
    before = before + result.requests["preempted_before_first_token"] + columns["client_latency"]
    np.testing.assert_array_equal(before[came], columns["ttft"][came])
    interference = columns["interference_duration"]
    assert (interference >= 0).all()
    assert (interference[finished] <= columns["decode_duration"][finished]).all()


# --- what the replicas did --------------------------------------------------------------------------------------------


@examples(35)
@given(scenarios(Space(num_replicas=(1, 2))))
def test_replica_totals(scenario: Scenario) -> None:
    """Busy time within the run; the step log adds up to the totals; every token came out of a step."""
    simulation = make_simulation(scenario, step_log=True)
    result = simulation.run()
    assert result.steps is not None
    for i, replica in enumerate(result.replicas):
        mine = result.steps["replica"] == i
        start, duration = result.steps["start_time"][mine], result.steps["duration"][mine]
        assert mine.sum() == replica.num_steps
        assert duration.sum() == replica.busy_time  # exact on the grid
        assert (start[1:] >= (start + duration)[:-1]).all()
        tokens = result.steps["num_prefill_tokens"][mine] + result.steps["num_decode_sequences"][mine]
        assert tokens.sum() == replica.num_tokens
        assert (tokens >= 1).all()
        # a call may preempt and run nothing
        assert result.steps["num_preempted"][mine].sum() <= replica.num_preemptions
        assert 0 <= replica.num_hit_tokens <= replica.num_lookup_tokens
        assert 0 <= replica.peak_used_blocks <= replica.num_blocks - 1
    assert sum(replica.num_preemptions for replica in result.replicas) == result.requests["num_preemptions"].sum()


def counts_as_computed(simulation: Simulation, result: RunResult) -> int:
    """Prompt tokens that had to be computed at least once, plus one step per further output token of finished rows."""
    finished = result.requests["status"] == Status.FINISHED
    prompts = simulation.workload.num_prompt_tokens - result.requests["num_cached_tokens"]
    return int((prompts + result.requests["num_output_tokens"] - 1)[finished].sum())


@examples(35)
@given(scenarios(Space(timeline=False)))
def test_work_is_what_the_requests_needed_and_what_was_lost(scenario: Scenario) -> None:
    """Scheduled tokens = prompts not cached + outputs - 1 + recomputed, plus surplus steps, for runs without losses."""
    simulation = make_simulation(scenario)
    result = simulation.run()
    replica, requests = result.replicas[0], result.requests
    needed = counts_as_computed(simulation, result)
    if (requests["status"] == Status.FINISHED).all() and replica.num_preemptions == 0:
        workload = simulation.workload
        room = limits_of(scenario).max_model_len - workload.num_prompt_tokens
        stops = requests["num_output_tokens"] < np.minimum(workload.max_output_tokens, room)
        assert replica.num_tokens == needed + int(stops.sum()) * (scenario.depth - 1)
    else:
        assert replica.num_tokens >= needed


@examples(35)
@given(scenarios(Space(costs=tuple(LATTICES), timeline=False)))
def test_memory_integrals_equal_a_brute_force_sum(scenario: Scenario) -> None:
    """Blocks and tokens sampled between all instants at which anything can happen, on a lattice of such instants."""
    scenario = on_lattice(scenario)
    simulation = make_simulation(scenario, step_by_step=True)
    spacing = LATTICES[scenario.cost]
    sums = [[0.0, 0.0] for _ in simulation.replicas]

    def sample(_: object) -> None:
        for replica, total in zip(simulation.replicas, sums, strict=True):
            total[0] += spacing * (replica.kv.num_usable - replica.kv.num_free)
            total[1] += spacing * written_tokens(replica)
        if len(simulation.records) < len(simulation.workload):
            assert simulation.clock.now < 10_000
            simulation.clock.at(simulation.clock.now + spacing, Order.CONTROL_LOOP, 1, sample)

    simulation.clock.at(spacing / 2, Order.CONTROL_LOOP, 1, sample)
    result = simulation.run()
    for replica, (blocks, tokens) in zip(result.replicas, sums, strict=True):
        assert replica.used_block_seconds == pytest.approx(blocks, rel=1e-9)
        assert replica.filled_token_seconds == pytest.approx(tokens, rel=1e-9)


def on_lattice(scenario: Scenario) -> Scenario:
    """The scenario with all its instants on multiples of half a unit and its first arrival soon."""

    def near(units: float) -> float:
        return round(2 * units) / 2

    rows = tuple(
        dataclasses.replace(
            row,
            gap=near(row.gap),
            delay=near(row.delay),
            cancel_after=None if row.cancel_after is None else near(row.cancel_after),
        )
        for row in scenario.rows
    )
    timeout = None if scenario.client_timeout is None else near(scenario.client_timeout)
    return dataclasses.replace(scenario, rows=rows, client_timeout=timeout, start=0.0)


@pytest.mark.parametrize("cost", LATTICES)
def test_steps_lie_on_the_lattice_of_the_brute_force_sums(cost: str) -> None:
    result = simulate(Scenario(rows=(Row(prompt=5, output=3), Row(prompt=9, output=2)), cost=cost), step_log=True)
    assert result.steps is not None
    assert (result.steps["duration"] % LATTICES[cost] == 0).all()
