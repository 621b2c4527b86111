"""Where the replicas of a cluster stand: nodes with their links, the GPUs of each replica, what lies between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

from sim.decisions import GpuSlot, NotPlaced
from sim.errors import InputError, PolicyError
from sim.hardware import Fact, HardwareProfile, load_gpu
from sim.interconnect import Interconnect
from sim.links import (
    DEFAULT_NIC,
    DEFAULT_PCIE,
    DEFAULT_SHARE,
    LinkProfile,
    NodeProfile,
    default_node,
    load_link,
    load_node,
)

if TYPE_CHECKING:
    from sim.config import ExperimentConfig, NetworkConfig
    from sim.interfaces import PlacementPolicy

T = TypeVar("T")
INFINITE = float("inf")


@dataclass(frozen=True)
class Port:
    """What one port carries: name of the link, bytes per second that transfers reach, seconds before the first byte."""

    link: str
    bytes_per_second: float
    latency: float = 0.0

    @classmethod
    def of(cls, link: LinkProfile) -> Port:
        """The port of a catalogue link."""
        return cls(link.name, link.bytes_per_second, link.latency)


@dataclass(frozen=True)
class Shape:
    """What a replica needs."""

    gpu: str
    tensor_parallel: int
    pipeline_parallel: int

    @property
    def num_gpus(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel


@dataclass(frozen=True)
class Node:
    """One server. `scaleup` None: its GPUs talk over PCIe."""

    index: int
    rack: int
    gpu: str
    profile: NodeProfile
    scaleup: Port | None
    pcie: Port
    nic: Port
    assumptions: tuple[str, ...]

    @property
    def num_gpus(self) -> int:
        return self.profile.num_gpus

    @property
    def free(self) -> Sequence[int]:
        """All GPUs: nodes are described before anything is placed."""
        return range(self.num_gpus)


@dataclass(frozen=True)
class Place:
    """The GPUs of one replica, in rank order."""

    name: str
    pool: int
    shape: Shape
    gpus: tuple[GpuSlot, ...]

    def stage(self, index: int) -> tuple[GpuSlot, ...]:
        """The tensor-parallel group of a pipeline stage."""
        size = self.shape.tensor_parallel
        return self.gpus[index * size : (index + 1) * size]

    @property
    def stages(self) -> list[tuple[GpuSlot, ...]]:
        return [self.stage(i) for i in range(self.shape.pipeline_parallel)]


@dataclass(frozen=True)
class Topology:
    """Nodes, places of all replicas, and what joins nodes.

    `uplink`: a rack's way to the others, None where racks limit nothing. `direct`: the one link that every replica
    sends through, where the experiment gives a plain bandwidth.
    """

    nodes: Mapping[int, Node]
    places: tuple[Place, ...]
    uplinks: Mapping[int, Port]
    direct: Port | None = None

    def interconnect(self, replica: int) -> Interconnect | None:
        """The ways between the nodes of a replica; None where it stands in one node."""
        stages = self.places[replica].stages
        crossings = sum(len(nodes_of((*a, *b))) > 1 for a, b in pairwise(stages))
        widest = max(stages, key=lambda stage: len(nodes_of(stage)))
        num_nodes = len(nodes_of(widest))
        if num_nodes == 1 and not crossings:
            return None
        slowest = self._slowest(stages)
        most = max(sum(slot.node == node for slot in widest) for node in nodes_of(widest))
        return Interconnect(slowest.link, slowest.bytes_per_second, slowest.latency, num_nodes, most, crossings)

    def _slowest(self, stages: Sequence[Sequence[GpuSlot]]) -> Port:
        """The narrowest port that leads out of a node, or out of a rack, of these stages."""
        port = min((self.way_out(stage) for stage in stages), key=_speed)
        racks = {self.nodes[slot.node].rack for stage in stages for slot in stage}
        uplinks = [self.uplinks[rack] for rack in sorted(racks) if rack in self.uplinks and len(racks) > 1]
        narrow = min(uplinks, key=_speed, default=port)
        return replace(narrow, latency=port.latency) if narrow.bytes_per_second < port.bytes_per_second else port

    def way_out(self, group: Sequence[GpuSlot]) -> Port:
        """What a group can send out of the node in which it has the least: all adapters of its GPUs together."""
        if self.direct is not None:
            return self.direct
        adapters: dict[int, set[int]] = {}
        for slot in group:
            adapters.setdefault(slot.node, set()).add(self.nodes[slot.node].profile.nic_of(slot.gpu))
        nics = ((self.nodes[node].nic, len(used)) for node, used in adapters.items())
        return min((replace(nic, bytes_per_second=nic.bytes_per_second * count) for nic, count in nics), key=_speed)

    def assumptions(self) -> list[str]:
        """What is not measured about the links in use, each sentence once; nothing where the speed is given."""
        if self.direct is not None:
            return []
        return list(dict.fromkeys(note for node in self.nodes.values() for note in node.assumptions))


def nodes_of(slots: Sequence[GpuSlot]) -> list[int]:
    """The nodes of some GPUs, each once, in order of rank."""
    return list(dict.fromkeys(slot.node for slot in slots))


def plan_topology(config: ExperimentConfig, policy: PlacementPolicy) -> Topology:
    """Describe the nodes that the pools need and let the policy place the replicas. `InputError`: they do not fit."""
    pools, network = config.cluster.pools, config.cluster.network
    gpus = [_at(config, f"cluster.pools.{i}.gpu", partial(load_gpu, pool.gpu)) for i, pool in enumerate(pools)]
    # Data-parallel ranks share their experts, so they stand together like a tensor-parallel group.
    widths = [pool.tensor_parallel * pool.data_parallel for pool in pools]
    shapes = [Shape(g.name, w, p.pipeline_parallel) for g, w, p in zip(gpus, widths, pools, strict=True)]
    pool_of = [i for i, pool in enumerate(pools) for _ in range(pool.replicas)]
    wanted = [shapes[i] for i in pool_of]
    nodes = describe_nodes(config, {gpu.name: gpu for gpu in gpus}, wanted)
    answer = policy.place(wanted, nodes)
    if isinstance(answer, NotPlaced):
        raise InputError(f"{config.where('cluster.placement')}: {answer.reason}")
    _check(type(policy).__name__, wanted, nodes, answer.replicas)
    places = tuple(
        Place(f"{pools[pool].name}-{i}", pool, shape, gpus)
        for i, (pool, shape, gpus) in enumerate(zip(pool_of, wanted, answer.replicas, strict=True))
    )
    used = {slot.node for place in places for slot in place.gpus}
    uplinks = _at(config, "cluster.network.rack_uplink.link", lambda: _uplinks(network, nodes))
    return Topology({node.index: node for node in nodes if node.index in used}, places, uplinks, _direct(network))


def _direct(network: NetworkConfig | None) -> Port | None:
    if network is None or network.bandwidth is None:
        return None
    return Port("link", network.bandwidth, network.latency)


def describe_nodes(
    config: ExperimentConfig, gpus: Mapping[str, HardwareProfile], wanted: Sequence[Shape]
) -> list[Node]:
    """Nodes in order of index, those of one GPU type in a row: as many as the network states, or as surely suffice."""
    network = config.cluster.network
    profiles = {name: _node_profile(config, name) for name in gpus}
    _check_node(config, profiles)
    profiles = {name: _resized(config, profile) for name, profile in profiles.items()}
    nodes: list[Node] = []
    for name, gpu in gpus.items():
        count = network.num_nodes if network else None
        count = count or _enough_nodes([shape for shape in wanted if shape.gpu == name], profiles[name].num_gpus)
        first = _at(config, "cluster.network.link", partial(_node, network, profiles[name], gpu))
        per_rack = (network.nodes_per_rack if network else None) or INFINITE
        for _ in range(count):
            nodes.append(replace(first, index=len(nodes), rack=int(len(nodes) // per_rack)))
    return nodes


def _node_profile(config: ExperimentConfig, gpu: str) -> NodeProfile:
    """The node that the network names where it takes the GPU, else the GPU's own."""
    network = config.cluster.network
    if network is None or network.node is None:
        return default_node(gpu)
    named = _at(config, "cluster.network.node", partial(load_node, network.node))
    return named if not named.gpus or gpu in named.gpus else default_node(gpu)


def _resized(config: ExperimentConfig, profile: NodeProfile) -> NodeProfile:
    """The node with the numbers of GPUs and adapters that the network gives."""
    network = config.cluster.network
    given = {"num_gpus": network.gpus_per_node, "num_nics": network.nics_per_node} if network else {}
    facts = {name: Fact(float(value), "", None) for name, value in given.items() if value is not None}
    node = replace(profile, facts={**profile.facts, **facts})
    if "num_nics" in facts and node.num_nics > node.num_gpus:
        where = config.where("cluster.network.nics_per_node")
        raise InputError(f"{where}: must not be above the {node.num_gpus} GPUs of a node: a GPU uses one adapter")
    return replace(node, facts={**node.facts, "num_nics": Fact(min(node.num_nics, node.num_gpus), "", None)})


def _check_node(config: ExperimentConfig, profiles: Mapping[str, NodeProfile]) -> None:
    """A node that is named must take the GPU of some pool."""
    network = config.cluster.network
    if network is None or network.node is None:
        return
    named = load_node(network.node)
    if named.name not in {profile.name for profile in profiles.values()}:
        where = config.where("cluster.network.node")
        raise InputError(f"{where}: '{named.name}' takes {', '.join(named.gpus)}; the pools have {', '.join(profiles)}")


def _node(network: NetworkConfig | None, profile: NodeProfile, gpu: HardwareProfile) -> Node:
    """A node of this kind with the links that the profiles and the network give it."""
    named = network.link if network else None
    nic = _between_nodes(named or profile.links["nic"] or DEFAULT_NIC)
    notes = nic.assumptions()
    if not named and profile.links["nic"] is None:
        notes.insert(0, f"node {profile.name}: its network adapters are not known, {DEFAULT_NIC} is assumed")
    scaleup = profile.links["scaleup"]
    ports = _scaleup(load_link(scaleup), gpu) if scaleup else None, _pcie(profile, gpu, notes)
    return Node(0, 0, gpu.name, profile, *ports, Port.of(nic), tuple(notes))


def _between_nodes(name: str) -> LinkProfile:
    link = load_link(name)
    if link.kind != "network":
        raise InputError(f"'{link.name}' joins GPUs within a node; allowed: links of kind network, as {DEFAULT_NIC}")
    return link


def _scaleup(link: LinkProfile, gpu: HardwareProfile) -> Port:
    """The port of a GPU to others of its node; its speed is the GPU's where that is known."""
    return Port(link.name, (gpu.get("scaleup_bandwidth") or link.bandwidth) * link.share, link.latency)


def _pcie(profile: NodeProfile, gpu: HardwareProfile, notes: list[str]) -> Port:
    """The port of a GPU to host and adapters: the node's link, else the GPU's speed, else an assumption."""
    named, bandwidth = profile.links["pcie"], gpu.get("pcie_bandwidth")
    if named is None and bandwidth is not None:
        return Port("pcie", bandwidth * DEFAULT_SHARE)
    if named is None:
        notes.append(f"node {profile.name} with {gpu.name}: its PCIe is not known, {DEFAULT_PCIE} is assumed")
    return Port.of(load_link(named or DEFAULT_PCIE))


def _uplinks(network: NetworkConfig | None, nodes: Sequence[Node]) -> dict[int, Port]:
    """Every rack's way to the others: a link for each adapter below, divided by the oversubscription."""
    if network is None or network.rack_uplink is None:
        return {}
    uplink, speeds = network.rack_uplink, dict[int, float]()
    own = None if uplink.link is None else _between_nodes(uplink.link)
    for node in nodes:
        one = own.bytes_per_second if own else node.nic.bytes_per_second
        speeds[node.rack] = speeds.get(node.rack, 0.0) + node.profile.num_nics * one / uplink.oversubscription
    return {rack: Port("rack uplink", speed) for rack, speed in speeds.items()}


def _enough_nodes(shapes: Sequence[Shape], num_gpus: int) -> int:
    """Nodes that suffice when each stage takes its nodes alone, or several replicas share one."""
    total = 0
    for shape, count in Counter(shapes).items():
        if shape.num_gpus <= num_gpus:
            total += -(-count // (num_gpus // shape.num_gpus))
        else:
            total += count * shape.pipeline_parallel * -(-shape.tensor_parallel // num_gpus)
    return total


def _check(policy: str, wanted: Sequence[Shape], nodes: Sequence[Node], placed: Sequence[Sequence[GpuSlot]]) -> None:
    """What a policy answered: the right number of GPUs of the right type for everyone, none twice."""
    known = {GpuSlot(node.index, gpu): node.gpu for node in nodes for gpu in node.free}
    taken: set[GpuSlot] = set()
    if len(placed) != len(wanted):
        raise PolicyError(f"{policy} placed {len(placed)} replicas of {len(wanted)}")
    for number, (shape, slots) in enumerate(zip(wanted, placed, strict=True)):
        wrong = [slot for slot in slots if known.get(slot) != shape.gpu or slot in taken]
        taken.update(slots)
        if wrong or len(set(slots)) != shape.num_gpus:
            raise PolicyError(
                f"{policy} gave replica {number}, which needs {shape.num_gpus} x {shape.gpu}, {list(slots)}"
            )


def _speed(port: Port) -> float:
    return port.bytes_per_second


def _at(config: ExperimentConfig, key_path: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except InputError as error:
        raise InputError(f"{config.where(key_path)}: {error}") from None
