"""Worked examples of the vLLM V1 scheduler (0.33.0), each step written out: EX-V1 to V7, V10, V11 of the engine notes.

The tables were taken from the real scheduler, synchronous, blocks of 16 tokens, prefix caching on, unless said
otherwise. Step n of a table is the call at n - 1 seconds (a step takes one second here).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from scenarios import Row, Scenario, make_simulation

from sim.batch import BatchBuilder
from sim.replica import Replica
from sim.request import Phase
from sim.result import RunResult

Spec = tuple[int, int]  # prompt tokens, declared = true output tokens

ENGINE = Scenario(
    rows=(),
    cost="second",
    hashed=True,
    hash_block_size=16,
    block_size=16,
    num_blocks=11,
    max_num_seqs=8,
    max_num_batched_tokens=64,
    max_model_len=1000,
    depth=1,
)


@dataclass(frozen=True)
class Call:
    """What one scheduling call did; requests by row."""

    time: float
    scheduled: dict[int, int]
    hits: dict[int, int]
    preempted: list[int]
    running: list[int]
    waiting: list[int]
    free_blocks: int


@dataclass
class Replay:
    """A finished run, call by call."""

    result: RunResult
    calls: list[Call] = field(default_factory=list)

    @property
    def finished(self) -> dict[int, float]:
        return dict(enumerate(self.result.requests["finish_time"].tolist()))


def play(scenario: Scenario) -> Replay:
    """Run it step by step and note every call."""
    simulation, calls = make_simulation(scenario, step_by_step=True), list[Call]()
    replica = simulation.replicas[0]
    replica.observer = lambda builder: calls.append(call_of(replica, builder))
    return Replay(simulation.run(), calls)


def call_of(replica: Replica, builder: BatchBuilder) -> Call:
    chunks = {seq.row: tokens for seq, tokens in builder.chunks}
    decodes = {seq.row: 1 for seq in replica.running.values() if builder.decoded and seq.phase is Phase.DECODE}
    running = [seq.row for seq in replica.running.values()]
    return Call(
        time=builder.now,
        scheduled={row: (chunks | decodes)[row] for row in running if row in chunks or row in decodes},
        hits={seq.row: seq.prefix_tokens for seq in builder.admitted},
        preempted=[seq.row for seq in builder.preempted],
        running=running,
        waiting=[seq.row for seq in replica.waiting],
        free_blocks=replica.kv.num_free,
    )


def run(specs: dict[str, Spec], rows: dict[str, dict[str, Any]] | None = None, **changes: Any) -> Replay:
    """Requests that share nothing; `rows` gives further fields by name."""
    more = rows or {}
    requests = tuple(Row(prompt=p, output=o, **more.get(name, {})) for name, (p, o) in specs.items())
    return play(replace(ENGINE, rows=requests, **changes))


def text(call: Call, names: list[str]) -> str:
    """`scheduled | preempted | running | waiting | free`, as in the tables."""
    scheduled = " ".join(f"{names[row]}:{tokens}" for row, tokens in call.scheduled.items())
    lists = (" ".join(names[row] for row in rows) for rows in (call.preempted, call.running, call.waiting))
    return " | ".join([scheduled, *lists, str(call.free_blocks)])


def table(replayed: Replay, names: list[str]) -> dict[int, str]:
    """Rows by step."""
    return {int(call.time) + 1: text(call, names) for call in replayed.calls}


def steps(*rows: tuple[int, int, str]) -> dict[int, str]:
    """A table whose rows stand for steps first to last."""
    return {step: row for first, last, row in rows for step in range(first, last + 1)}


def test_ex_v1_budget_split_and_head_of_line_blocking() -> None:
    """D needs 7 blocks and waits; E, which would fit, waits behind it for 20 steps."""
    specs = {"A": (40, 20), "B": (60, 4), "C": (16, 8), "D": (100, 3), "E": (8, 2)}
    replayed = run(specs, max_num_seqs=4)
    expected = steps(
        (1, 1, "A:40 B:24 |  | A B | C D E | 5"),
        (2, 2, "A:1 B:36 C:16 |  | A B C | D E | 2"),
        (3, 5, "A:1 B:1 C:1 |  | A B C | D E | 1"),
        (6, 9, "A:1 C:1 |  | A C | D E | 5"),
        (10, 20, "A:1 |  | A | D E | 6"),
        (21, 21, "D:64 |  | D | E | 6"),
        (22, 22, "D:36 E:8 |  | D E |  | 2"),
    )
    found = table(replayed, list(specs))
    assert {step: found[step] for step in expected} == expected
    assert replayed.finished[1] == 5
    assert replayed.finished[0] == 20


PREEMPTED = {"R1": (30, 12), "R2": (31, 6), "R3": (14, 12), "R4": (46, 4), "R5": (16, 3)}


def test_ex_v2_preemption_and_resume() -> None:
    """Victim is the newest, also when it asks itself; no admission in that step; its freed blocks are hit again."""
    replayed = run(PREEMPTED, num_blocks=9)
    assert table(replayed, list(PREEMPTED)) == steps(
        (1, 1, "R1:30 R2:31 R3:3 |  | R1 R2 R3 | R4 R5 | 3"),
        (2, 2, "R1:1 R2:1 R3:11 R4:46 |  | R1 R2 R3 R4 | R5 | 0"),
        (3, 3, "R1:1 R2:1 R3:1 | R4 | R1 R2 R3 | R4 R5 | 2"),
        (4, 4, "R1:1 R2:1 R3:1 |  | R1 R2 R3 | R4 R5 | 1"),
        (5, 6, "R1:1 R2:1 R3:1 |  | R1 R2 R3 | R4 R5 | 0"),
        (7, 7, "R1:1 R3:1 R4:47 |  | R1 R3 R4 | R5 | 0"),
        (8, 8, "R1:1 R3:1 R4:1 |  | R1 R3 R4 | R5 | 0"),
        (9, 9, "R1:1 R3:1 | R4 | R1 R3 | R4 R5 | 3"),
        (10, 12, "R1:1 R3:1 |  | R1 R3 | R4 R5 | 3"),
        (13, 13, "R3:1 R4:1 R5:16 |  | R3 R4 R5 |  | 1"),
        (14, 15, "R5:1 |  | R5 |  | 6"),
    )
    hits = {call.time + 1: call.hits for call in replayed.calls if 3 in call.hits}
    assert hits == {2: {3: 0}, 7: {3: 0}, 13: {3: 48, 4: 0}}


def test_ex_v2_without_prefix_caching_takes_one_step_longer() -> None:
    """All 49 known tokens of R4 are computed again, so R5 gets only 14 of its 16 in step 13."""
    replayed = run(PREEMPTED, num_blocks=9, prefix_caching=False)
    found = table(replayed, list(PREEMPTED))
    assert found[13].startswith("R3:1 R4:49 R5:14 ")
    assert max(found) == 16


@pytest.mark.parametrize(
    ("reserve", "expected"),
    [
        (True, ["L1:64", "L1:36", "L1:1", "L1:1", "L2:64", "L2:36", "L2:1", "L2:1"]),
        (False, ["L1:64", "L1:36 L2:28", "L1:1", "L1:1", "L2:64", "L2:20", "L2:1", "L2:1"]),
    ],
)
def test_ex_v3_reserve_full_isl(reserve: bool, expected: list[str]) -> None:
    """Without it L2 enters with a first chunk, preempts itself in step 3 and later hits the one block it had filled."""
    specs = {"L1": (100, 3), "L2": (100, 3)}
    replayed = run(specs, reserve_full_isl=reserve)
    rows = [row.split(" | ") for row in table(replayed, list(specs)).values()]
    assert [row[0] for row in rows] == expected
    assert [row[1] for row in rows] == ["", "", "" if reserve else "L2", *[""] * 5]


@pytest.mark.parametrize(("watermark", "step"), [(2, 4), (0, 1)])
def test_ex_v4_watermark(watermark: int, step: int) -> None:
    """int(0.2 * 11) = 2 blocks must stay free while others run: W3 waits until W1 and W2 have ended."""
    specs = {"W1": (60, 3), "W2": (60, 3), "W3": (30, 3)}
    replayed = run(specs, watermark_blocks=watermark, max_num_batched_tokens=256)
    admitted = {row: call.time + 1 for call in replayed.calls for row in call.hits}
    assert admitted == {0: 1, 1: 1, 2: step}


def test_ex_v5_priority() -> None:
    """Smaller is more important; the victim is the least important, and one that preempts itself does not end
    the pass.
    """
    specs = {"P1": (30, 6), "P2": (30, 6), "P3": (30, 6), "P4": (16, 3)}
    ranks = {"P1": 5, "P2": 1, "P3": 9, "P4": 0}
    rows: dict[str, dict[str, Any]] = {name: {"priority": rank} for name, rank in ranks.items()}
    rows["P4"]["gap"] = 0.5
    policies = {"scheduler": "priority", "preemption": "lowest_priority"}
    replayed = run(specs, rows, num_blocks=8, max_num_batched_tokens=256, **policies)
    expected = steps(
        (1, 1, "P2:30 P1:30 P3:30 |  | P2 P1 P3 |  | 1"),
        (2, 2, "P2:1 P1:1 P3:1 P4:16 |  | P2 P1 P3 P4 |  | 0"),
        (3, 3, "P2:1 P1:1 P4:1 | P3 | P2 P1 P4 | P3 | 1"),
        (4, 4, "P2:1 P4:1 | P1 | P2 P4 | P1 P3 | 2"),
        (5, 6, "P2:1 P1:1 |  | P2 P1 | P3 | 1"),
        (7, 7, "P1:1 P3:32 |  | P1 P3 |  | 2"),
    )
    found = table(replayed, list(specs))
    assert {step: found[step] for step in expected} == expected
    assert next(call.hits for call in replayed.calls if call.time == 4) == {0: 32}


def test_ex_v6_long_prefill_threshold() -> None:
    """At most 64 tokens of one prompt a step, so G2 gets in; not applied to a request that is alone."""
    settings: dict[str, Any] = {"max_num_batched_tokens": 128, "long_prefill_token_threshold": 64, "num_blocks": 101}
    both = run({"G1": (200, 3), "G2": (20, 3)}, **settings)
    scheduled = [list(call.scheduled.values()) for call in both.calls]
    assert scheduled == [[64, 20], [64, 1], [64, 1], [8], [1], [1]]
    alone = run({"G1": (200, 3)}, **settings)
    assert [list(call.scheduled.values()) for call in alone.calls] == [[128], [72], [1], [1]]


def test_ex_v10_no_surplus_step_for_a_declared_length() -> None:
    """Two batches in flight: after the last token is scheduled nothing is, though its results are still to come."""
    replayed = run({"A": (40, 4), "B": (40, 3)}, num_blocks=101, depth=2)
    batches = [list(call.scheduled.items()) for call in replayed.calls if call.scheduled]
    assert batches == [[(0, 40), (1, 24)], [(0, 1), (1, 16)], [(0, 1), (1, 1)], [(0, 1), (1, 1)]]
    assert replayed.finished == {0: 4, 1: 4}


def test_ex_v11_the_model_length_stops_a_request() -> None:
    """28 prompt tokens and max_model_len 32: 4 outputs of the 100 declared, then it ends (finished, not failed)."""
    replayed = run({"A": (28, 100)}, max_model_len=32)
    requests = replayed.result.requests
    assert requests["num_output_tokens"].tolist() == [4]
    assert replayed.finished == {0: 4}
    assert replayed.result.replicas[0].num_steps == 4


# --- EX-V7: the prefix cache and the order of the free list -----------------------------------------------------------
# X is the first 48 tokens of a stream; a row that has fewer of them goes on with tokens of its own.

A, B = Row(prompt=48, shared=48, output=3), Row(prompt=48, shared=48, output=2)
C = Row(prompt=49, shared=48, output=2)
D, E, F = Row(prompt=60, shared=40, output=2), Row(prompt=100, output=2), B
PROBE = C  # hits up to all 48 tokens of X


def one_after_another(*rows: Row) -> list[tuple[int, int]]:
    """(hit tokens, scheduled tokens) of the first call of each; one comes every 100 s, long after the one
    before ended.
    """
    spaced = tuple(replace(row, gap=100.0) for row in rows)
    replayed = play(replace(ENGINE, rows=spaced, max_num_batched_tokens=256))
    first = {row: call for call in replayed.calls for row in call.hits}
    return [(first[row].hits[row], first[row].scheduled[row]) for row in range(len(rows))]


def taker(num_blocks: int) -> Row:
    """An unrelated request that takes exactly so many blocks: its only output token is never computed."""
    return Row(prompt=16 * num_blocks, output=1)


def test_ex_v7_hits_in_the_course_of_the_example() -> None:
    """The last block of a full hit is computed again; E destroys both copies of X's third block, and no more."""
    assert one_after_another(A, B, C, D, E, F) == [(0, 48), (32, 16), (48, 1), (32, 28), (0, 100), (32, 16)]


@pytest.mark.parametrize(("taken", "hit"), [(6, 48), (7, 48), (8, 32), (9, 16), (10, 0)])
def test_ex_v7_free_list_after_a(taken: int, hit: int) -> None:
    """4 5 6 7 8 9 10 3 2 1: blank blocks first, then X from its tail."""
    assert one_after_another(A, taker(taken), PROBE)[2][0] == hit


@pytest.mark.parametrize(("taken", "hit"), [(7, 48), (8, 32), (9, 16), (10, 0)])
def test_ex_v7_free_list_after_b(taken: int, hit: int) -> None:
    """5 6 7 8 9 10 3 4 2 1: two copies of the third block; the second one serves until it is taken too."""
    assert one_after_another(A, B, taker(taken), PROBE)[3][0] == hit


@pytest.mark.parametrize(("taken", "hit"), [(7, 48), (8, 32), (9, 16), (10, 0)])
def test_ex_v7_free_list_after_c(taken: int, hit: int) -> None:
    """5 6 7 8 9 10 4 3 2 1: the hit of C has moved block 3 behind its copy."""
    assert one_after_another(A, B, C, taker(taken), PROBE)[4][0] == hit


def test_ex_v7_free_list_after_d() -> None:
    """6 7 8 9 10 4 3 5 2 1: D's own third block (5) lies behind both copies of X's, which 7 blocks destroy."""
    for taken, hits_x, hits_d in ((5, 48, 48), (6, 48, 48), (7, 32, 48), (8, 32, 32), (9, 16, 16), (10, 0, 0)):
        assert one_after_another(A, B, C, D, taker(taken), PROBE)[5][0] == hits_x
        # D's third block holds 8 tokens of X and 8 of D: only D itself, come again, could hit it.
        again = sessions_of_d(taken)
        assert again == hits_d


def sessions_of_d(taken: int) -> int:
    """Hit tokens of a second turn of D after `taken` blocks were taken."""
    rows = (A, B, C, D, taker(taken), Row(prompt=20, follows=2, output=1))
    spaced = tuple(replace(row, gap=100.0, delay=200.0 if row.follows else 0.0) for row in rows)
    replayed = play(replace(ENGINE, rows=spaced, max_num_batched_tokens=256))
    return int(replayed.result.requests["num_cached_tokens"][5])


def test_ex_v7_two_copies_in_one_step() -> None:
    """Blocks are registered when scheduled: the second of two equal prompts shares them within the same step."""
    call = play(replace(ENGINE, rows=(A, A), max_num_batched_tokens=256)).calls[0]
    assert call.scheduled == {0: 48, 1: 16}
    assert call.hits == {0: 0, 1: 32}
    assert call.free_blocks == 6


def test_the_first_registered_copy_is_hit() -> None:
    """Of two copies of a block the look-up takes the older one, although it is idle and the newer one is in use.

    X has one id here. A = X has ended. B = X again holds blocks 1, 2 and its own third, 4, and decodes into 5. C = X +
    1 hits 1, 2 and 3 and takes one block for its last token: 6 blocks in use, 4 free.
    """
    b = replace(B, output=15, gap=100.0)
    rows = (A, b, replace(C, gap=5.0))
    replayed = play(replace(ENGINE, rows=rows, max_num_batched_tokens=256, hash_block_size=48))
    call = next(call for call in replayed.calls if 2 in call.hits)
    assert call.hits == {2: 48}
    assert call.running == [1, 2]
    assert call.free_blocks == 4
