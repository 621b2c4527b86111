"""How far a sequence has come, in output tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.views import SequenceView


def num_generated(seq: SequenceView) -> int:
    """Output tokens whose KV is scheduled; 0 while its prompt is computed for the first time."""
    return max(0, max(seq.num_computed, seq.num_known) - seq.num_prompt_tokens)


def num_remaining(seq: SequenceView) -> float:
    """Output tokens still to come, by prediction or else by declaration; 0 where it outlived its prediction."""
    expected = seq.predicted_output_tokens
    return max(0.0, (seq.max_output_tokens if expected is None else expected) - num_generated(seq))
