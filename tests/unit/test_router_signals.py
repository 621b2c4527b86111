"""What routers are told: prefix indices against plain sets, cache events against the memory, old pictures, prefills."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenarios import Row, Scenario, make_simulation

from policies.router.routed_prefixes import PromptTree
from sim.engine import Simulation
from sim.prefix_index import PrefixIndex

SLOW = settings(max_examples=60, deadline=None, derandomize=True, database=None)


@SLOW
@given(st.integers(1, 40), st.lists(st.tuples(st.integers(0, 11), st.integers(0, 39), st.booleans()), max_size=120))
def test_the_index_is_a_set_of_holders(num_replicas: int, changes: list[tuple[int, int, bool]]) -> None:
    """Leading ids, with gaps in the holdings."""
    index, plain = PrefixIndex(num_replicas), set()
    for key, replica, adds in changes:
        if replica < num_replicas:
            (index.add if adds else index.discard)([key], replica)
            (plain.add if adds else plain.discard)((key, replica))
    wanted = [next((k for k in range(12) if (k, r) not in plain), 12) for r in range(num_replicas)]
    assert index.leading(range(12)).tolist() == wanted
    assert len(index) == len({key for key, _ in plain})
    assert all(index.holds(key, 0) == ((key, 0) in plain) for key in range(12))


@SLOW
@given(st.lists(st.integers(0, 13), min_size=1, max_size=40), st.integers(0, 13))
def test_holdings_without_gaps_can_be_searched(lengths: list[int], asked: int) -> None:
    index = PrefixIndex(len(lengths))
    for replica, length in enumerate(lengths):
        index.add(range(length), replica)
    wanted = [min(length, asked) for length in lengths]
    assert index.leading_closed(range(asked)).tolist() == index.leading(range(asked)).tolist() == wanted


def path(branch: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Ids of a prompt: every id names all that comes before it."""
    return [branch[: i + 1] for i in range(len(branch))]


@SLOW
@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=7).map(tuple), max_size=40),
    st.integers(1, 12),
)
def test_the_tree_of_prompts_forgets_like_a_plain_list_of_ids(prompts: list[tuple[int, ...]], capacity: int) -> None:
    """The list: every id of a prompt moves to its end, the beginning of the prompt last; the front is forgotten."""
    tree, plain = PromptTree(capacity), list[tuple[int, ...]]()
    held: set[object] = set()
    for prompt in prompts:
        ids = path(prompt)
        held |= set(tree.remember(ids))
        held -= set(tree.forget())
        plain = [key for key in plain if key not in ids] + ids[::-1]
        plain = plain[max(0, len(plain) - capacity) :]
        assert held == set(plain)
        assert len(tree) == len(plain)
        assert all(key in tree for key in plain)


def play(scenario: Scenario) -> Simulation:
    simulation = make_simulation(scenario)
    simulation.run()
    return simulation


SHARED = tuple(
    Row(gap=1.5, prompt=4 + 3 * (i % 4), output=3 + i % 5, stream=i % 3, shared=4 + 3 * (i % 4)) for i in range(30)
)


@pytest.mark.parametrize("allocator", ["paged", "radix"])
@pytest.mark.parametrize("num_blocks", [9, 17, 60])
def test_cache_events_tell_what_the_memory_holds(allocator: str, num_blocks: int) -> None:
    """Whenever a replica has told its changes, the index equals a look into its memory, id by id."""
    scenario = Scenario(SHARED, hashed=True, num_replicas=2, num_blocks=num_blocks, allocator=allocator)
    simulation = make_simulation(replace(scenario, router="prefix_precise", depth=1))
    signals: Any = simulation.cluster.routing.signals
    compared = []

    def compare(replica: int, changes: Any) -> None:
        told(replica, changes)
        kv: Any = simulation.replicas[replica].kv
        state.update({(replica, key): held for key, held in changes})
        for (at, key), held in state.items():
            if at == replica:
                compared.append(held)
                if allocator == "paged":
                    assert held == kv.runs[key].is_complete
                else:
                    assert held == (kv.tree.stored[key] >= kv._lengths[key])

    state: dict[tuple[int, object], bool] = {}
    told, signals._on_cache_change = signals._on_cache_change, compare
    simulation.run()
    assert compared.count(True) > 10
    assert num_blocks > 9 or compared.count(False) > 0
    assert num_blocks < 60 or compared.count(False) == 0


def test_what_radix_says_it_stores_can_be_found_in_its_tree() -> None:
    """The account by symbol against a look-up of the whole key."""
    scenario = Scenario(SHARED, hashed=True, num_blocks=17, allocator="radix", router="prefix_precise", depth=1)
    simulation = play(scenario)
    kv: Any = simulation.replicas[0].kv
    for row in range(len(SHARED)):
        spans = simulation.columns.content_spans(row)
        key = [(symbol, 0, end - start) for symbol, start, end in spans]
        stored = next(
            (start + kv.tree.stored[symbol] for symbol, start, end in spans if kv.tree.stored[symbol] < end - start),
            spans[-1][2],
        )
        assert kv.tree.peek(key) == stored - stored % kv.block_size


def test_an_event_is_known_after_its_delay_and_not_before() -> None:
    """Two equal prompts, the second 2 steps of a second later: known without delay, unknown with one of 5 s."""
    rows = (Row(prompt=8, shared=8, output=2), Row(gap=2.5, prompt=8, shared=8, output=2))
    for delay, cached in ((0.0, 8), (2.0, 8), (5.0, 0)):
        scenario = Scenario(rows, cost="second", hashed=True, num_replicas=2, router="prefix_precise")
        simulation = make_simulation(replace(scenario, event_delay=delay, log_routing=True))
        log = simulation.run().routing
        assert log is not None
        assert log["scores"][1] == [float(cached), 0.0]


def test_prefill_tokens_count_until_the_first_token() -> None:
    """A prompt of 8 tokens, steps of a second: its first token is back at 1 s."""
    rows = (Row(prompt=8, output=9), Row(gap=0.5, prompt=4), Row(gap=0.75, prompt=2), Row(gap=20.0))
    simulation = make_simulation(Scenario(rows, cost="second", router="slo_aware", num_replicas=1, depth=1))
    signals: Any = simulation.cluster.routing.signals
    seen = []
    route = simulation.cluster.router.route

    def watched(*question: Any) -> int:
        seen.append(signals.prefill_tokens.tolist())
        return route(*question)

    simulation.cluster.router.route = watched  # type: ignore[method-assign]
    simulation.run()
    assert seen == [[0], [8], [4], [0]]


def test_a_snapshot_is_taken_at_multiples_of_the_interval_and_shows_no_later_load() -> None:
    """Four requests within an interval all see empty replicas and go to the first; after it they see them."""
    rows = (*(Row(gap=0.5, output=30) for _ in range(4)), Row(gap=3.0, output=30))
    scenario = Scenario(rows, cost="second", num_replicas=2, router="least_outstanding_requests", max_num_seqs=8)
    for interval, sent, wanted in ((0.0, False, [0, 1, 0, 1, 0]), (4.0, False, [0, 0, 0, 0, 1]), (4.0, True, None)):
        found = play(replace(scenario, snapshot_interval=interval, count_sent=sent))
        replicas = found.records.integers("prefill_replica")[np.argsort(found.records.integers("row"))].tolist()
        assert replicas == (wanted or [0, 1, 0, 1, 0])


def test_an_arrival_at_the_instant_of_a_snapshot_sees_the_one_before() -> None:
    rows = (Row(gap=1.0, output=30), Row(gap=3.0, output=30), Row(gap=0.25, output=30))
    scenario = Scenario(rows, cost="second", num_replicas=2, router="least_outstanding_requests")
    found = play(replace(scenario, snapshot_interval=4.0))
    assert found.records.integers("prefill_replica")[np.argsort(found.records.integers("row"))].tolist() == [0, 0, 1]


def test_snapshots_and_the_timeline_together_do_not_keep_a_finished_run_alive() -> None:
    scenario = Scenario((Row(), Row(gap=3.0)), timeline_interval=0.5, snapshot_interval=0.25)
    assert play(scenario).end_time < 10.0


def test_routers_do_not_see_how_long_an_answer_will_be() -> None:
    """Ids of generated blocks are no part of the prefix that a router is shown, whatever the true length."""
    for output in (4, 40):
        rows = (Row(prompt=10, output=output), Row(prompt=3, output=2, follows=1))
        simulation = make_simulation(Scenario(rows, hashed=True, outputs_hashed=True, router="prefix_precise"))
        signals: Any = simulation.cluster.routing.signals
        assert len(signals.prefix(simulation.columns.sequence(0, 0.0))) == 2
