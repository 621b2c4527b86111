"""Split requests: stepped and fast-forwarded alike to the last bit; blocks, bytes and requests conserved."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from scenarios import Scenario, Space, examples
from splits import BYTES_PER_TOKEN, MOVES, Splitting, make_split_simulation, split_scenarios, splittings
from test_fast_forward import assert_same_bits, assert_same_result

from policies.scheduler import SCHEDULERS
from sim.collect import collect
from sim.engine import Simulation
from sim.measured import PARTS, measure
from sim.result import RunResult, Status

# Slots belong to llama.cpp's scheduler, and their memory cannot be split.
SPLITTING_SCHEDULERS = sorted(set(SCHEDULERS) - {"llama_server"})


def run(scenario: Scenario, splitting: Splitting, step_by_step: bool = False) -> tuple[Simulation, RunResult]:
    simulation = make_split_simulation(scenario, splitting, step_by_step, step_log=True)
    return simulation, simulation.run()


def assert_exact(scenario: Scenario, splitting: Splitting) -> None:
    _, stepped = run(scenario, splitting, step_by_step=True)
    simulation, found = run(scenario, splitting)
    assert_same_result(found, stepped)
    assert found.transfers is not None
    assert stepped.transfers is not None
    assert_same_bits(found.transfers, stepped.transfers)
    check_conservation(simulation, found)


def check_conservation(simulation: Simulation, result: RunResult) -> None:
    """Everybody has ended, nothing is held or outstanding, bytes are those of the tokens, parts add up."""
    for replica in simulation.replicas:
        assert replica.kv.num_free == replica.kv.num_usable
        replica.kv.check_integrity()
        assert replica.num_outstanding == 0
    assert not simulation.cluster.outstanding_requests.any()
    assert not simulation.cluster.outstanding_tokens.any()
    assert (result.requests["status"] != Status.UNFINISHED).all()
    assert simulation.pools is not None
    assert not simulation.pools.transfers.active
    columns = measure(result, simulation.workload, None).columns
    ended = sum(columns[part] for part in PARTS)
    assert (ended == columns["finish_time"] - columns["arrival_time"]).all()
    for part in PARTS:
        assert (columns[part] >= 0).all(), part
    check_bytes(simulation, result)


def check_bytes(simulation: Simulation, result: RunResult) -> None:
    """Each attempt moves the KV of what the decode side had not cached, more where layers left before a preemption."""
    assert result.transfers is not None
    columns = {name: column[~np.isnan(result.transfers["duration"])] for name, column in result.transfers.items()}
    tokens = simulation.workload.num_prompt_tokens[columns["row"]] - columns["num_local_tokens"]
    wanted = BYTES_PER_TOKEN * tokens * (1 + columns["num_failed"])
    preempted = result.requests["num_preemptions"][columns["row"]] > 0
    assert (columns["num_bytes"][~preempted] == wanted[~preempted]).all()
    assert (columns["num_bytes"] >= wanted).all()


@pytest.mark.parametrize("scheduler", SPLITTING_SCHEDULERS)
def test_fast_forward_is_exact_with_every_scheduler(scheduler: str) -> None:
    @examples(12)
    @given(split_scenarios(Space(policies={"scheduler": scheduler}, max_rows=8)), splittings())
    def check(scenario: Scenario, splitting: Splitting) -> None:
        assert_exact(scenario, splitting)

    check()


@pytest.mark.parametrize("moves", MOVES, ids="-".join)
@pytest.mark.parametrize("first_token", ["prefill", "decode"])
def test_fast_forward_is_exact_however_kv_moves(moves: tuple[str, str], first_token: str) -> None:
    fixed = {"mode": moves[0], "granularity": moves[1], "first_token": first_token}

    @examples(12)
    @given(split_scenarios(Space(policies={"scheduler": "fcfs"})), splittings(**fixed))
    def check(scenario: Scenario, splitting: Splitting) -> None:
        assert_exact(scenario, splitting)

    check()


@examples(40)
@given(split_scenarios(Space(timeline=False)), splittings())
def test_memory_integrals_equal_a_brute_force_sum(scenario: Scenario, splitting: Splitting) -> None:
    """Blocks in use summed from event to event: leases and loads included."""
    simulation = make_split_simulation(scenario, splitting, step_by_step=True)
    simulation._start_arrivals()
    environment, sums = simulation.clock.env, [0.0] * len(simulation.replicas)
    while environment.peek() < float("inf"):
        elapsed = environment.peek() - environment.now
        for i, replica in enumerate(simulation.replicas):
            sums[i] += elapsed * (replica.kv.num_usable - replica.kv.num_free)
        environment.step()
    result = collect(simulation, 0.0)
    for found, wanted in zip(result.replicas, sums, strict=True):
        assert found.used_block_seconds == pytest.approx(wanted, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("scheduler", ["fcfs", "distserve", "vllm_v0"])
def test_fast_forward_is_exact_where_pulls_stop_the_steps(scheduler: str) -> None:
    pulls = splittings(mode="pull", granularity="whole", blocking=True)

    @examples(20)
    @given(split_scenarios(Space(policies={"scheduler": scheduler})), pulls)
    def check(scenario: Scenario, splitting: Splitting) -> None:
        assert_exact(scenario, splitting)

    check()
