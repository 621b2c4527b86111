"""What the replicas of an experiment send, over which links, and how long that takes: the facts of `servesim topology`.

Messages of steps are those of the cost model; a KV transfer is timed alone on the fabric.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from sim.build import PoolBuilder, place
from sim.clock import Clock
from sim.cost.base import BatchShape
from sim.disaggregation import transfer_rules
from sim.fabric import Fabric

if TYPE_CHECKING:
    from sim.config import ExperimentConfig
    from sim.decisions import GpuSlot
    from sim.network import Link, Route
    from sim.topology import Place, Topology

Facts = dict[str, Any]


@dataclass(frozen=True)
class Load:
    """The steps to look at: a decode of `batch` sequences of `context` tokens, a prefill of `prompt` tokens."""

    batch: int = 32
    context: int = 1024
    prompt: int = 2048

    def steps(self, role: str) -> dict[str, tuple[BatchShape, int]]:
        """Shape and number of tokens of each step that replicas of this role do."""
        decode = BatchShape(
            num_decode_sequences=self.batch, decode_context=self.batch * self.context, max_context=self.context
        )
        pairs = self.prompt * (self.prompt + 1) // 2
        prefill = BatchShape(self.prompt, 1, pairs, self.prompt, max_context=self.prompt)
        steps = {}
        if role != "prefill":
            steps[f"decode of {self.batch} x {self.context} tokens"] = (decode, self.batch)
        if role != "decode":
            steps[f"prefill of {self.prompt} tokens"] = (prefill, self.prompt)
        return steps


def describe(config: ExperimentConfig, load: Load) -> Facts:
    """Places, messages of steps, KV transfers and assumptions as plain values: seconds, bytes, bytes per second."""
    topology = place(config)
    fabric = Fabric(Clock(), topology)
    builders = [PoolBuilder(config, i, False, False, topology) for i in range(len(config.cluster.pools))]
    notes = [note for builder in builders for note in builder.cost_notes]
    return {
        "replicas": [_replica(each, topology) for each in topology.places],
        "steps": [step for builder in builders for step in _steps(builder, fabric, load)],
        "transfers": list(_transfers(config, builders, fabric, load.prompt)),
        "notes": list(dict.fromkeys([*notes, *topology.assumptions()])),
    }


def _replica(each: Place, topology: Topology) -> Facts:
    return {
        "name": each.name,
        "gpu": each.shape.gpu,
        "stages": [{"stage": i, "nodes": _by_node(stage, topology)} for i, stage in enumerate(each.stages)],
    }


def _by_node(slots: Sequence[GpuSlot], topology: Topology) -> list[Facts]:
    gpus: dict[int, list[int]] = {}
    for slot in slots:
        gpus.setdefault(slot.node, []).append(slot.gpu)
    nodes = ((topology.nodes[index], numbers) for index, numbers in gpus.items())
    return [{"node": n.index, "kind": n.profile.name, "rack": n.rack, "gpus": numbers} for n, numbers in nodes]


def _steps(builder: PoolBuilder, fabric: Fabric, load: Load) -> Iterator[Facts]:
    """Steps of a pool's replicas; those that are joined in the same way are one entry."""
    topology = fabric.topology
    for joined in builder.interconnects:
        alike = [
            i
            for i, each in enumerate(topology.places)
            if each.pool == builder.index and topology.interconnect(i) == joined
        ]
        if not alike:
            continue
        cost = builder.other_costs.get(joined, builder.cost)
        for name, (shape, num_tokens) in load.steps(builder.pool.role).items():
            parts = cost.breakdown(shape)
            hops = _hops(builder, fabric, alike[0], {key: float(part["seconds"]) for key, part in parts.items()})
            num_bytes = num_tokens * builder.model.hidden_size * builder.model.dtype_bytes
            sized = [{**hop, "num_bytes": num_bytes, "bytes_a_step": num_bytes * hop["count"]} for hop in hops]
            slowest = min(sized, key=lambda hop: float(hop["bytes_per_second"]), default=None)
            yield {
                "replicas": ", ".join(topology.places[i].name for i in alike),
                "step": name,
                "seconds": cost.step_time(shape),
                "hops": sized,
                "slowest": slowest
                and {key: slowest[key] for key in ("link", "bytes_per_second", "bytes_per_second_together")},
            }


def _hops(builder: PoolBuilder, fabric: Fabric, replica: int, seconds: dict[str, float]) -> list[Facts]:
    """The messages of a step that the cost model times, each with the way from one GPU to the next that it takes.

    `bytes_per_second` is that of the slowest link of this way, `..._together` of all such links that are used at once.
    """
    each, layers = fabric.topology.places[replica], builder.model.num_layers
    joined = fabric.topology.interconnect(replica)
    crossings = joined.num_crossings if joined else 0
    counts = {
        "all_reduce": 2 * layers,
        "all_reduce_across_nodes": 2 * layers,
        "pipeline_send": each.shape.pipeline_parallel - 1 - crossings,
        "pipeline_send_across_nodes": crossings,
    }
    found = []
    for message in (key for key in counts if key in seconds):
        path = _path(fabric, each, message)
        slow = min(path, key=lambda link: link.bytes_per_second)
        rate = joined.bytes_per_second if joined and message.endswith("_across_nodes") else slow.bytes_per_second
        found.append(
            {
                "message": message,
                "link": slow.name,
                "bytes_per_second": slow.bytes_per_second,
                "bytes_per_second_together": rate,
                "path": [link.name for link in path],
                "count": counts[message],
                "seconds": seconds[message],
            }
        )
    return found


def _path(fabric: Fabric, each: Place, message: str) -> list[Link]:
    """The links from a GPU to the next one of its group or pipeline that lies in the same node, or in another one."""
    across = message.endswith("_across_nodes")
    ways = _pipeline_ways(each) if message.startswith("pipeline_send") else _group_ways(each)
    a, b = next((a, b) for a, b in ways if (a.node != b.node) == across)
    return list(fabric.hops(a, b))


def _group_ways(each: Place) -> Iterator[tuple[GpuSlot, GpuSlot]]:
    for stage in each.stages:
        yield from ((a, b) for i, a in enumerate(stage) for b in stage[i + 1 :])


def _pipeline_ways(each: Place) -> Iterator[tuple[GpuSlot, GpuSlot]]:
    for a, b in pairwise(each.stages):
        yield from zip(a, b, strict=True)


def _transfers(
    config: ExperimentConfig, builders: Sequence[PoolBuilder], fabric: Fabric, prompt: int
) -> Iterator[Facts]:
    """KV transfers of a prompt from prefill to decode replicas, or between the others; one of each kind of way."""
    seen: dict[tuple[Any, ...], Facts] = {}
    for source, destination in _pairs(config, fabric.topology):
        model = builders[fabric.topology.places[source].pool].model
        num_bytes = prompt * transfer_rules(config, model).bytes_per_token
        route = fabric.route(source, destination)
        hops = _links(route, num_bytes)
        key = (num_bytes, *((hop["link"], hop["count"], hop["num_bytes"]) for hop in hops))
        if key in seen:
            seen[key]["num_pairs"] += 1
            continue
        slowest = max(hops, key=lambda hop: float(hop["seconds"]))
        seen[key] = {
            "source": fabric.topology.places[source].name,
            "destination": fabric.topology.places[destination].name,
            "num_pairs": 1,
            "num_bytes": num_bytes,
            "seconds": fabric.expected_duration(source, destination, num_bytes),
            "latency": route.latency,
            "path": [link.name for link in route.links],
            "hops": hops,
            "slowest": {key: slowest[key] for key in ("link", "bytes_per_second")},
        }
    yield from seen.values()


def _pairs(config: ExperimentConfig, topology: Topology) -> Iterator[tuple[int, int]]:
    roles = [config.cluster.pools[each.pool].role for each in topology.places]
    numbers = range(len(roles))
    if {"prefill", "decode"} <= set(roles):
        yield from ((a, b) for a in numbers for b in numbers if (roles[a], roles[b]) == ("prefill", "decode"))
    else:
        yield from ((0, b) for b in numbers[1:])


def _links(route: Route, num_bytes: float) -> list[Facts]:
    """The links of a route by kind and direction: how many, and bytes and seconds of the one that carries most."""
    kinds: dict[tuple[str, float], Facts] = {}
    for link, streams in route.crossings:
        moved = num_bytes * streams / route.num_streams
        kind = ".".join(part for part in link.name.split(".") if not part.startswith(("node", "gpu", "nic")))
        hop = kinds.setdefault(
            (kind, link.bytes_per_second),
            {"link": kind, "count": 0, "bytes_per_second": link.bytes_per_second, "num_bytes": 0.0},
        )
        hop["count"] += 1
        hop["num_bytes"] = max(hop["num_bytes"], moved)
        hop["seconds"] = hop["num_bytes"] / link.bytes_per_second
    return list(kinds.values())
