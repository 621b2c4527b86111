"""Preemption by swapping to host memory, and the choice between that and computing again."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_runs import build_rows
from scenarios import OneHostLink, Row, Scenario, simulate

from policies.preemption import PREEMPTIONS
from policies.scheduler import SCHEDULERS
from sim.build import build
from sim.clock import Clock
from sim.config import experiment_from_values
from sim.cost import ConstantCost
from sim.engine import Simulation
from sim.experiment import run
from sim.kv.host import HostMemory, PrivatePort
from sim.request import Phase
from sim.swapping import CheaperWay, FabricPort

ROWS = [(5 + 7 * i % 23, 10 + 11 * i % 40) for i in range(30)]


def swapping(mode: str, seconds_per_block: float, host_blocks: int = 10**6, **options: Any) -> Simulation:
    """30 requests in memory for two or three."""
    known = {"num_blocks": 25, "block_size": 4, "budget": 32, "num_seqs": 8}
    simulation = build_rows(ROWS, **{**known, **options})
    replica = simulation.replicas[0]
    replica.host = HostMemory(host_blocks, PrivatePort(seconds_per_block))
    replica.swaps = CheaperWay(replica) if mode == "auto" else lambda seq: True
    return simulation


def test_swapped_tokens_are_not_computed_again() -> None:
    simulation = swapping("swap", 0.0)
    result = simulation.run()
    table, host = result.preemptions, simulation.replicas[0].host
    assert table is not None
    assert host is not None
    assert set(table["mode"]) == {"swap"}
    assert table["num_recomputed_tokens"].sum() == result.requests["num_recomputed_tokens"].sum() == 0
    assert host.num_copied_out == host.num_copied_in == table["num_copied_blocks"].sum()
    assert host.num_free == host.num_blocks
    assert result.requests["num_output_tokens"].tolist() == [output for _, output in ROWS]


def test_copies_delay_the_steps_they_belong_to() -> None:
    """Every block that moves costs a quarter of a second of busy time, out and back."""
    free, dear = swapping("swap", 0.0), swapping("swap", 0.25)
    result = free.run(), dear.run()
    host = dear.replicas[0].host
    assert host is not None
    copies = (host.num_copied_out + host.num_copied_in) * 0.25
    assert result[1].replicas[0].busy_time == result[1].replicas[0].num_steps + copies
    assert result[1].preemptions is not None
    assert result[1].preemptions["lost_seconds"].sum() == copies


def test_a_victim_that_does_not_fit_into_host_memory_is_computed_again() -> None:
    result = swapping("swap", 0.0, host_blocks=6).run()
    assert result.preemptions is not None
    assert set(result.preemptions["mode"]) == {"swap", "recompute"}
    none = swapping("swap", 0.0, host_blocks=0).run()
    assert none.preemptions is not None
    assert set(none.preemptions["mode"]) == {"recompute"}


def test_auto_takes_the_cheaper_way() -> None:
    """Three blocks to copy twice, or 12 tokens beside two decodes: 6 x 0.01 s against 12 x 0.004 s, or 12 x 0.006 s."""
    simulation = swapping("auto", 0.01)
    replica = simulation.replicas[0]
    victim = simulation.columns.sequence(0, 0.0)
    victim.phase, victim.num_computed = Phase.PAUSED, 12
    way = CheaperWay(replica)
    assert way.swap_seconds(victim) == pytest.approx(0.06)
    for per_token, swaps in ((0.004, False), (0.006, True)):
        replica.cost = ConstantCost(1.0, per_prefill_token=per_token)
        replica.cohort.size, replica.cohort.computed = 2, 20
        assert way.recompute_seconds(victim) == pytest.approx(12 * per_token)
        assert way(victim) is swaps


@pytest.mark.parametrize(("seconds_per_block", "mode"), [(1e-6, "swap"), (1e6, "recompute")])
def test_auto_follows_the_speed_of_the_link(seconds_per_block: float, mode: str) -> None:
    simulation = swapping("auto", seconds_per_block)
    simulation.replicas[0].cost = ConstantCost(1.0, per_prefill_token=0.01)
    result = simulation.run()
    assert result.preemptions is not None
    assert set(result.preemptions["mode"]) == {mode}


V1_SCHEDULERS = ["fcfs", "priority", "sorted", "vtc", "drr", "wfq", "mlfq"]


@pytest.mark.parametrize("scheduler", V1_SCHEDULERS)
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("mode", ["swap", "auto"])
@pytest.mark.parametrize("seed", range(3))
def test_fast_forward_is_exact_with_swapping(scheduler: str, depth: int, mode: str, seed: int) -> None:
    draw = random.Random(seed)
    rows = [(draw.randint(1, 40), draw.randint(1, 60)) for _ in range(30)]
    options: dict[str, Any] = {
        "num_blocks": draw.choice([27, 40]),
        "block_size": 4,
        "budget": draw.choice([16, 200]),
        "num_seqs": draw.choice([3, 8]),
        "depth": depth,
        "arrivals": np.cumsum([draw.choice([0.0, 0.5, 9.0]) for _ in rows]).tolist(),
        "cancel_after": [draw.choice([np.nan, np.nan, 30.0]) for _ in rows],
        "declared": [output + draw.choice([0, 5]) for _, output in rows],
        "prefix_caching": draw.random() < 0.5,
    }
    victim, seconds = draw.choice(sorted(PREEMPTIONS)), draw.choice([0.0, 0.125, 2.0])

    def simulate(step_by_step: bool) -> Any:
        simulation = build_rows(
            rows,
            scheduler=SCHEDULERS[scheduler](),
            preemption=PREEMPTIONS[victim](),
            step_by_step=step_by_step,
            **options,
        )
        replica = simulation.replicas[0]
        replica.host = HostMemory(60, PrivatePort(seconds))
        replica.cost = ConstantCost(1.0, per_prefill_token=0.0625)
        replica.swaps = CheaperWay(replica) if mode == "auto" else lambda seq: True
        result = simulation.run()
        assert replica.host.num_free == 60
        replica.kv.check_integrity()
        assert replica.kv.num_free == replica.kv.num_usable
        return result

    fast, stepped = simulate(False), simulate(True)
    for key, column in fast.requests.items():
        if column.dtype != object:
            assert column.tobytes() == stepped.requests[key].tobytes(), key
    assert (fast.requests["status"] > 0).all()
    assert (fast.preemptions is None) == (stepped.preemptions is None)
    for key, column in (fast.preemptions or {}).items():
        assert column.tolist() == stepped.preemptions[key].tolist(), key


def experiment(preemption: dict[str, Any]) -> dict[str, Any]:
    """A burst of long answers on a replica with little memory."""
    return {
        "workload": {
            "num_requests": 40,
            "arrivals": {"process": "constant", "rate": 100.0},
            "prompt_tokens": {"distribution": "fixed", "value": 300},
            "output_tokens": {"distribution": "fixed", "value": 400},
        },
        "cluster": {
            "pools": [
                {
                    "model": "llama-3.1-8b",
                    "gpu": "h100-sxm",
                    "kv_cache": {"num_blocks": 600},
                    "preemption": preemption,
                }
            ]
        },
    }


def test_mode_swap_and_auto_through_the_configuration() -> None:
    """A link of 64 GB/s: 16 tokens x 131,072 B a block."""
    outcomes = {}
    for mode in ("recompute", "swap", "auto"):
        outcome = run(
            experiment_from_values(experiment({"mode": mode, "swap_space": 8.0, "host_bandwidth": 6.4e10}), Path())
        )
        outcomes[mode] = outcome.result
        assert outcome.summary["num_preemptions"] > 0
    assert outcomes["recompute"].requests["num_recomputed_tokens"].sum() > 0
    swap = outcomes["swap"].preemptions
    assert swap is not None
    assert set(swap["mode"]) == {"swap"}
    per_block = swap["lost_seconds"] / swap["num_copied_blocks"] / 2
    assert per_block == pytest.approx(16 * 131_072 / 6.4e10, rel=1e-4)
    assert outcomes["auto"].preemptions is not None


def test_copies_share_their_links_with_what_moves_already() -> None:
    """One byte a second: 8 bytes alone 8 s; while 4 others are on their way the first 8 s go half each: 12 s."""
    clock = Clock()
    fabric = OneHostLink(clock)
    port = FabricPort(fabric, 0, block_bytes=4.0)
    host = HostMemory(10, port)
    assert host.delay(2, 0) == 8.0
    assert port.expected_duration(1, True) == 8.0  # 4 of 12 bytes at half the speed
    assert host.delay(0, 1) == 8.0
    clock.env.run()
    link = fabric.host_route(0, True).links[0]
    assert link.bytes_done(clock.now) == link.busy_time(clock.now) == 12.0
    assert host.delay(1, 1) == 4.0 + 8.0  # out, then in, on a link that the first copy still holds


def test_without_a_link_of_its_own_a_replica_swaps_over_the_pcie_of_its_node() -> None:
    """All GPUs of a replica copy their shares at once, so two need half as long as one for the same block."""
    seconds = []
    for tensor_parallel in (1, 2):
        pool = {"tensor_parallel": tensor_parallel, "preemption": {"mode": "swap"}}
        values = experiment({"mode": "swap"})
        values["cluster"]["pools"][0] |= pool
        host = build(experiment_from_values(values, Path())).replicas[0].host
        assert host is not None
        seconds.append(host.port.expected_duration(100, True))
    assert seconds[0] == pytest.approx(2 * seconds[1], rel=1e-6)


@pytest.mark.parametrize("step_by_step", [True, False])
def test_a_swapped_prompt_longer_than_a_step_comes_back_in_chunks(step_by_step: bool) -> None:
    """31 tokens of prompt are swapped out part-way; more are left than fit beside a decode, and then nobody runs."""
    rows = (Row(), Row(output=40), Row(), Row(), Row(), Row(gap=5.0), Row(), Row(prompt=31))
    scenario = Scenario(rows, num_blocks=5, block_size=16, reserve_full_isl=False, host_blocks=40)
    result = simulate(scenario, step_by_step=step_by_step)
    assert result.preemptions is not None
    assert set(result.preemptions["mode"]) == {"swap"}
    assert result.requests["num_output_tokens"].tolist() == [row.output for row in rows]
