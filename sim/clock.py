"""The event clock: SimPy's loop, with callbacks at absolute instants and a written order of what happens at once.

A SimPy timeout starts from a delay and orders ties by creation; both would make results depend on how often a replica
woke up. A timer here is pushed at an absolute time with a (kind, index) priority, so ties resolve the same way however
the run was executed.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from heapq import heappush

import simpy

Callback = Callable[[simpy.Event], None]


class Order(IntEnum):
    """Order of events at one instant, first to last. Within a kind: replica index, or request row."""

    FAILURE = 0
    STEP_COMPLETION = 1
    TRANSFER_COMPLETION = 2
    CANCELLATION = 3
    ARRIVAL = 4  # and, at once, admission and routing of what arrived
    CONTROL_LOOP = 5  # autoscaler, timeline samples
    SCHEDULING = 6


KIND_WIDTH = 2**32  # indices per kind


class Timer(simpy.Event):
    """An event that calls one function at one instant."""

    def __init__(self, env: simpy.Environment, callback: Callback) -> None:
        self.env = env
        self.callbacks = [callback]
        self._ok = True
        self._value = None

    def cancel(self) -> None:
        """Make the event do nothing when its time comes."""
        if self.callbacks:
            self.callbacks.clear()


class Clock:
    """Absolute-time timers on a SimPy environment."""

    def __init__(self) -> None:
        self.env = simpy.Environment()
        self._num_watchers = 0

    @property
    def now(self) -> float:
        """Seconds since the start of the simulation, on the time grid."""
        return self.env._now

    def at(self, time: float, kind: Order, index: int, callback: Callback) -> Timer:
        """Call `callback` at `time`, in the order that `kind` and `index` give among events of that instant."""
        timer = Timer(self.env, callback)
        heappush(self.env._queue, (time, kind * KIND_WIDTH + index, next(self.env._eid), timer))  # type: ignore[misc]
        return timer

    def watch(self, time: float, callback: Callback) -> None:
        """Call `callback` at `time`, in the order of control loops. It only looks: by itself it keeps nothing going."""

        def look(event: simpy.Event) -> None:
            self._num_watchers -= 1
            callback(event)

        self._num_watchers += 1
        self.at(time, Order.CONTROL_LOOP, 0, look)

    @property
    def has_events(self) -> bool:
        """Whether anything is still to happen but for those who watch."""
        return len(self.env._queue) > self._num_watchers

    def more_now(self) -> bool:
        """Whether further events are due at the present instant."""
        queue = self.env._queue
        return bool(queue) and queue[0][0] <= self.env._now
