"""How the GPUs of a replica that spans several nodes are joined, and what its messages cost between the nodes.

An all-reduce within every node comes first (measured curves hold there), then one among the nodes, each of them sending
through all adapters that the group has in it: startup time plus bytes over speed, as a ring or as a tree, whichever is
faster (Thakur et al., 2005), times what libraries lose at medium sizes. Not modelled: other traffic on the same links,
overlap with computation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from sim.units import FloatArray

# Between two A100 of two nodes an all-reduce reaches 5.87 GB/s and a transfer 7.82 (NCCL, vidur a100_dgx).
COLLECTIVE_SHARE = 0.75
# What the formula has to be multiplied with at medium sizes, by log2 of bytes: the median over two nodes of 1, 2, 4
# and 8 A100 each, given their speed for large messages (NCCL, vidur a100_dgx). Single cases: 0.5 to 2.5. No other
# fabric was measured, and where latency is all (above 500 GB/s) a larger message can come out a little faster.
PROTOCOL_LOG2_BYTES = (15.0, 16.0, 17.0, 18.0, 19.0, 20.0, 21.0, 22.0, 23.0, 24.0)
PROTOCOL_FACTOR = (1.0, 1.12, 1.27, 1.58, 1.65, 1.40, 1.44, 1.14, 1.07, 1.0)


@dataclass(frozen=True)
class Interconnect:
    """The ways between the nodes of one replica. Bytes per second: reached by transfers, one direction, of one node."""

    link: str  # name of the slowest link on the way
    bytes_per_second: float
    latency: float
    num_nodes: int = 1  # that a tensor-parallel group spans
    group_gpus: int = 1  # of the group, in the node where it has most
    num_crossings: int = 0  # steps from one pipeline stage to the next that lead to another node

    def all_reduce(self, num_bytes: FloatArray) -> FloatArray:
        """Seconds of an all-reduce of so many bytes among the nodes, the parts within nodes apart."""
        nodes, rate = self.num_nodes, COLLECTIVE_SHARE * self.bytes_per_second
        ring = 2.0 * (nodes - 1) * self.latency + 2.0 * (nodes - 1) / nodes * num_bytes / rate
        tree = 2.0 * (nodes - 1).bit_length() * self.latency + 2.0 * num_bytes / rate
        size = np.log2(np.maximum(num_bytes, 1.0))
        return np.minimum(ring, tree) * np.interp(size, PROTOCOL_LOG2_BYTES, PROTOCOL_FACTOR)

    def send(self, num_bytes: FloatArray) -> FloatArray:
        """Seconds in which one pipeline stage hands so many bytes to the next, on another node."""
        return self.latency + num_bytes / self.bytes_per_second

    def note(self) -> str:
        """What a reader of step times must know."""
        speed = f"{self.bytes_per_second / 1e9:.4g} GB/s and {self.latency * 1e6:g} us"
        if self.num_nodes == 1:
            return f"transfers between pipeline stages on different nodes are computed from {self.link} ({speed})"
        groups = f"all-reduces of {self.num_nodes} nodes"
        return f"{groups} are computed from {self.link} ({speed} a node), not measured"
