"""The fabric of a cluster: transfers between replicas, and between GPUs and their hosts, over shared links.

A transfer between replicas is as many parallel streams as the larger of them has GPUs, its bytes spread evenly:
stream k of n goes from GPU k * a // n of the source's a to GPU k * b // n of the destination's b. Within a node a
stream crosses the scale-up ports of both GPUs (PCIe where there are none); between nodes PCIe of the source, its
network adapter, the uplinks of the racks where they differ, the adapter and PCIe of the destination. Ports are
directed: sending and receiving do not disturb each other. Switches in a node or a rack are taken to limit nothing.

Not modelled: congestion below full rate, routing over several ways, the collectives of steps on the same links (their
time is part of the step), and in a plain network (`bandwidth`) anything but the link out of the source.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from sim.network import Crossing, Flow, Link, Network, Route

if TYPE_CHECKING:
    from sim.clock import Clock
    from sim.decisions import GpuSlot
    from sim.topology import Node, Port, Topology

OnDone = Callable[[Flow], None]


class LinkAccount(NamedTuple):
    """What one link carried: bytes, and seconds in which something moved; its speed in bytes per second."""

    link: str
    bytes_per_second: float
    num_bytes: float
    busy_time: float


class Fabric:
    """All transfers of a cluster on one clock. Replicas are given by their indices in the topology."""

    def __init__(self, clock: Clock, topology: Topology) -> None:
        self.clock = clock
        self.topology = topology
        self.network = Network(clock)
        self.links: dict[str, Link] = {}  # by name, those that some route crosses
        self._routes: dict[tuple[int, int], Route] = {}
        self._host_routes: dict[tuple[int, bool], Route] = {}

    def start(self, source: int, destination: int, num_bytes: float, on_done: OnDone) -> Flow:
        """Send bytes from now on; `on_done(flow)` is called when the last one has arrived."""
        return self.network.start(self.route(source, destination), num_bytes, on_done)

    def start_host(self, replica: int, num_bytes: float, to_host: bool, on_done: OnDone) -> Flow:
        """Copy bytes between a replica's GPUs (an equal share each) and their host, over PCIe."""
        return self.network.start(self.host_route(replica, to_host), num_bytes, on_done)

    def cancel(self, flow: Flow) -> None:
        """Give up what is left of a transfer; nothing happens where it has arrived."""
        self.network.cancel(flow)

    def expected_duration(self, source: int, destination: int, num_bytes: float) -> float:
        """Seconds that a transfer would take if it started now and nothing else came."""
        return self.network.expected_duration(self.route(source, destination), num_bytes)

    def expected_host_duration(self, replica: int, num_bytes: float, to_host: bool) -> float:
        """The same of a copy between GPUs and host."""
        return self.network.expected_duration(self.host_route(replica, to_host), num_bytes)

    def path(self, source: int, destination: int) -> tuple[Link, ...]:
        """The links that a transfer crosses; none from a replica to itself."""
        return self.route(source, destination).links

    def route(self, source: int, destination: int) -> Route:
        """The links of a transfer with the streams on each, and its latency."""
        key = (source, destination)
        if key not in self._routes:
            self._routes[key] = self._find(source, destination)
        return self._routes[key]

    def host_route(self, replica: int, to_host: bool) -> Route:
        """The PCIe links between a replica's GPUs and their host."""
        key = (replica, to_host)
        if key not in self._host_routes:
            gpus = self.topology.places[replica].gpus
            self._host_routes[key] = _route([[self._pcie(slot, "out" if to_host else "in")] for slot in gpus])
        return self._host_routes[key]

    def accounts(self) -> list[LinkAccount]:
        """Bytes and busy seconds of every link that a route crosses, as of now, in order of first use."""
        now = self.clock.now
        return [
            LinkAccount(link.name, link.bytes_per_second, link.bytes_done(now), link.busy_time(now))
            for link in self.links.values()
        ]

    def _find(self, source: int, destination: int) -> Route:
        places = self.topology.places
        if source == destination:
            return Route(())
        if self.topology.direct is not None:
            return _route([[self._link(f"{places[source].name}.out", self.topology.direct)]])
        a, b = places[source].gpus, places[destination].gpus
        n = max(len(a), len(b))
        return _route([list(self.hops(a[k * len(a) // n], b[k * len(b) // n])) for k in range(n)])

    def hops(self, a: GpuSlot, b: GpuSlot) -> Iterator[Link]:
        """The links from one GPU to another."""
        nodes = self.topology.nodes
        if a.node == b.node:
            within = nodes[a.node].scaleup or nodes[a.node].pcie
            yield self._link(f"{_gpu(a)}.{within.link}.out", within)
            yield self._link(f"{_gpu(b)}.{within.link}.in", within, first_byte=False)
            return
        yield self._pcie(a, "out")
        yield self._nic(nodes[a.node], a, "out")
        racks = nodes[a.node].rack, nodes[b.node].rack
        if racks[0] != racks[1] and self.topology.uplinks:
            yield self._link(f"rack{racks[0]}.out", self.topology.uplinks[racks[0]], first_byte=False)
            yield self._link(f"rack{racks[1]}.in", self.topology.uplinks[racks[1]], first_byte=False)
        yield self._nic(nodes[b.node], b, "in")
        yield self._pcie(b, "in")

    def _nic(self, node: Node, slot: GpuSlot, way: str) -> Link:
        name = f"node{node.index}.nic{node.profile.nic_of(slot.gpu)}.{node.nic.link}.{way}"
        return self._link(name, node.nic, first_byte=way == "out")

    def _pcie(self, slot: GpuSlot, way: str) -> Link:
        port = self.topology.nodes[slot.node].pcie
        return self._link(f"{_gpu(slot)}.{port.link}.{way}", port)

    def _link(self, name: str, port: Port, first_byte: bool = True) -> Link:
        """The link of that name. The latency of a cable counts once: where bytes leave."""
        if name not in self.links:
            self.links[name] = Link(name, port.bytes_per_second, port.latency if first_byte else 0.0)
        return self.links[name]


def _gpu(slot: GpuSlot) -> str:
    return f"node{slot.node}.gpu{slot.gpu}"


def _route(streams: list[list[Link]]) -> Route:
    """The route of parallel streams; the first byte of the slowest one counts."""
    counts = Counter(link for stream in streams for link in stream)
    latency = max(sum(link.latency for link in stream) for stream in streams)
    return Route(tuple(Crossing(link, count) for link, count in counts.items()), len(streams), latency)
