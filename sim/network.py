"""Links that flows share fairly. Each change of the set of flows costs one pass over those it can touch, bytes none.

Max-min fairness: nobody gets more than it can use, what is left is shared equally, so no flow can be faster without
making a slower one slower still. A flow crosses several links at once and is as fast as the narrowest lets it be. It
may consist of parallel streams (one a GPU, say), and fairness holds between streams, as among real connections. Rates
are worked out anew when a flow starts, ends or is given up, and only for flows that share links with it, directly or
through others; in between every flow moves at a constant rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from sim.clock import Clock, Order, Timer
from sim.units import TICK, TICKS_PER_SECOND

INFINITE = float("inf")


@dataclass(eq=False)
class Link:
    """One direction of a port or a cable: bytes per second, and seconds that the first byte takes to cross it."""

    name: str
    bytes_per_second: float
    latency: float = 0.0
    flows: dict[Flow, int] = field(default_factory=dict)  # moving now, in order of start: streams across this link
    num_bytes_done: float = 0.0  # as of the latest change of rates of each flow
    _busy_time: float = 0.0
    _busy_since: float = 0.0

    def __post_init__(self) -> None:
        if not (self.bytes_per_second > 0 and self.latency >= 0):
            got = f"{self.bytes_per_second}, {self.latency}"
            raise ValueError(f"a link needs a speed > 0 and a latency >= 0 (got {got})")

    def busy_time(self, now: float) -> float:
        """Seconds until `now` in which something moved across the link."""
        return self._busy_time + (now - self._busy_since if self.flows else 0.0)

    def bytes_done(self, now: float) -> float:
        """Bytes that have crossed the link until `now`."""
        moving = self.flows.items()
        return self.num_bytes_done + sum(
            (flow.num_left - left_at(flow, now)) * streams / flow.route.num_streams for flow, streams in moving
        )

    def join(self, flow: Flow, streams: int, now: float) -> None:
        """A flow moves across this link from now on."""
        if not self.flows:
            self._busy_since = now
        self.flows[flow] = streams

    def leave(self, flow: Flow, now: float) -> None:
        """A flow is through or given up."""
        del self.flows[flow]
        if not self.flows:
            self._busy_time += now - self._busy_since


class Crossing(NamedTuple):
    """A link on the way of a flow, and how many of the flow's streams take it."""

    link: Link
    streams: int = 1


@dataclass(frozen=True)
class Route:
    """The links that a flow crosses. Its bytes are spread evenly over `num_streams` streams."""

    crossings: tuple[Crossing, ...]
    num_streams: int = 1
    latency: float = 0.0  # seconds before the first byte

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """The links by themselves."""
        return tuple(crossing.link for crossing in self.crossings)

    @cached_property
    def bytes_per_second(self) -> float:
        """What the narrowest link allows when nothing else moves."""
        rates = (self.num_streams * link.bytes_per_second / streams for link, streams in self.crossings)
        return min(rates, default=INFINITE)


@dataclass(eq=False)
class Flow:
    """So many bytes on their way. `rate`: bytes per second at present; `num_left`: as of the latest change of rate."""

    num_bytes: float
    on_done: Callable[[Flow], None]
    route: Route
    max_rate: float = INFINITE
    start_time: float = 0.0
    num_left: float = 0.0
    rate: float = 0.0
    finish_time: float = INFINITE
    index: int = 0  # orders flows that end at one instant
    since: float = 0.0  # instant of `num_left`
    timer: Timer | None = None


def max_min_rates(flows: Sequence[Flow]) -> list[float]:
    """Max-min fair bytes per second of these flows over their routes, nothing else moving.

    Progressive filling: the rate of all streams rises together; where a link is full, or a flow at its limit, those
    that it holds stay, and the rest go on.
    """
    if len(flows) == 1:
        return [min(flows[0].max_rate, flows[0].route.bytes_per_second)]
    rates = [0.0] * len(flows)
    limits = {i: flow.max_rate / flow.route.num_streams for i, flow in enumerate(flows)}
    shared = _shared(flows)
    while limits:
        levels = [each.left / each.streams for each in shared]
        level = min(min(levels, default=INFINITE), min(limits.values()))
        held = {i for each, value in zip(shared, levels, strict=True) if value <= level for i in each.users}
        stopped = [i for i, limit in limits.items() if limit <= level or i in held]
        for i in stopped:
            rates[i] = level * flows[i].route.num_streams
            del limits[i]
        shared = [each for each in shared if each.release(stopped, level)]
    return rates


@dataclass
class _Shared:
    """The narrowest of some links that the same streams cross; `users`: streams of the flows whose rates still rise."""

    left: float
    users: dict[int, int]
    streams: int

    def release(self, stopped: Sequence[int], level: float) -> bool:
        """Flows stay at this rate of a stream from now on; whether others go on."""
        gone = sum(self.users.pop(i, 0) for i in stopped)
        self.left -= level * gone
        self.streams -= gone
        return self.streams > 0


def _shared(flows: Sequence[Flow]) -> list[_Shared]:
    """The links of these flows; of several with the same users only the narrowest can hold anyone up."""
    users: dict[Link, list[tuple[int, int]]] = {}
    for i, flow in enumerate(flows):
        for link, streams in flow.route.crossings:
            users.setdefault(link, []).append((i, streams))
    narrowest: dict[tuple[tuple[int, int], ...], float] = {}
    for link, those in users.items():
        key = tuple(those)
        narrowest[key] = min(narrowest.get(key, INFINITE), link.bytes_per_second)
    return [_Shared(speed, dict(key), sum(streams for _, streams in key)) for key, speed in narrowest.items()]


def connected(seeds: Iterable[Flow]) -> list[Flow]:
    """These flows and all that share links with them, directly or through others, in a fixed order."""
    found = dict.fromkeys(seeds)
    seen: set[Link] = set()
    pending = list(found)
    for flow in pending:  # grows while it is walked
        for link in flow.route.links:
            if link in seen:
                continue
            seen.add(link)
            new = [other for other in link.flows if other not in found]
            found.update(dict.fromkeys(new))
            pending += new
    return pending


class Network:
    """All flows over any links, on one clock. `first_index` orders networks among events of one instant."""

    def __init__(self, clock: Clock, first_index: int = 0) -> None:
        self.clock = clock
        self._next_index = first_index

    def start(
        self, route: Route, num_bytes: float, on_done: Callable[[Flow], None], max_rate: float = INFINITE
    ) -> Flow:
        """Send bytes from now on; `on_done(flow)` is called when the last one has arrived."""
        if num_bytes < 0 or not max_rate > 0:
            raise ValueError(f"a flow needs bytes >= 0 and a rate above 0 (got {num_bytes}, {max_rate})")
        now = self.clock.now
        flow = Flow(num_bytes, on_done, route, max_rate, now, num_left=num_bytes, index=self._next_index)
        self._next_index += 1
        if route.latency:
            self._wake(flow, on_grid(now + route.latency), self._begin)
        else:
            self._begin(flow)
        return flow

    def cancel(self, flow: Flow) -> None:
        """Give up what is left of a flow; nothing happens where it has arrived."""
        if flow.timer is None:
            return
        flow.timer.cancel()
        flow.timer = None
        if flow.finish_time < INFINITE:  # its first byte has left
            self._leave(flow)
        flow.rate, flow.finish_time = 0.0, INFINITE

    def expected_duration(self, route: Route, num_bytes: float, max_rate: float = INFINITE) -> float:
        """Seconds that a flow would take if it started now and nothing else came.

        Flows that have not passed their latency yet do not count. Changes nothing, not even a last bit.
        """
        now = self.clock.now
        flow = Flow(num_bytes, lambda _: None, route, max_rate, num_left=num_bytes)
        others = connected([flow])[1:]
        left = [num_bytes, *(left_at(other, now) for other in others)]
        return drained([flow, *others], left, on_grid(now + route.latency)) - now

    def _wake(self, flow: Flow, time: float, then: Callable[[Flow], None]) -> None:
        def woken(_: object) -> None:
            flow.timer = None
            then(flow)

        flow.timer = self.clock.at(time, Order.TRANSFER_COMPLETION, flow.index, woken)

    def _begin(self, flow: Flow) -> None:
        now = flow.since = self.clock.now
        for link, streams in flow.route.crossings:
            link.join(flow, streams, now)
        self._share([flow])

    def _leave(self, flow: Flow) -> None:
        now = self.clock.now
        settle(flow, now)
        for link in flow.route.links:
            link.leave(flow, now)
        self._share([other for link in flow.route.links for other in link.flows])

    def _share(self, seeds: list[Flow]) -> None:
        """Set the rates of all flows that the seeds can touch; those that end at this instant are left alone."""
        now = self.clock.now
        moving = [flow for flow in connected(seeds) if flow.finish_time > now]
        for flow, rate in zip(moving, max_min_rates(moving), strict=True):
            if rate != flow.rate:
                settle(flow, now)
                flow.rate = rate
                flow.finish_time = on_grid(now + flow.num_left / rate)
                if flow.timer is not None:
                    flow.timer.cancel()
                self._wake(flow, flow.finish_time, self._end)

    def _end(self, flow: Flow) -> None:
        self._leave(flow)
        flow.on_done(flow)


def left_at(flow: Flow, now: float) -> float:
    """Bytes of a moving flow that have not arrived at `now`."""
    if now >= flow.finish_time:
        return 0.0
    return max(flow.num_left - flow.rate * (now - flow.since), 0.0)


def settle(flow: Flow, now: float) -> None:
    """Move the bytes of the time since the latest change of this flow's rate."""
    left = left_at(flow, now)
    moved = flow.num_left - left
    flow.num_left, flow.since = left, now
    for link, streams in flow.route.crossings:
        link.num_bytes_done += moved * streams / flow.route.num_streams


def drained(flows: Sequence[Flow], left: Sequence[float], now: float) -> float:
    """When the first of these flows is through, all sharing from `now` on with so many bytes left, no other coming."""
    remaining = [(flow, size) for flow, size in zip(flows, left, strict=True) if size > 0]
    while remaining and remaining[0][0] is flows[0]:
        rates = max_min_rates([flow for flow, _ in remaining])
        ends = [on_grid(now + size / rate) for (_, size), rate in zip(remaining, rates, strict=True)]
        first = min(ends)
        remaining = [
            (flow, size - rate * (first - now))
            for (flow, size), rate, end in zip(remaining, rates, ends, strict=True)
            if end > first
        ]
        now = first
    return now


def on_grid(time: float) -> float:
    """The first instant of the time grid that is not before `time`: no flow is faster than its links."""
    return math.ceil(time * TICKS_PER_SECOND) * TICK
