"""Replicas, requests and signals as plain values, for tests of single routing decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sim.prefix_index import PrefixIndex


@dataclass
class Request:
    """What a router sees of a request; `ids` are its prefix ids."""

    row: int = 0
    arrival_time: float = 0.0
    num_prompt_tokens: int = 100
    max_output_tokens: int = 10
    predicted_output_tokens: float | None = None
    priority: int = 0
    tenant: str | None = None
    request_class: str | None = None
    adapter: str | None = None
    session: object | None = None
    ids: tuple[object, ...] = ()


@dataclass
class FakeReplica:
    """A replica that says what it is told to say."""

    index: int
    num_waiting: int = 0
    num_running: int = 0
    kv_usage: float = 0.0
    num_kv_blocks: int = 1000
    kv_block_size: int = 10
    prefill_speed: float = 1000.0
    decode_speed: float = 100.0

    @property
    def num_outstanding(self) -> int:
        return self.num_waiting + self.num_running


@dataclass
class FakeCluster:
    """A view of some replicas; loads by position."""

    replicas: list[FakeReplica]
    outstanding_requests: Any = None
    outstanding_tokens: Any = None

    def __post_init__(self) -> None:
        count = len(self.replicas)
        self.outstanding_requests = np.array(self.outstanding_requests or [0] * count)
        self.outstanding_tokens = np.array(self.outstanding_tokens or [0] * count)


@dataclass
class FakeSignals:
    """Signals of given numbers, by replica index."""

    replicas: list[FakeReplica]
    block_size: int = 10
    cached: Sequence[int] = ()
    prefills: Sequence[int] = ()
    asked: list[int] = field(default_factory=list)

    @property
    def num_replicas(self) -> int:
        return len(self.replicas)

    def prefix(self, request: Request) -> tuple[object, ...]:
        return request.ids

    def make_index(self) -> PrefixIndex:
        return PrefixIndex(len(self.replicas))

    def cached_tokens(self, request: Request) -> Any:
        return np.array(self.cached or [0] * len(self.replicas))

    @property
    def prefill_tokens(self) -> Any:
        return np.array(self.prefills or [0] * len(self.replicas))

    @property
    def num_waiting(self) -> Any:
        return np.array([replica.num_waiting for replica in self.replicas])

    @property
    def kv_usage(self) -> Any:
        return np.array([replica.kv_usage for replica in self.replicas])


def begun(router: Any, replicas: list[FakeReplica], **signals: Any) -> Any:
    """The router after `begin`, if it has one."""
    if hasattr(router, "begin"):
        router.begin(FakeSignals(replicas, **signals))
    return router


def equal(count: int) -> list[FakeReplica]:
    return [FakeReplica(i) for i in range(count)]
