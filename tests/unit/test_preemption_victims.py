"""Who is preempted, how each preemption is explained, and that nobody is preempted for ever."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from engine_runs import build_rows, play, run_rows

from policies.preemption import PREEMPTIONS
from policies.preemption.oldest import Oldest
from policies.scheduler.fcfs import Fcfs


def candidate(order: int, **facts: Any) -> Any:
    """A running sequence as a preemption policy sees it."""
    known = {
        "row": order,
        "order": order,
        "arrival_time": float(order),
        "priority": 0,
        "num_prompt_tokens": 10,
        "num_known": 10,
        "num_computed": 10,
        "num_blocks": 1,
        "max_output_tokens": 100,
        "predicted_output_tokens": None,
    }
    return SimpleNamespace(**{**known, **facts})


CANDIDATES = [
    candidate(0, num_blocks=3, num_computed=12),
    candidate(1, num_blocks=2, num_computed=30, priority=4),
    candidate(2, num_blocks=2, num_computed=20, predicted_output_tokens=500.0),
    candidate(3, num_blocks=5, num_computed=14),
]


@pytest.mark.parametrize(
    ("name", "victim"),
    [
        ("newest", 3),
        ("oldest", 0),
        ("lowest_priority", 1),
        ("fewest_blocks", 2),  # two with 2 blocks: the one admitted last
        ("most_output", 1),  # 20 tokens generated
        ("longest_remaining", 2),  # 490 to come; 98, 80, 96 by declaration
    ],
)
def test_each_policy_picks_its_victim(name: str, victim: int) -> None:
    assert PREEMPTIONS[name]().victim(CANDIDATES).order == victim


def test_a_prefill_that_is_computed_again_counts_what_it_generated_before() -> None:
    again = [candidate(0, num_known=40, num_computed=0), candidate(1, num_computed=15)]
    assert PREEMPTIONS["most_output"]().victim(again).order == 0


def test_a_bound_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="max_preemptions must be at least 1 or null"):
        Oldest(max_preemptions=0)


def test_a_preemption_names_cause_asker_victim_and_its_price() -> None:
    """EX-V2 up to its first preemption: R2 needs a third block in step 3, R4 (46 + 1 tokens) loses its three."""
    rows = [(30, 12), (31, 6), (14, 12), (46, 4), (16, 3)]
    result = run_rows(rows, num_blocks=9, block_size=16, depth=1, budget=64, num_seqs=8, prefix_caching=False)
    table = result.preemptions
    assert table is not None
    first = {name: column[0] for name, column in table.items()}
    assert first["time"] == 2.0
    assert (first["cause"], first["asker"], first["row"]) == ("decode_block", 1, 3)
    assert (first["num_lost_tokens"], first["num_freed_blocks"]) == (46, 3)
    assert first["num_recomputed_tokens"] == 47  # its prompt and the token it had been given
    assert first["stalled_duration"] == 5.0  # computed again in step 7
    assert first["lost_seconds"] == 1.0  # any step takes a second here


def stalls_by_row(result: Any) -> dict[int, float]:
    found: dict[int, float] = {}
    for row, stall in zip(result.preemptions["row"], result.preemptions["stalled_duration"], strict=True):
        found[int(row)] = found.get(int(row), 0.0) + float(stall)
    return found


@pytest.mark.parametrize("name", PREEMPTIONS)
@pytest.mark.parametrize("depth", [1, 2])
def test_stalls_add_up_to_the_preempted_part_of_each_request(name: str, depth: int) -> None:
    rows = [(5 + 7 * i % 23, 10 + 11 * i % 40) for i in range(30)]
    result = run_rows(
        rows, num_blocks=25, block_size=4, depth=depth, budget=32, num_seqs=8, preemption=PREEMPTIONS[name]()
    )
    assert result.preemptions is not None
    spent = {row: float(x) for row, x in enumerate(result.requests["preempted_duration"]) if x}
    assert {row: stall for row, stall in stalls_by_row(result).items() if stall} == spent
    counts = np.bincount(result.preemptions["row"], minlength=len(rows))
    assert counts.tolist() == result.requests["num_preemptions"].tolist()
    again = np.bincount(result.preemptions["row"], result.preemptions["num_recomputed_tokens"], len(rows))
    assert again.tolist() == result.requests["num_recomputed_tokens"].tolist()


@pytest.mark.parametrize("name", PREEMPTIONS)
@pytest.mark.parametrize("bound", [1, 3])
def test_nobody_is_preempted_more_often_than_the_bound(name: str, bound: int) -> None:
    """Memory for barely one long request, chunked prompts, admission without a look at the whole prompt."""
    rows = [(40 + i % 3, 30) for i in range(12)]
    policy = PREEMPTIONS[name](max_preemptions=bound)
    result = run_rows(
        rows, num_blocks=20, block_size=4, depth=1, budget=8, num_seqs=6, reserve_full_isl=False, preemption=policy
    )
    assert result.requests["num_preemptions"].max() == bound
    assert result.requests["num_output_tokens"].tolist() == [30] * 12


def test_without_the_bound_the_oldest_rule_thrashes_for_ever() -> None:
    """Two requests that need 38 of 52 tokens each, prompts in chunks of 8, evict one another for ever."""
    options: dict[str, Any] = {"num_blocks": 14, "block_size": 4, "num_seqs": 2, "reserve_full_isl": False}
    rows = [(30, 8), (30, 8)]
    endless = build_rows(rows, scheduler=Fcfs(8), preemption=Oldest(max_preemptions=None), **options)
    play(endless, until=1000.0)
    assert endless.replicas[0].num_preemptions > 100
    assert len(endless.records) == 0
    guarded = run_rows(rows, scheduler=Fcfs(8), preemption=Oldest(max_preemptions=3), **options)
    assert guarded.requests["num_output_tokens"].tolist() == [8, 8]
    assert guarded.requests["num_preemptions"].max() == 3
