"""How many tokens of KV a scheduler reserves for a sequence at its admission."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from sim.batch import BatchBuilder
    from sim.views import SequenceView

Reservation = Literal["max", "pow2", "oracle", "allocator"]


def output_length(seq: SequenceView) -> int:
    """Output tokens as predicted, else as declared; at least those that it has."""
    predicted = seq.predicted_output_tokens
    expected = seq.max_output_tokens if predicted is None else round(predicted)
    return max(expected, seq.num_known - seq.num_prompt_tokens, 1)


def reserved_tokens(seq: SequenceView, reservation: Reservation, max_model_len: int) -> int:
    """Prompt and output tokens for which blocks are reserved; 0 leaves it to the allocator."""
    if reservation == "allocator":
        return 0
    if reservation == "max":
        return max_model_len
    output = output_length(seq)
    if reservation == "pow2":
        output = 1 << (output - 1).bit_length()
    return min(seq.num_prompt_tokens + output, max_model_len)


def beyond_budget(batch: BatchBuilder, seq: SequenceView, hold_tokens: int) -> str | None:
    """Why a whole prompt with this reservation can never be admitted, or None."""
    most = min(batch.limits.max_num_batched_tokens, batch.limits.max_model_len)
    if seq.num_known > most:
        return f"prompt of {seq.num_known} tokens at its admission, at most {most} fit one step"
    blocks = -(-max(hold_tokens, seq.num_known) // batch.block_size)
    if blocks > batch.num_usable_blocks:
        return f"reserves {blocks} KV blocks, the replica has {batch.num_usable_blocks}"
    return None
