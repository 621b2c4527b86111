"""What drafting adds to a step: a cost model around the target's that also runs the drafter.

A step with speculation is the target's forward pass over all tokens (drafts included), then the drafter's passes one
after another: the first over the tokens of the step, whose KV it needs too, the others over one token a sequence
(prompts whose chunk does not end included).

Not modelled: the projection of hidden states in front of an EAGLE layer, reduced draft vocabularies, the sampler that
compares drafts with the target's tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sim.cost.base import BatchShape

if TYPE_CHECKING:
    from sim.cost import ExplainingCostModel
    from sim.model import ModelSpec
    from sim.units import FloatArray


@dataclass(frozen=True)
class DraftingCost:
    """Seconds of a step: the target's, then `num_drafts` passes of the drafter.

    `draft` times the drafter's passes; without it each takes `cost_ratio` of the target's plain decode step of as many
    sequences (c of Leviathan et al. 2023, where the speed-up is E[tokens] / (k c + 1)).
    """

    target: ExplainingCostModel
    num_drafts: int
    draft: ExplainingCostModel | None = None
    cost_ratio: float = 0.0

    def step_time(self, shape: BatchShape) -> float:
        return self.target.step_time(shape) + self.draft_time(shape)

    def draft_time(self, shape: BatchShape) -> float:
        """Seconds of the drafter's passes after a step."""
        sequences = shape.num_prefill_sequences + shape.num_decode_sequences
        context, longest = shape.prefill_context + shape.decode_context, shape.max_context
        if self.draft is None:
            decodes = BatchShape(num_decode_sequences=sequences, decode_context=context, max_context=longest)
            return self.num_drafts * self.cost_ratio * self.target.step_time(decodes) if self.cost_ratio else 0.0
        total = self.draft.step_time(first_pass(shape))
        for i in range(1, self.num_drafts):
            total += self.draft.step_time(BatchShape(0, 0, 0, 0, sequences, context + i * sequences, longest + i))
        return total

    def decode_times(self, num_sequences: int, context: int, max_context: int, num_steps: int) -> FloatArray:
        times = self.target.decode_times(num_sequences, context, max_context, num_steps)
        for i in range(num_steps):
            longest = max_context + i
            times[i] += self.draft_time(BatchShape(0, 0, 0, 0, num_sequences, context + i * num_sequences, longest))
        return times

    def breakdown(self, shape: BatchShape) -> dict[str, dict[str, float | str]]:
        """The target's operations, and all drafting as one more."""
        drafting: dict[str, float | str] = {
            "seconds": self.draft_time(shape),
            "flops": 0.0,
            "bytes": 0.0,
            "bound": "drafter",
        }
        return {**self.target.breakdown(shape), "drafting": drafting}

    def extrapolation(self) -> list[str]:
        """The sentences of both models, and one on verification."""
        notes = [
            *self.target.extrapolation(),
            "verifying and drafting are computed from the same kernels, not calibrated",
        ]
        return notes if self.draft is None else notes + [f"drafter: {note}" for note in self.draft.extrapolation()]


def first_pass(shape: BatchShape) -> BatchShape:
    """The drafter's first pass: all tokens of the step as chunks, of which the last row of each is sampled."""
    if not shape.num_draft_tokens:
        return shape
    return BatchShape(
        shape.num_prefill_tokens + shape.num_decode_sequences + shape.num_draft_tokens,
        shape.num_prefill_sequences + shape.num_decode_sequences,
        shape.prefill_pairs + shape.decode_context + shape.draft_pairs,
        shape.prefill_context + shape.decode_context,
        max_context=shape.max_context,
    )


def one_layer_of(model: ModelSpec) -> ModelSpec:
    """An EAGLE or MTP drafter: one layer of the target with full attention, and the target's LM head."""
    return replace(model, name=f"{model.name} drafter", num_layers=1, num_sliding_layers=0, num_dense_layers=0)
