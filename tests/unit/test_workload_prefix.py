"""Block ids of prompts: ideal hits by hand, shared prefixes, sessions, token chains."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.workload.base import Ragged, Workload
from sim.workload.prefix import (
    TokenChain,
    concatenate,
    ideal_hits,
    num_chain_breaks,
    ragged,
    ranges,
    session_ids,
    shared_prefixes,
    take,
)


def workload(rows: list[list[int]], tokens: list[int], block_size: int = 10, output: Ragged | None = None) -> Workload:
    n, ones = len(rows), np.ones(len(rows), dtype=np.int64)
    return Workload(
        np.arange(n, dtype=float), np.array(tokens), ones, ones, hash_ids=ragged(rows), output_hash_ids=output,
        hash_block_size=block_size,
    )  # fmt: skip


def test_ideal_hits_by_hand() -> None:
    """Leading known blocks only; a partial last block counts its tokens when the whole prompt was known."""
    hits = ideal_hits(workload([[1, 2, 3], [1, 2, 4], [1, 2, 4], [9, 2], [1]], [25, 28, 28, 15, 10]))
    assert hits.blocks.tolist() == [0, 2, 3, 0, 1]
    assert hits.tokens.tolist() == [0, 20, 28, 0, 10]
    assert hits.whole.tolist() == [0, 0, 1, 0, 1]


def test_what_was_generated_is_known_to_later_prompts() -> None:
    hits = ideal_hits(workload([[1], [1, 5, 6]], [10, 30], output=ragged([[5], []])))
    assert hits.blocks.tolist() == [0, 2]


def test_ids_seen_only_later_are_no_hits() -> None:
    assert ideal_hits(workload([[2, 3], [1, 3], [2, 3]], [20, 20, 20])).blocks.tolist() == [0, 0, 2]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 5), max_size=4), min_size=1, max_size=12))
def test_ideal_hits_agree_with_a_plain_loop(rows: list[list[int]]) -> None:
    seen: set[int] = set()
    expected = []
    for row in rows:
        known = 0
        while known < len(row) and row[known] in seen:
            known += 1
        expected.append(known)
        seen.update(row)
    assert ideal_hits(workload(rows, [10 * max(1, len(row)) for row in rows])).blocks.tolist() == expected


def test_ids_that_follow_different_ids_are_counted_as_breaks() -> None:
    assert num_chain_breaks(ragged([[1, 2, 3], [1, 2, 4], [5]])) == 0
    assert num_chain_breaks(ragged([[1, 2], [3, 2], [2]])) == 2


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4), min_size=1, max_size=8), st.data())
def test_taking_and_joining_rows_keeps_them(rows: list[list[int]], data: st.DataObject) -> None:
    index = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10))
    taken = take(ragged(rows), np.array(index, dtype=np.int64))
    assert [taken.row(i).tolist() for i in range(len(taken))] == [rows[i] for i in index]
    both = concatenate([ragged(rows), taken])
    assert [both.row(i).tolist() for i in range(len(both))] == rows + [rows[i] for i in index]


def test_ranges() -> None:
    assert ranges(np.array([5, 9, 0]), np.array([2, 0, 3])).tolist() == [5, 6, 0, 1, 2]


def test_shared_prefixes_share_exactly_their_whole_blocks() -> None:
    ids = shared_prefixes(np.array([0, 1, 0]), 25, np.array([30, 31, 45]), 10, 2)
    rows = [ids.row(i).tolist() for i in range(3)]
    assert [len(row) for row in rows] == [3, 4, 5]
    assert rows[0][:2] == rows[2][:2] != rows[1][:2]
    own = rows[0][2:] + rows[1] + rows[2][2:]
    assert len(set(own)) == len(own)


def test_a_turn_begins_with_the_blocks_of_the_turn_before() -> None:
    """Turn 1: 25 prompt + 10 output; turn 2: 40 prompt. Whole blocks known to turn 2: 2 of the prompt, then 1 more."""
    ids = session_ids(np.array([25, 40]), np.array([10, 7]), np.array([-1, 0]), 10)
    one, more, two = ids.hash_ids.row(0).tolist(), ids.output_hash_ids.row(0).tolist(), ids.hash_ids.row(1).tolist()
    assert (len(one), len(more), len(two)) == (3, 1, 4)
    assert two[:3] == one[:2] + more
    assert one[2] not in two  # the partial block was another content


def test_two_sessions_share_nothing() -> None:
    ids = session_ids(np.array([25, 25, 60]), np.array([10, 10, 5]), np.array([-1, -1, 0]), 10)
    assert not set(ids.hash_ids.row(1)) & {*ids.hash_ids.row(0), *ids.hash_ids.row(2), *ids.output_hash_ids.row(0)}


def test_token_chains_depend_on_everything_before() -> None:
    chain = TokenChain(2)
    assert chain.ids([1, 2, 3, 4]) == chain.ids([1, 2, 3, 4])
    assert chain.ids([9, 9, 3, 4])[1] != chain.ids([1, 2, 3, 4])[1]
    prompt, output = chain.prompt_and_output([1, 2, 3], [4, 5, 6])
    assert len(prompt) == 2
    assert output == chain.ids([1, 2, 3, 4, 5, 6])[1:]
