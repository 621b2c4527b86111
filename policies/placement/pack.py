"""Fill nodes in order: a replica goes to the first node with room for all of it, else its stages go one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sim.decisions import GpuSlot, NotPlaced, Placed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sim.views import NodeView, ReplicaShape

    Free = dict[int, list[int]]


@dataclass
class Pack:
    """Ranks are consecutive. A tensor-parallel group is split over nodes only where it is larger than a node.

    Source: textbook (first fit). Ignores: racks, how full a node's network cards are, failure domains.
    """

    def place(self, wanted: Sequence[ReplicaShape], nodes: Sequence[NodeView]) -> Placed | NotPlaced:
        free = {node.index: list(node.free) for node in nodes}
        placed = []
        for number, shape in enumerate(wanted):
            own = [node for node in nodes if node.gpu == shape.gpu and free[node.index]]
            gpus = _whole(shape, own, free) or _by_stages(shape, own, free)
            if gpus is None:
                left = ", ".join(f"{len(free[node.index])} on node {node.index}" for node in own) or "none"
                groups = f"{shape.pipeline_parallel} x {shape.tensor_parallel} {shape.gpu}"
                return NotPlaced(f"replica {number} of {len(wanted)} needs {groups}; GPUs left: {left}")
            placed.append(tuple(gpus))
        return Placed(tuple(placed))


def _whole(shape: ReplicaShape, nodes: Sequence[NodeView], free: Free) -> list[GpuSlot] | None:
    num_gpus = shape.tensor_parallel * shape.pipeline_parallel
    for node in nodes:
        if len(free[node.index]) >= num_gpus:
            return _take(node, num_gpus, free)
    return None


def _by_stages(shape: ReplicaShape, nodes: Sequence[NodeView], free: Free) -> list[GpuSlot] | None:
    gpus: list[GpuSlot] = []
    for _ in range(shape.pipeline_parallel):
        stage = _group(shape.tensor_parallel, nodes, free)
        if stage is None:
            return None
        gpus += stage
    return gpus


def _group(num_gpus: int, nodes: Sequence[NodeView], free: Free) -> list[GpuSlot] | None:
    for node in nodes:
        if len(free[node.index]) >= num_gpus:
            return _take(node, num_gpus, free)
    if any(node.num_gpus >= num_gpus for node in nodes) or sum(len(free[n.index]) for n in nodes) < num_gpus:
        return None
    gpus: list[GpuSlot] = []
    for node in nodes:
        gpus += _take(node, min(num_gpus - len(gpus), len(free[node.index])), free)
    return gpus


def _take(node: NodeView, num_gpus: int, free: Free) -> list[GpuSlot]:
    taken = free[node.index][:num_gpus]
    del free[node.index][:num_gpus]
    return [GpuSlot(node.index, gpu) for gpu in taken]
