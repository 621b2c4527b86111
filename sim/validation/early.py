"""vLLM before CUDA graphs (2023 and early 2024): what its host added to each step, and what its kernels were not yet.

Layers were launched one by one from Python, so that a step takes at least a time per layer, however fast the GPU;
after each step the host worked on every sequence (scheduling, sampling, detokenization). Elementwise kernels were not
fused. The constants are one set for all models and both GPU types, except the time per layer, which belongs to the
host of a test bed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sim.cost import ExplainingCostModel
from sim.cost.base import BatchShape

if TYPE_CHECKING:
    from sim.units import FloatArray


@dataclass(frozen=True)
class HostTimes:
    """Seconds of the host: the least time of a layer's launches, and what every sequence of a step adds."""

    per_layer: float
    per_sequence: float


class HostBoundCost:
    """A cost model whose steps wait for the host: max(GPU, host launches) + time per sequence."""

    def __init__(self, gpu: ExplainingCostModel, num_layers: int, host: HostTimes) -> None:
        self._gpu = gpu
        self._floor = num_layers * host.per_layer
        self._per_sequence = host.per_sequence

    def step_time(self, shape: BatchShape) -> float:
        """Seconds of one step."""
        added = (shape.num_prefill_sequences + shape.num_decode_sequences) * self._per_sequence
        return max(self._gpu.step_time(shape), self._floor) + added

    def decode_times(self, num_sequences: int, context: int, max_context: int, num_steps: int) -> FloatArray:
        """Seconds of successive decode steps, the same bits as `step_time`."""
        times = self._gpu.decode_times(num_sequences, context, max_context, num_steps)
        return np.asarray(np.maximum(times, self._floor) + num_sequences * self._per_sequence)

    def breakdown(self, shape: BatchShape) -> dict[str, dict[str, float | str]]:
        """The GPU's operations, and what the host adds to them; the seconds add up to `step_time`."""
        parts = self._gpu.breakdown(shape)
        waiting = self.step_time(shape) - self._gpu.step_time(shape)
        return {**parts, "host": {"seconds": waiting, "flops": 0.0, "bytes": 0.0, "bound": "host"}}

    def extrapolation(self) -> list[str]:
        """What the GPU's model says about shapes outside its fit."""
        return self._gpu.extrapolation()
