"""What a cost model is asked: how long a step takes. Money is called price, elsewhere.

One arithmetic path: step times may use + - * / sqrt min max only, on scalars and on arrays alike, so that a vector of
coming steps has the same bits as the steps asked one by one. Powers, logs and table look-ups by interpolation belong
into tables that are built once, in the constructor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from sim.units import FloatArray


class BatchShape(NamedTuple):
    """The numbers of one batch that a cost model may see; no identities.

    A prefill chunk of n tokens over m tokens already computed contributes n to `num_prefill_tokens`, 1 to
    `num_prefill_sequences`, n*m + n*(n+1)/2 to `prefill_pairs` (query-key pairs under a causal mask) and m+n to
    `prefill_context`. A decode of a sequence whose context is c tokens *including the token being fed* contributes 1 to
    `num_decode_sequences` and c to `decode_context`. Where a decode also verifies d drafts, c includes them, d is added
    to `num_draft_tokens`, and d*c - d*(d+1)/2 to `draft_pairs` (the pairs of its other rows; the cache is read once).
    """

    num_prefill_tokens: int = 0
    num_prefill_sequences: int = 0
    prefill_pairs: int = 0  # query-key pairs of all chunks
    prefill_context: int = 0  # tokens of KV that the chunks read, their own included
    num_decode_sequences: int = 0
    decode_context: int = 0  # sum of context lengths of the decodes, the fed token included
    max_context: int = 0  # longest context in the batch, prefill or decode
    num_draft_tokens: int = 0  # query rows of the decodes beyond one each: drafts that are verified
    draft_pairs: int = 0  # query-key pairs of those rows


class CostModel(Protocol):
    """Seconds a step takes on one replica. Bound to one model, one GPU type and one parallelism."""

    def step_time(self, shape: BatchShape) -> float:
        """Seconds of one step with this batch; > 0 for a non-empty batch. Need not lie on the time grid."""
        ...

    def decode_times(self, num_sequences: int, context: int, max_context: int, num_steps: int) -> FloatArray:
        """Seconds of `num_steps` successive pure-decode steps of the same `num_sequences` sequences.

        Step i (from 0) has decode_context `context + i*num_sequences` and max_context `max_context + i`. Shape
        (num_steps,), float64; element i has the bits of
        `step_time(BatchShape(num_decode_sequences=num_sequences, decode_context=context + i*num_sequences,
        max_context=max_context + i))`.
        """
        ...
