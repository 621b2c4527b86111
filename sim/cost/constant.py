"""The cost model of closed forms: a step takes a fixed time plus linear terms that are zero unless given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sim.cost.base import BatchShape
from sim.errors import InputError

if TYPE_CHECKING:
    from sim.units import FloatArray


@dataclass(frozen=True)
class ConstantCost:
    """Seconds of a step = step_time + the linear terms. Parameters in seconds.

    `step_duration` must make every non-empty batch take longer than zero, alone or with the other terms.
    """

    step_duration: float = 0.01
    per_prefill_token: float = 0.0
    per_sequence: float = 0.0
    per_context_token: float = 0.0  # of all sequences, prefill chunks included
    per_draft_token: float = 0.0  # drafts that are verified

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value < float("inf"):
                raise InputError(f"cost_model.{name} must be a number of seconds >= 0 (got {value!r})")
        if self.step_duration == 0 and self.per_sequence == 0:
            raise InputError("cost_model: step_duration and per_sequence are both 0, so a step would take no time")

    def step_time(self, shape: BatchShape) -> float:
        num_sequences = shape.num_prefill_sequences + shape.num_decode_sequences
        context = float(shape.prefill_context + shape.decode_context)
        base = self.step_duration + self.per_sequence * num_sequences
        time = base + self.per_prefill_token * shape.num_prefill_tokens + self.per_context_token * context
        return time + self.per_draft_token * shape.num_draft_tokens

    def decode_times(self, num_sequences: int, context: int, max_context: int, num_steps: int) -> FloatArray:
        base = self.step_duration + self.per_sequence * num_sequences
        if self.per_context_token == 0.0:
            return np.full(num_steps, base)
        times = decode_contexts(num_sequences, context, num_steps)
        times *= self.per_context_token
        times += base
        return times

    def breakdown(self, shape: BatchShape) -> dict[str, dict[str, float | str]]:
        """The whole step as one operation; nothing is known of its work."""
        return {"step": {"seconds": self.step_time(shape), "flops": 0.0, "bytes": 0.0, "bound": "constant"}}

    def extrapolation(self) -> list[str]:
        """What was asked outside the calibrated region: nothing, there is none."""
        return []


def decode_contexts(num_sequences: int, context: int, num_steps: int) -> FloatArray:
    """`context + i * num_sequences` for i in 0..num_steps-1, as exact floats."""
    return np.arange(context, context + num_sequences * num_steps, num_sequences, dtype=np.float64)
