"""Max-min fair links: hand-worked cases, bytes conserved, nobody faster than the link."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.clock import Clock, Order
from sim.network import INFINITE, Crossing, Flow, Link, Network, Route, max_min_rates


class SharedLink:
    """One link by itself, in one direction. `latency`: seconds from the start to the first byte.

    `index` orders links among events of one instant.
    """

    def __init__(self, clock: Clock, bytes_per_second: float, index: int = 0, latency: float = 0.0) -> None:
        self.link = Link(f"link{index}", bytes_per_second, latency)
        self._network = Network(clock, first_index=index * 2**16)
        self._route = Route((Crossing(self.link),), latency=latency)

    def start(self, num_bytes: float, on_done: Callable[[Flow], None], max_rate: float = INFINITE) -> Flow:
        """Send bytes from now on; `on_done(flow)` is called when the last one has arrived."""
        return self._network.start(self._route, num_bytes, on_done, max_rate)

    def cancel(self, flow: Flow) -> None:
        """Give up what is left of a flow; nothing happens where it has arrived."""
        self._network.cancel(flow)

    def expected_duration(self, num_bytes: float, max_rate: float = INFINITE) -> float:
        """Seconds that a flow would take if it started now and nothing else came."""
        return self._network.expected_duration(self._route, num_bytes, max_rate)


def rates_of(capacity: float, limits: list[float]) -> list[float]:
    route = Route((Crossing(Link("link", capacity)),))
    return max_min_rates([Flow(1.0, lambda _: None, route, limit) for limit in limits])


def test_rates_by_hand() -> None:
    """10 shared by limits 2, 4 and none: 2, 4, 4; with limits 1, 2: both at their limit."""
    assert rates_of(10.0, [float("inf"), 2.0, 4.0]) == [4.0, 2.0, 4.0]
    assert rates_of(10.0, [1.0, 2.0]) == [1.0, 2.0]
    assert rates_of(9.0, [float("inf")] * 3) == [3.0, 3.0, 3.0]
    assert rates_of(9.0, []) == []


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.floats(0.1, 100.0), st.lists(st.floats(0.01, 100.0), min_size=1, max_size=8))
def test_rates_are_max_min_fair(capacity: float, limits: list[float]) -> None:
    """Everything is used or everybody is at the limit; who is below the limit has the largest rate of all."""
    rates = rates_of(capacity, limits)
    assert sum(rates) <= capacity * (1 + 1e-12)
    assert sum(rates) == pytest.approx(min(capacity, sum(limits)))
    for rate, limit in zip(rates, limits, strict=True):
        assert rate <= limit
        if rate < limit * (1 - 1e-9):
            assert rate >= max(rates) * (1 - 1e-9)


class Journal:
    """Starts transfers at given instants and notes when they are through."""

    def __init__(self, bytes_per_second: float, latency: float = 0.0) -> None:
        self.clock = Clock()
        self.link = SharedLink(self.clock, bytes_per_second, latency=latency)
        self.done: dict[str, float] = {}
        self.transfers: dict[str, Flow] = {}

    def send(self, name: str, time: float, num_bytes: float, **options: Any) -> None:
        def begin(_: object) -> None:
            def done(_: Flow) -> None:
                self.done[name] = self.clock.now

            self.transfers[name] = self.link.start(num_bytes, done, **options)

        self.clock.at(time, Order.ARRIVAL, len(self.done), begin)

    @property
    def busy_time(self) -> float:
        return self.link.link.busy_time(self.clock.now)

    def run(self) -> dict[str, float]:
        self.clock.env.run()
        return self.done


def test_one_transfer_takes_bytes_over_speed() -> None:
    journal = Journal(8.0)
    journal.send("a", 1.0, 20.0)
    assert journal.run() == {"a": 3.5}
    assert journal.busy_time == 2.5


def test_two_transfers_share_equally_while_both_move() -> None:
    """Speed 10. a (100 bytes) from 0, b (20) from 4: a has 60 left, both get 5; b ends at 8, a (40 left) at 12."""
    journal = Journal(10.0)
    journal.send("a", 0.0, 100.0)
    journal.send("b", 4.0, 20.0)
    assert journal.run() == {"b": 8.0, "a": 12.0}


def test_a_slow_receiver_leaves_its_share_to_others() -> None:
    """Speed 10; a can take 2, so b gets 8 from 0 on and is through with 40 at 5; a with 20 at 10."""
    journal = Journal(10.0)
    journal.send("a", 0.0, 20.0, max_rate=2.0)
    journal.send("b", 0.0, 40.0)
    assert journal.run() == {"b": 5.0, "a": 10.0}


def test_a_cancelled_transfer_gives_its_share_back() -> None:
    """Speed 10, a and b of 100 from 0; b is given up at 4: a has 80 left and ends at 12."""
    journal = Journal(10.0)
    journal.send("a", 0.0, 100.0)
    journal.send("b", 0.0, 100.0)
    journal.clock.at(4.0, Order.CANCELLATION, 0, lambda _: journal.link.cancel(journal.transfers["b"]))
    assert journal.run() == {"a": 12.0}
    assert journal.transfers["b"].num_left == 80.0
    assert journal.link.link.num_bytes_done == 120.0


def test_latency_comes_before_the_first_byte_and_takes_no_bandwidth() -> None:
    journal = Journal(10.0, latency=0.5)
    journal.send("a", 0.0, 10.0)
    journal.send("b", 1.0, 10.0)
    assert journal.run() == {"a": 1.5, "b": 2.5}


def test_no_bytes_arrive_at_once() -> None:
    journal = Journal(10.0)
    journal.send("a", 2.0, 0.0)
    assert journal.run() == {"a": 2.0}


@pytest.mark.parametrize("seed", range(10))
def test_bytes_are_conserved_and_nobody_is_faster_than_the_link(seed: int) -> None:
    draw = random.Random(seed)
    journal = Journal(1000.0)
    sizes = {str(i): draw.choice([0.0, 1.0, 333.3, 5000.0]) * draw.random() for i in range(60)}
    starts = {name: round(draw.uniform(0.0, 30.0), 3) for name in sizes}
    for name, size in sizes.items():
        journal.send(name, starts[name], size, max_rate=draw.choice([float("inf"), 50.0]))
    done = journal.run()
    assert journal.link.link.num_bytes_done == pytest.approx(sum(sizes.values()))
    for name, transfer in journal.transfers.items():
        assert transfer.num_left == 0.0
        assert done[name] - starts[name] >= sizes[name] / min(1000.0, transfer.max_rate) - 1e-9
    assert journal.busy_time * 1000.0 >= sum(sizes.values()) * (1 - 1e-9)


def test_the_expected_duration_is_what_comes_true_when_nothing_else_comes() -> None:
    journal = Journal(10.0)
    journal.send("a", 0.0, 100.0)
    expected: list[float] = []
    journal.clock.at(4.0, Order.FAILURE, 0, lambda _: expected.append(journal.link.expected_duration(20.0)))
    journal.send("b", 4.0, 20.0)
    assert expected == []
    assert journal.run()["b"] == 4.0 + expected[0]
