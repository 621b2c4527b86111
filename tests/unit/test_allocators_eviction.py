"""Which cached content is overwritten: every policy by hand, the engine's order as one of them, an oracle above all."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_runs import build_rows

from policies.block_allocator.paged import Paged
from policies.eviction import EVICTIONS
from policies.eviction.arc import Ghosts
from sim.config import experiment_from_values
from sim.experiment import run
from sim.kv.content import Run
from sim.kv.eviction import EvictingKV, next_uses
from sim.result import RunResult
from sim.workload.base import Ragged

SIZE = 4  # tokens a block


def ragged(rows: list[list[int]]) -> Ragged:
    return Ragged(np.array([x for row in rows for x in row], dtype=np.int64), np.cumsum([0, *map(len, rows)]))


def served(contents: list[list[int]], kv: Any, **options: Any) -> RunResult:
    """Prompts of whole blocks with these ids, one after the other unless arrivals are given."""
    rows = [(SIZE * len(ids), 1) for ids in contents]
    known = {"arrivals": [10.0 * i for i in range(len(rows))], "num_seqs": 4, "budget": 64}
    simulation = build_rows(rows, kv=kv, hash_ids=ragged(contents), hash_block_size=SIZE, **{**known, **options})
    if isinstance(kv, EvictingKV) and hasattr(kv.policy, "foresee"):
        kv.policy.foresee(next_uses(simulation.columns.content_spans, [prompt for prompt, _ in rows]))
    result = simulation.run()
    kv.check_integrity()
    return result


def memory(eviction: str, num_blocks: int) -> EvictingKV:
    return EvictingKV(num_blocks + 1, SIZE, EVICTIONS[eviction]())


def hits(eviction: str, num_blocks: int, heads: list[int]) -> int:
    """Blocks hit by prompts of two blocks each: a shared one and one that is only there to be recomputed."""
    contents = [[head, 1_000_000 + i] for i, head in enumerate(heads)]
    return int(served(contents, memory(eviction, num_blocks)).requests["num_cached_tokens"].sum()) // SIZE


def test_fifo_forgets_what_came_first_although_it_was_just_used() -> None:
    """Room for 4 blocks. 1 and 2 enter, 1 is hit, 3 needs a place: fifo takes 1's block, lru 2's."""
    assert hits("lru", 5, [1, 2, 1, 3, 1]) == 2
    assert hits("fifo", 5, [1, 2, 1, 3, 1]) == 1


def test_lfu_keeps_what_was_hit_often() -> None:
    """1 is hit three times, then a scan of new content fills the memory: lfu still has 1 afterwards, lru has not."""
    scan = [1, 1, 1, 1, *range(10, 20), 1]
    assert hits("lru", 6, scan) == 3
    assert hits("lfu", 6, scan) == 4


def test_arc_resists_a_scan_and_follows_a_change() -> None:
    """Hot contents 1 to 3 among scans: arc keeps them where lru loses them; new hot ones take their place later."""
    draw = random.Random(1)
    fresh = iter(range(1000, 10_000))
    phase = [[hot, next(fresh), hot, *[next(fresh) for _ in range(6)]] for hot in draw.choices([1, 2, 3], k=40)]
    later = [[hot, next(fresh), hot, *[next(fresh) for _ in range(6)]] for hot in draw.choices([7, 8, 9], k=40)]
    heads = [head for part in phase + later for head in part]
    found = {name: hits(name, 12, heads) for name in EVICTIONS}
    assert found["arc"] > 1.3 * found["lru"]
    assert found["belady"] >= max(found.values())


def test_belady_on_a_loop_that_is_one_too_long() -> None:
    """Contents 1 to 5 in turn, memory for 4 heads: lru always lost the one it needs; the oracle loses one at a time."""
    loop = [1, 2, 3, 4, 5] * 12
    assert hits("lru", 5, loop) == 0
    assert hits("fifo", 5, loop) == 0
    assert hits("belady", 5, loop) > 30


def test_ghosts_are_found_by_overlap_and_forgotten_in_order() -> None:
    ghosts, first, second = Ghosts(), Run(), Run()
    ghosts.add(first, 0, 4)
    ghosts.add(first, 4, 6)
    ghosts.add(second, 0, 5)
    assert ghosts.take(first, 5, 9) == 2
    assert ghosts.num_blocks == 9
    ghosts.trim(5)
    assert ghosts.take(first, 0, 4) == 0
    assert ghosts.take(second, 4, 5) == 5


def random_contents(draw: random.Random, number: int) -> list[list[int]]:
    """Chains out of a small tree of shared beginnings, and an own end."""
    own = iter(range(10_000, 10**6))
    found = []
    for _ in range(number):
        chain = [draw.randint(1, 3)]
        while len(chain) < draw.randint(1, 6):
            chain.append(chain[-1] * 10 + draw.randint(1, 2))
        found.append([*chain, *[next(own) for _ in range(draw.randint(0, 3))]])
    return found


@pytest.mark.parametrize("seed", range(12))
def test_lru_as_a_policy_is_the_engine_to_the_bit(seed: int) -> None:
    """Shared prefixes, preemptions, splits of pieces: the same hits, evictions and times as the engine's free list."""
    draw = random.Random(seed)
    contents = random_contents(draw, 40)
    options: dict[str, Any] = {
        "arrivals": np.cumsum([draw.choice([0.0, 0.5, 2.0]) for _ in contents]).tolist(),
        "depth": draw.choice([1, 2]),
        "budget": draw.choice([12, 64]),
    }
    kinds = Paged().build(20, SIZE, True), memory("lru", 19)
    results = [served(contents, kv, **options) for kv in kinds]
    for key, column in results[0].requests.items():
        if column.dtype != object:
            assert column.tobytes() == results[1].requests[key].tobytes(), key
    for name in ("num_evicted", "num_evicted_dead", "num_evicted_preempted", "num_idle", "num_free"):
        assert getattr(kinds[0], name) == getattr(kinds[1], name), name
    assert kinds[0].num_evicted > 0


@pytest.mark.parametrize("name", EVICTIONS)
@pytest.mark.parametrize("seed", range(4))
def test_fast_forward_is_exact_under_every_policy(name: str, seed: int) -> None:
    draw = random.Random(100 + seed)
    contents = random_contents(draw, 40)
    rows = [(SIZE * len(ids), draw.randint(1, 40)) for ids in contents]
    options: dict[str, Any] = {
        "arrivals": np.cumsum([draw.choice([0.0, 0.5, 9.0]) for _ in contents]).tolist(),
        "depth": 1 + seed % 2,
        "hash_ids": ragged(contents),
        "hash_block_size": SIZE,
        "cancel_after": [draw.choice([np.nan, np.nan, 20.0]) for _ in contents],
    }

    def simulate(step_by_step: bool) -> tuple[RunResult, EvictingKV]:
        kv = memory(name, 40)
        simulation = build_rows(rows, kv=kv, step_by_step=step_by_step, **options)
        if name == "belady":
            kv.policy.foresee(next_uses(simulation.columns.content_spans, [prompt for prompt, _ in rows]))  # type: ignore[attr-defined]
        result = simulation.run()
        kv.check_integrity()
        assert kv.num_free == kv.num_usable
        return result, kv

    (fast, one), (stepped, other) = simulate(False), simulate(True)
    for key, column in fast.requests.items():
        if column.dtype != object:
            assert column.tobytes() == stepped.requests[key].tobytes(), key
    assert (one.num_evicted, one.num_idle) == (other.num_evicted, other.num_idle)
    assert fast.replicas[0].num_skipped_steps > 0


def test_no_policy_beats_the_oracle_by_more_than_a_little() -> None:
    """Zipf-like contents over ten seeds: belady has the most hits of all, lru beats fifo."""
    total = dict.fromkeys(EVICTIONS, 0)
    for seed in range(10):
        draw = random.Random(seed)
        heads = [int(draw.paretovariate(0.8)) for _ in range(150)]
        for name in EVICTIONS:
            total[name] += hits(name, 14, heads)
    assert total["belady"] == max(total.values())
    assert total["lru"] > total["fifo"]


def test_an_unknown_policy_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown eviction policy 'lruu' \(did you mean 'lru'\?\)"):
        Paged("lruu")


def test_eviction_through_the_configuration() -> None:
    """The oracle gets to know the workload, and hits at least as much as lru."""
    found = {}
    for name in ("lru", "belady"):
        values = {
            "workload": {
                "num_requests": 80,
                "arrivals": {"process": "constant", "rate": 2.0},
                "prompt_tokens": {"distribution": "fixed", "value": 88},
                "output_tokens": {"distribution": "fixed", "value": 4},
                "prefix": {"groups": 9, "tokens": 512},
            },
            "cluster": {
                "pools": [
                    {
                        "model": "llama-3.1-8b",
                        "gpu": "h100-sxm",
                        "max_model_len": 1000,
                        "kv_cache": {"num_blocks": 220, "eviction": name},
                    }
                ]
            },
        }
        summary = run(experiment_from_values(values, Path())).summary
        found[name] = summary["prefix_cache"]["hit_rate"]
    assert found["belady"] > found["lru"] > 0
