"""Routers that look at replicas in the middle of planned steps, live or through old pictures, decide as in stepping."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenarios import Scenario, Space, examples, make_simulation, scenarios
from test_fast_forward import assert_same_bits, assert_same_result

from policies.router import ROUTERS
from sim.result import RunResult


def routed(scenario: Scenario, step_by_step: bool) -> RunResult:
    return make_simulation(scenario, step_by_step, step_log=True).run()


def assert_same_decisions(scenario: Scenario) -> None:
    """Results, and the numbers that the router compared at each decision."""
    fast, stepped = routed(scenario, False), routed(scenario, True)
    assert_same_result(fast, stepped)
    assert fast.routing is not None
    assert stepped.routing is not None
    assert_same_bits(fast.routing, stepped.routing)


@pytest.mark.parametrize("router", ROUTERS)
def test_decisions_do_not_depend_on_fast_forward(router: str) -> None:
    """Old loads, late cache events, small memory, shared prompts, sessions; two or three replicas."""
    settings = st.tuples(
        st.sampled_from([0.0, 0.6, 1.0, 2.5]), st.booleans(), st.sampled_from([0.0, 0.3, 1.0, 4.0]), st.booleans()
    )

    @examples(12)
    @given(scenarios(Space(policies={"router": router}, num_replicas=(2, 3), max_rows=14)), settings)
    def check(scenario: Scenario, picture: tuple[float, bool, float, bool]) -> None:
        interval, count_sent, delay, hashed = picture
        assert_same_decisions(
            replace(
                scenario,
                snapshot_interval=interval,
                count_sent=count_sent,
                event_delay=delay,
                hashed=hashed or scenario.hashed,
                log_routing=True,
            )
        )

    check()


@pytest.mark.parametrize("allocator", ["paged", "radix"])
def test_a_fast_look_into_the_index_finds_what_a_slow_one_finds(allocator: str) -> None:
    """Where memories promise to keep beginnings, their holdings have no gaps, whatever is overwritten."""
    looks = []
    space = Space(policies={"router": "prefix_precise"}, num_replicas=(2, 3), max_rows=14, allocator=allocator)

    @examples(60)
    @given(scenarios(space))
    def check(scenario: Scenario) -> None:
        simulation = make_simulation(replace(scenario, hashed=True, prefix_caching=True))
        signals: Any = simulation.cluster.routing.signals
        assert signals._closed
        look = signals.cached_tokens

        def both(request: Any) -> Any:
            found = look(request)
            signals._closed = False
            assert look(request).tolist() == found.tolist()
            signals._closed = True
            looks.append(found.max())
            return found

        signals.cached_tokens = both
        simulation.run()

    check()
    assert sum(tokens > 0 for tokens in looks) > 10
