"""A link that several transfers share fairly. Each change of the set of transfers costs one pass over them, bytes none.

Max-min fairness: nobody gets more than it can use, what is left is shared equally, so no transfer can be faster
without making a slower one slower still. Rates are worked out anew when a transfer starts, ends or is given up; in
between every transfer moves at a constant rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sim.clock import Clock, Order, Timer
from sim.units import TICK, TICKS_PER_SECOND

INFINITE = float("inf")


def fair_rates(capacity: float, limits: Sequence[float]) -> list[float]:
    """Max-min fair rates of transfers that can use at most `limits`; their sum is at most `capacity`."""
    rates = [0.0] * len(limits)
    left = capacity
    by_limit = sorted(range(len(limits)), key=lambda i: limits[i])
    for position, i in enumerate(by_limit):
        rates[i] = min(limits[i], left / (len(by_limit) - position))
        left -= rates[i]
    return rates


@dataclass(eq=False)
class Transfer:
    """So many bytes on their way. `rate`: bytes per second at present; `num_left`: as of the latest change of rates."""

    num_bytes: float
    on_done: Callable[[Transfer], None]
    max_rate: float = INFINITE
    start_time: float = 0.0
    num_left: float = 0.0
    rate: float = 0.0
    finish_time: float = field(default=INFINITE)


class SharedLink:
    """One link of `bytes_per_second`, in one direction. `latency`: seconds from the start to the first byte.

    `index` orders links among events of one instant.
    """

    def __init__(self, clock: Clock, bytes_per_second: float, index: int = 0, latency: float = 0.0) -> None:
        if not (bytes_per_second > 0 and latency >= 0):
            raise ValueError(f"a link needs a speed > 0 and a latency >= 0 (got {bytes_per_second}, {latency})")
        self.clock = clock
        self.bytes_per_second = bytes_per_second
        self.index = index
        self.latency = latency
        self.transfers: list[Transfer] = []  # moving now, in order of start
        self.num_bytes_done = 0.0
        self.busy_time = 0.0  # seconds in which something moved
        self._since = 0.0
        self._timer: Timer | None = None

    def start(self, num_bytes: float, on_done: Callable[[Transfer], None], max_rate: float = INFINITE) -> Transfer:
        """Send bytes from now on; `on_done(transfer)` is called when the last one has arrived."""
        if num_bytes < 0 or not max_rate > 0:
            raise ValueError(f"a transfer needs bytes >= 0 and a rate above 0 (got {num_bytes}, {max_rate})")
        now = self.clock.now
        transfer = Transfer(num_bytes, on_done, max_rate, now, num_left=num_bytes)
        if self.latency:
            first_byte = on_grid(now + self.latency)
            self.clock.at(first_byte, Order.TRANSFER_COMPLETION, self.index, lambda _: self._begin(transfer))
        else:
            self._begin(transfer)
        return transfer

    def cancel(self, transfer: Transfer) -> None:
        """Give up what is left of a transfer; nothing happens where it has arrived."""
        self._settle()
        transfer.max_rate = 0.0
        if transfer in self.transfers:
            self.transfers.remove(transfer)
            self._share()

    def expected_duration(self, num_bytes: float, max_rate: float = INFINITE) -> float:
        """Seconds that a transfer would take if it started now and nothing else came."""
        self._settle()
        left = [*(transfer.num_left for transfer in self.transfers), num_bytes]
        limits = [*(transfer.max_rate for transfer in self.transfers), max_rate]
        return self.latency + drain_time(self.bytes_per_second, left, limits)

    def _begin(self, transfer: Transfer) -> None:
        if transfer.max_rate > 0:  # not given up meanwhile
            self._settle()
            self.transfers.append(transfer)
            self._share()

    def _settle(self) -> None:
        """Move the bytes of the time since the latest change."""
        now = self.clock.now
        elapsed, self._since = now - self._since, now
        if not self.transfers or not elapsed:
            return
        self.busy_time += elapsed
        for transfer in self.transfers:
            through = now >= transfer.finish_time
            moved = transfer.num_left if through else min(transfer.rate * elapsed, transfer.num_left)
            transfer.num_left -= moved
            self.num_bytes_done += moved

    def _share(self) -> None:
        """Set the rates, and wake when the first transfer is through."""
        now = self.clock.now
        rates = fair_rates(self.bytes_per_second, [transfer.max_rate for transfer in self.transfers])
        for transfer, rate in zip(self.transfers, rates, strict=True):
            transfer.rate = rate
            transfer.finish_time = on_grid(now + transfer.num_left / rate)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.transfers:
            first = min(transfer.finish_time for transfer in self.transfers)
            self._timer = self.clock.at(first, Order.TRANSFER_COMPLETION, self.index, self._on_timer)

    def _on_timer(self, _: object) -> None:
        now = self.clock.now
        self._timer = None
        self._settle()
        done = [transfer for transfer in self.transfers if transfer.finish_time <= now]
        self.transfers = [transfer for transfer in self.transfers if transfer.finish_time > now]
        self._share()
        for transfer in done:
            transfer.on_done(transfer)


def on_grid(time: float) -> float:
    """The first instant of the time grid that is not before `time`: no transfer is faster than its link."""
    return math.ceil(time * TICKS_PER_SECOND) * TICK


def drain_time(capacity: float, sizes: Sequence[float], limits: Sequence[float]) -> float:
    """Seconds until the last of these transfers is through, all sharing from now on and no other coming."""
    left, clock = list(sizes), 0.0
    while left[-1] > 0:
        moving = [i for i, size in enumerate(left) if size > 0]
        rates = dict(zip(moving, fair_rates(capacity, [limits[i] for i in moving]), strict=True))
        step = min(left[i] / rates[i] for i in moving)
        clock += step
        for i in moving:
            left[i] = 0.0 if left[i] / rates[i] <= step else left[i] - rates[i] * step
    return clock
