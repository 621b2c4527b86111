"""Contiguous KV memory: placement in one address range, reservations, and where the memory went."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
from engine_runs import build_rows, run_rows

from policies.block_allocator import BLOCK_ALLOCATORS
from policies.block_allocator.contiguous_max import ContiguousMax
from policies.block_allocator.contiguous_oracle import ContiguousOracle
from policies.block_allocator.contiguous_pow2 import ContiguousPow2
from sim.kv.placement import Buddy, FirstFit
from sim.memory_shares import SHARES, concurrency, memory_shares
from sim.result import RunResult


def test_buddy_splits_a_range_that_is_no_power_of_two_into_aligned_blocks() -> None:
    """15,700 slots hold seven reservations of 2,048 (PagedAttention's Orca (Max)), whatever lies beside them."""
    buddy = Buddy(15_700)
    starts = []
    while buddy.largest() >= 2048:
        starts.append(buddy.place(2048))
    assert len(starts) == 7
    assert all(start % 2048 == 0 for start in starts)
    for start in starts:
        buddy.free(start, 2048)
    assert buddy.largest() == 8192


def test_buddy_merges_only_buddies() -> None:
    buddy = Buddy(8)
    first, second, third, fourth = (buddy.place(2) for _ in range(4))
    assert (first, second, third, fourth) == (0, 2, 4, 6)
    buddy.free(second, 2)
    buddy.free(third, 2)
    assert buddy.largest() == 2  # neighbours, but halves of different blocks
    buddy.free(first, 2)
    assert buddy.largest() == 4


def test_first_fit_takes_the_lowest_hole_and_merges_neighbours() -> None:
    holes = FirstFit(10)
    starts = [holes.place(size) for size in (3, 2, 4)]
    assert starts == [0, 3, 5]
    holes.free(0, 3)
    assert holes.place(2) == 0
    assert holes.largest() == 1
    holes.free(3, 2)
    assert holes.largest() == 3  # [2, 5)
    holes.free(0, 2)
    holes.free(5, 4)
    assert holes.largest() == 10


@pytest.mark.parametrize("kind", [Buddy, FirstFit])
def test_places_never_overlap_and_everything_comes_back(kind: Any) -> None:
    draw = random.Random(5)
    for _ in range(30):
        size = draw.randint(1, 400)
        placement, held = kind(size), []
        whole = placement.largest()
        for _ in range(200):
            wanted = draw.randint(1, max(1, size // 3))
            if placement.cost(wanted) <= placement.largest() and draw.random() < 0.6:
                held.append((placement.place(wanted), placement.cost(wanted), wanted))
            elif held:
                start, _, wanted = held.pop(draw.randrange(len(held)))
                placement.free(start, wanted)
            taken = sorted((start, start + cost) for start, cost, _ in held)
            assert all(end <= start for (_, end), (start, _) in itertools.pairwise(taken))
            assert not taken or taken[-1][1] <= size
        for start, _, wanted in held:
            placement.free(start, wanted)
        assert placement.largest() == whole


def contiguous(policy: Any, num_slots: int, rows: list[tuple[int, int]], **options: Any) -> RunResult:
    """A run on `num_slots` slots of one token."""
    return run_rows(rows, kv=policy.build(num_slots + 1, 1, False), **{"budget": 10_000, "num_seqs": 100, **options})


def test_eta_is_mean_length_over_reserved_length() -> None:
    """Declared 4,096, actual 300: 7.3 % of the memory is used, one request in 13.7 places."""
    rows = [(100, 200)] * 40
    result = contiguous(ContiguousMax("model"), 15_700, rows, max_model_len=4096)
    found = concurrency(result.replicas, result.end_time)
    assert found["eta"] == pytest.approx(300 / 4096)
    assert round(100 * float(found["eta"] or 0), 1) == 7.3
    assert found["concurrency_ceiling"] == pytest.approx(15_700 / 4096)
    shares = memory_shares(result.replicas)
    assert shares["reserved_share"] + shares["token_share"] < 300 / 4096


def test_shares_of_one_request_by_hand() -> None:
    """Prompt 4, outputs 4, 16 slots declared; steps of a second write 4, 5, 6, 7 slots: 22 of 64 slot seconds."""
    result = contiguous(ContiguousMax(), 16, [(4, 4)], declared=[12])
    shares = memory_shares(result.replicas)
    assert shares["token_share"] == 22 / 64
    assert shares["reserved_share"] == (4 * 8 - 22) / 64
    assert shares["internal_share"] == pytest.approx(4 * 8 / 64)
    assert shares["external_share"] == 0.0


def test_rounding_of_the_buddy_system_is_external() -> None:
    """Five slots in a block of eight: three are lost for as long as the request stays."""
    result = contiguous(ContiguousOracle(), 8, [(3, 2)])
    shares = memory_shares(result.replicas)
    assert shares["external"]["rounding"] == 3 / 8
    assert shares["internal_share"] == 0.0


def test_scattered_free_memory_counts_as_fragmented_while_a_request_is_refused() -> None:
    """12 slots hold 4 + 4 + 4; the outer two end after 2 steps, 8 slots are free in two pieces, 6 are wanted in one."""
    rows = [(2, 2), (1, 3), (2, 2), (5, 1)]
    policy = ContiguousOracle("first_fit")
    result = contiguous(policy, 12, rows, arrivals=[0.0, 0.0, 0.0, 1.5])
    memory = result.replicas[0].memory
    assert memory.fragmented_block_seconds == 8.0  # one second, from the end of the two to the end of the middle one
    assert memory.remainder_block_seconds == 0.0
    assert result.requests["first_scheduled_time"][3] == 3.0
    paged = run_rows(rows, num_blocks=13, block_size=1, budget=10_000, arrivals=[0.0, 0.0, 0.0, 1.5])
    assert paged.requests["first_scheduled_time"][3] == 2.0


def test_too_little_free_memory_is_the_remainder() -> None:
    result = contiguous(ContiguousOracle("first_fit"), 10, [(2, 4), (6, 2)])
    memory = result.replicas[0].memory
    assert (memory.fragmented_block_seconds, memory.remainder_block_seconds) == (0.0, 4 * 4.0)


def test_a_cancelled_refused_request_wants_no_memory_any_more() -> None:
    result = contiguous(ContiguousOracle("first_fit"), 10, [(2, 4), (6, 2)], cancel_after=[np.nan, 1.5])
    assert result.replicas[0].memory.remainder_block_seconds == 4 * 1.5


def test_power_of_two_reserves_the_output_rounded_up() -> None:
    """25 output tokens reserve 32 (the paper's example); nothing else differs from the oracle."""
    result = contiguous(ContiguousPow2("first_fit"), 64, [(10, 25)])
    assert result.replicas[0].peak_used_blocks == 42


def test_a_reservation_that_no_empty_memory_could_place_is_unservable() -> None:
    result = contiguous(ContiguousMax(), 12, [(4, 2), (4, 2)], declared=[5, 2])
    assert result.requests["reject_reason"].tolist() == [
        "reserves 9 KV blocks in one piece, an empty replica has 8",
        None,
    ]


CONTIGUOUS = [name for name in BLOCK_ALLOCATORS if name.startswith("contiguous")]


@pytest.mark.parametrize("name", CONTIGUOUS)
@pytest.mark.parametrize("placement", ["buddy", "first_fit"])
@pytest.mark.parametrize("depth", [1, 2])
def test_fast_forward_is_exact_and_shares_add_up(name: str, placement: str, depth: int) -> None:
    draw = random.Random(hash((name == "contiguous_max", depth)) % 100)
    rows = [(draw.randint(1, 60), draw.randint(1, 60)) for _ in range(60)]
    options: dict[str, Any] = {
        "declared": [output + draw.choice([0, 0, 9, 50]) for _, output in rows],
        "arrivals": np.cumsum([draw.choice([0.0, 0.5, 3.0]) for _ in rows]).tolist(),
        "cancel_after": [draw.choice([np.nan, np.nan, 40.0]) for _ in rows],
        "depth": depth,
    }
    policy = BLOCK_ALLOCATORS[name](placement=placement)
    fast = contiguous(policy, 300, rows, **options)
    stepped = contiguous(policy, 300, rows, step_by_step=True, **options)
    assert fast.replicas[0].num_skipped_steps > 0
    for key, column in fast.requests.items():
        assert column.tolist() == stepped.requests[key].tolist() or column.tobytes() == stepped.requests[key].tobytes()
    assert fast.replicas[0].memory == stepped.replicas[0].memory
    assert fast.replicas[0].num_preemptions == 0
    shares = memory_shares(fast.replicas)
    assert sum(shares[share] for share in SHARES) == pytest.approx(1.0, abs=1e-12)
    assert sum(shares["external"].values()) == pytest.approx(shares["external_share"])
    if name == "contiguous_oracle":
        assert shares["internal_share"] < 0.05  # requests that are cancelled, and slots of last tokens


def test_better_knowledge_of_lengths_runs_more_at_once() -> None:
    """The ordering of the PagedAttention paper, max < pow2 < oracle < paged, in token states and running requests."""
    draw = random.Random(2)
    rows = [(draw.randint(5, 300), draw.randint(5, 500)) for _ in range(150)]
    tokens, running = [], []
    for policy in (ContiguousMax("model"), ContiguousPow2(), ContiguousOracle(), None):
        kv = None if policy is None else policy.build(8001, 1, False)
        result = run_rows(rows, kv=kv, num_blocks=501, budget=2000, num_seqs=100, max_model_len=2048)
        tokens.append(memory_shares(result.replicas)["token_share"])
        running.append(concurrency(result.replicas, result.end_time)["mean_running"])
    assert tokens == sorted(tokens)
    assert running == sorted(running)
    assert tokens[-1] > 0.9


def test_memory_is_whole_again_after_a_run() -> None:
    simulation = build_rows([(20, 10)] * 9, kv=ContiguousMax().build(101, 1, False), budget=500)
    simulation.run()
    kv = simulation.replicas[0].kv
    kv.check_integrity()
    assert kv.num_free == 100
