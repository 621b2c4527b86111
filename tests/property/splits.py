"""Random clusters whose requests are split between prefill and decode replicas: plain values, and how to run them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from hypothesis import strategies as st
from scenarios import Scenario, Space, make_policy, make_simulation, scenarios

from policies.disaggregation.by_prompt_length import ByPromptLength
from policies.disaggregation.splitwise import Splitwise
from sim.clock import Clock
from sim.cluster import Cluster
from sim.disaggregation import losses
from sim.engine import EndFunction, Simulation
from sim.fabric import Fabric
from sim.inbox import Inbox
from sim.interfaces import DisaggregationPolicy
from sim.network import Crossing, Link, Network, Route
from sim.pools import Pool, Pools
from sim.transfer import TransferRules, Transfers

BYTES_PER_TOKEN = 1000


@dataclass(frozen=True)
class Splitting:
    """Replicas by role, how KV moves, and from which prompt length on requests are split."""

    num_prefill: int = 1
    num_decode: int = 1
    num_mixed: int = 0
    threshold: int | None = 0  # None: the splitwise policy, by memory and pending tokens
    mode: Literal["pull", "push"] = "pull"
    granularity: Literal["whole", "chunk", "layer"] = "whole"
    first_token: Literal["prefill", "decode"] = "prefill"
    tokens_per_unit: float = 20.0  # that a link moves in a unit of time
    latency: float = 0.0  # units
    blocking: bool = False  # heeded by pulls
    max_inflight_tokens: int | None = None
    reserved_tokens_per_sequence: int = 0
    failure_rate: float = 0.0
    retries: int = 0
    on_failure: Literal["recompute", "fail"] = "recompute"

    @property
    def policy(self) -> DisaggregationPolicy:
        return Splitwise(max_pending_tokens=20) if self.threshold is None else ByPromptLength(self.threshold)

    @property
    def rules(self) -> TransferRules:
        return TransferRules(
            bytes_per_token=BYTES_PER_TOKEN,
            num_layers=4,
            mode=self.mode,
            granularity=self.granularity,
            first_token=self.first_token,
            blocking=self.blocking and self.mode == "pull",
            max_inflight_tokens=self.max_inflight_tokens,
            reserved_tokens_per_sequence=self.reserved_tokens_per_sequence,
            failure_rate=self.failure_rate,
            retries=self.retries,
            on_failure=self.on_failure,
        )


class OneLinkEach(Fabric):
    """One link out of every replica, of `bytes_per_second` and `latency` seconds; nobody shares the way in."""

    def __init__(self, clock: Clock, bytes_per_second: float, latency: float) -> None:
        self.clock, self.network, self.links = clock, Network(clock), {}
        self._speed = bytes_per_second, latency

    def route(self, source: int, destination: int) -> Route:
        link = self.links.setdefault(str(source), Link(str(source), *self._speed))
        return Route((Crossing(link),), latency=link.latency)


def make_split_simulation(
    scenario: Scenario, splitting: Splitting, step_by_step: bool = False, step_log: bool = False
) -> Simulation:
    """The scenario's replicas by role: prefill first, then decode, then mixed ones."""
    scenario = replace(scenario, num_replicas=splitting.num_prefill + splitting.num_decode + splitting.num_mixed)

    def make_pools(cluster: Cluster, on_end: EndFunction) -> Pools:
        links = OneLinkEach(
            cluster.clock,
            splitting.tokens_per_unit * BYTES_PER_TOKEN / scenario.unit,
            splitting.latency * scenario.unit,
        )
        transfers = Transfers(cluster.clock, links, splitting.rules, losses(5, splitting.failure_rate), on_end)
        ends = splitting.num_prefill, splitting.num_prefill + splitting.num_decode
        parts = cluster.replicas[: ends[0]], cluster.replicas[ends[0] : ends[1]], cluster.replicas[ends[1] :]
        pools = []
        for i, (role, replicas) in enumerate(zip(("prefill", "decode", "mixed"), parts, strict=True)):
            pools.append(Pool(role, role, replicas, make_policy("router", scenario.router, i + 1), cluster))
            for replica in replicas if role != "prefill" else []:
                replica.inbox = Inbox(replica, splitting.rules)
        together = Pool("mixed", "mixed", parts[2], make_policy("router", scenario.router), cluster)
        return Pools(cluster, pools, together, splitting.policy, transfers)

    return make_simulation(scenario, step_by_step, step_log, make_pools=make_pools)


MOVES = (("pull", "whole"), ("push", "whole"), ("push", "chunk"), ("push", "layer"))


@st.composite
def splittings(draw: st.DrawFn, **given: Any) -> Splitting:
    """Few replicas, slow and fast links, every rule; `given` fields are always used."""
    pick: Callable[..., Any] = lambda *choices: draw(st.sampled_from(choices))  # noqa: E731
    mode, granularity = pick(*MOVES)
    replicas = pick((1, 1, 0), (1, 1, 0), (2, 1, 0), (1, 2, 0), (1, 1, 1), (1, 1, 1))
    splitting = Splitting(
        *replicas,
        threshold=pick(0, 0, 5, None),
        mode=mode,
        granularity=granularity,
        first_token=pick("prefill", "decode"),
        tokens_per_unit=pick(3.7, 20.0, 1000.0),
        latency=pick(0.0, 0.0, 0.21),
        max_inflight_tokens=pick(None, None, 1, 20),
        reserved_tokens_per_sequence=pick(0, 0, 3),
        failure_rate=pick(0.0, 0.0, 0.4),
        retries=pick(0, 1),
        on_failure=pick("recompute", "fail"),
    )
    return replace(splitting, **given)


@st.composite
def split_scenarios(draw: st.DrawFn, space: Space) -> Scenario:
    """Scenarios whose memory can be split; no padded batches."""
    scenario: Scenario = draw(scenarios(space))
    params = tuple((key, False if key == "padded" else value) for key, value in scenario.params)
    allocator = "radix" if scenario.allocator == "radix" else "paged"
    return replace(scenario, allocator=allocator, params=params)
