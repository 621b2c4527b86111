"""Flows over several links: hand-worked networks, bytes conserved, nobody faster than the narrowest link."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.clock import Clock, Order
from sim.network import Crossing, Flow, Link, Network, Route, connected, max_min_rates


def nothing(_: Flow) -> None:
    pass


def route(*links: Link) -> Route:
    return Route(tuple(Crossing(link) for link in links))


def flow(*links: Link, max_rate: float = float("inf")) -> Flow:
    return Flow(1.0, nothing, route(*links), max_rate)


def test_the_line_with_one_long_and_two_short_flows() -> None:
    """Links of 10 and 20 in a row; one flow over both, one on each: 5, 5 and 15 (Bertsekas and Gallager)."""
    first, second = Link("a", 10.0), Link("b", 20.0)
    assert max_min_rates([flow(first, second), flow(first), flow(second)]) == [5.0, 5.0, 15.0]


def test_the_parking_lot() -> None:
    """Three equal links in a row: the flow over all gets half, and so does the one that enters at each."""
    links = [Link(str(i), 12.0) for i in range(3)]
    assert max_min_rates([flow(*links), *(flow(link) for link in links)]) == [6.0] * 4


def test_two_bottlenecks() -> None:
    """a: 12 for three flows, 4 each; one of them leaves 16 of b's 20 for the other there, which can take 10."""
    a, b = Link("a", 12.0), Link("b", 20.0)
    assert max_min_rates([flow(a), flow(a), flow(a, b), flow(b, max_rate=10.0)]) == [4.0, 4.0, 4.0, 10.0]


def test_fairness_is_among_streams() -> None:
    """8 streams over 8 adapters against one on the first: each has half of the first, the other 7 keep step."""
    adapters = [Link(str(i), 10.0) for i in range(8)]
    wide = Flow(1.0, nothing, Route(tuple(Crossing(link) for link in adapters), num_streams=8))
    assert max_min_rates([wide, flow(adapters[0])]) == [40.0, 5.0]
    shared = Flow(1.0, nothing, Route((Crossing(adapters[0], 8),), num_streams=8))
    assert max_min_rates([shared, flow(adapters[0])]) == [10.0 * 8 / 9, pytest.approx(10.0 / 9)]


networks = st.tuples(
    st.lists(st.floats(0.1, 100.0), min_size=1, max_size=6),
    st.lists(st.sets(st.integers(0, 5), min_size=1), min_size=1, max_size=10),
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(networks)
def test_rates_are_max_min_fair(network: tuple[list[float], list[set[int]]]) -> None:
    """No link carries too much, and every flow crosses a full link on which nobody is faster: the definition."""
    capacities, paths = network
    links = [Link(str(i), capacity) for i, capacity in enumerate(capacities)]
    flows = [flow(*(links[i] for i in sorted({i % len(links) for i in path}))) for path in paths]
    rates = dict(zip(flows, max_min_rates(flows), strict=True))
    used = {link: sum(rate for each, rate in rates.items() if link in each.route.links) for link in links}
    assert all(used[link] <= link.bytes_per_second * (1 + 1e-9) for link in links)
    for each, rate in rates.items():
        full = [link for link in each.route.links if used[link] >= link.bytes_per_second * (1 - 1e-9)]
        fastest = [max(r for f, r in rates.items() if link in f.route.links) for link in full]
        assert any(rate >= most * (1 - 1e-9) for most in fastest)


class Run:
    """A network with a journal of ends."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.network = Network(self.clock)
        self.flows: dict[str, Flow] = {}
        self.ends: dict[str, float] = {}

    def send(self, name: str, time: float, num_bytes: float, way: Route) -> None:
        def done(_: Flow) -> None:
            self.ends[name] = self.clock.now

        def begin(_: object) -> None:
            self.flows[name] = self.network.start(way, num_bytes, done)

        self.clock.at(time, Order.ARRIVAL, len(self.ends), begin)

    def run(self) -> dict[str, float]:
        self.clock.env.run()
        return self.ends


def test_rates_change_when_a_flow_on_another_link_ends() -> None:
    """a of 10, b of 10: the long flow and one on each get 5. b's (20 bytes) ends at 4; nothing changes on a, where the
    short one (30) ends at 6; the long one (50) has 20 left and b and a for itself: it ends at 8."""
    run, a, b = Run(), Link("a", 10.0), Link("b", 10.0)
    run.send("long", 0.0, 50.0, route(a, b))
    run.send("on a", 0.0, 30.0, route(a))
    run.send("on b", 0.0, 20.0, route(b))
    assert run.run() == {"on b": 4.0, "on a": 6.0, "long": 8.0}
    assert (a.num_bytes_done, b.num_bytes_done) == (80.0, 70.0)
    assert (a.busy_time(run.clock.now), b.busy_time(run.clock.now)) == (8.0, 8.0)


def test_only_flows_that_share_links_are_touched() -> None:
    """A start on other links sets no timer of a flow anew, and a chain of shared links is found through the middle."""
    clock = Clock()
    network, links = Network(clock), [Link(str(i), 10.0) for i in range(4)]
    alone = network.start(route(links[3]), 100.0, nothing)
    timer = alone.timer
    left, right = network.start(route(links[0]), 100.0, nothing), network.start(route(links[2]), 100.0, nothing)
    middle = network.start(route(links[0], links[1], links[2]), 100.0, nothing)
    assert alone.timer is timer
    assert connected([left]) == [left, middle, right]


def count_events(num_bytes: float) -> int:
    run, links = Run(), [Link(str(i), 1e9) for i in range(3)]
    for i in range(30):
        run.send(str(i), i * 2.0**-20, num_bytes * (1 + i % 3), route(links[i % 3], links[(i + 1) % 3]))
    events = 0
    while run.clock.has_events:
        run.clock.env.step()
        events += 1
    return events


def test_the_number_of_events_does_not_depend_on_bytes() -> None:
    """30 starts and 30 ends; every change may set the timers of all flows anew, whatever their size."""
    small, large = count_events(1e6), count_events(1e12)
    assert small <= 2 * 30 * 31
    assert large == small


def test_a_cancelled_flow_frees_all_its_links() -> None:
    """10 each. The long one is given up at 2: the others (5 a second, 40 left of 50) end at 6."""
    run, a, b = Run(), Link("a", 10.0), Link("b", 10.0)
    run.send("long", 0.0, 1000.0, route(a, b))
    run.send("on a", 0.0, 50.0, route(a))
    run.send("on b", 0.0, 50.0, route(b))
    run.clock.at(2.0, Order.CANCELLATION, 0, lambda _: run.network.cancel(run.flows["long"]))
    assert run.run() == {"on a": 6.0, "on b": 6.0}
    assert run.flows["long"].num_left == 990.0
    run.network.cancel(run.flows["on a"])
    assert run.flows["on a"].num_left == 0.0


def test_a_flow_given_up_before_its_first_byte_moves_nothing() -> None:
    run, a = Run(), Link("a", 10.0, latency=1.0)
    run.send("early", 0.0, 10.0, Route((Crossing(a),), latency=1.0))
    run.clock.at(0.5, Order.CANCELLATION, 0, lambda _: run.network.cancel(run.flows["early"]))
    assert run.run() == {}
    assert a.num_bytes_done == 0.0


@pytest.mark.parametrize("seed", range(8))
def test_bytes_are_conserved_and_nobody_is_faster_than_the_narrowest_link(seed: int) -> None:
    draw, run = random.Random(seed), Run()
    links = [Link(str(i), draw.uniform(10.0, 1000.0), draw.choice([0.0, 0.01])) for i in range(6)]
    ways, sizes, starts = {}, {}, {}
    for i in range(50):
        chosen = draw.sample(links, draw.randint(1, 4))
        name = str(i)
        crossings = tuple(Crossing(link, draw.randint(1, 3)) for link in chosen)
        ways[name] = Route(crossings, 3, sum(link.latency for link in chosen))
        sizes[name], starts[name] = draw.choice([0.0, 1.0, 5000.0]) * draw.random(), round(draw.uniform(0.0, 60.0), 2)
        run.send(name, starts[name], sizes[name], ways[name])
    ends = run.run()
    assert set(ends) == set(sizes)
    for name, way in ways.items():
        assert ends[name] - starts[name] >= way.latency + sizes[name] / way.bytes_per_second - 1e-8
    for link in links:
        crossed = {n: c.streams / 3 for n, way in ways.items() for c in way.crossings if c.link is link}
        assert link.num_bytes_done == pytest.approx(sum(sizes[n] * share for n, share in crossed.items()))
        assert link.busy_time(run.clock.now) * link.bytes_per_second >= link.num_bytes_done * (1 - 1e-9)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.floats(1.0, 1e12), st.lists(st.floats(1.0, 1e11), min_size=1, max_size=4), st.floats(0.0, 1e-3))
def test_alone_the_expected_duration_comes_true_to_the_last_bit(size: float, speeds: list[float], late: float) -> None:
    run = Run()
    way = Route(tuple(Crossing(Link(str(i), speed)) for i, speed in enumerate(speeds)), latency=late)
    expected = run.network.expected_duration(way, size)
    run.send("a", 0.0, size, way)
    assert run.run() == {"a": expected}
    assert expected >= late + size / min(speeds) - 1e-15 * expected


def ends_of_three(answers: list[float] | None) -> dict[str, float]:
    """Two flows, and a third at 1; just before it comes its duration is asked for, or not."""
    run, a, b = Run(), Link("a", 10.0), Link("b", 10.0)
    run.send("long", 0.0, 50.0, route(a, b))
    run.send("on a", 0.0, 30.0, route(a))
    if answers is not None:
        ask = answers.append
        run.clock.at(1.0, Order.FAILURE, 0, lambda _: ask(run.network.expected_duration(route(b), 5.0)))
    run.send("new", 1.0, 5.0, route(b))
    return run.run()


def test_among_others_the_expected_duration_comes_true_and_asking_changes_nothing() -> None:
    answers: list[float] = []
    ends = ends_of_three(answers)
    assert ends == ends_of_three(None)
    assert ends["new"] == 1.0 + answers[0]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(networks, st.integers(0, 5), st.floats(1.0, 10.0))
def test_a_faster_link_never_slows_the_slowest_flow(
    network: tuple[list[float], list[set[int]]], which: int, factor: float
) -> None:
    """Max-min: the least rate cannot fall when a link gets faster (single flows may, in favour of slower ones)."""
    capacities, paths = network
    least = []
    for speedup in (1.0, factor):
        links = [Link(str(i), c * (speedup if i == which % len(capacities) else 1.0)) for i, c in enumerate(capacities)]
        flows = [flow(*(links[i] for i in sorted({i % len(links) for i in path}))) for path in paths]
        least.append(min(max_min_rates(flows)))
    assert least[1] >= least[0] * (1 - 1e-9)
