"""Times of single GPU kernels as fitted formulas: matrix products, attention, mixtures of experts, collectives.

Every formula has few physical coefficients, the same for all models, and is written once here: the calibration fits
these classes and the fitted cost model builds its tables from them. Times in seconds, rates per second, arrays of
float64. What is measured is one kernel (or one fused operation) per call; a step adds them up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sim.cost.surface import Surface

if TYPE_CHECKING:
    from sim.units import FloatArray

    Number = float | FloatArray


@dataclass(frozen=True)
class GemmKernel:
    """A product of (tokens x k) with (k x n): launch + soft maximum of memory and compute, times a correction.

    seconds = (launch + (memory^sharpness + compute^sharpness)^(1/sharpness)) * surface(tokens, n, k), with
    memory = (element_bytes n k + input_bytes tokens k + 2 tokens n) / bandwidth and compute = 2 tokens n k / flops.
    With 8-bit weights the time includes quantising the input, which `input_bytes` stands for. Thread blocks compute
    tiles of `tile_tokens` rows: above half a tile, compute counts the tokens of whole tiles.
    """

    launch: float
    bandwidth: float
    flops: float
    sharpness: float
    element_bytes: float
    input_bytes: float
    tile_tokens: float = 1.0
    surface: Surface | None = None

    def seconds(self, tokens: FloatArray, n: Number, k: Number) -> FloatArray:
        time = self.formula(tokens, n, k)
        return time if self.surface is None else time * self.surface.factor(tokens, np.asarray(n), np.asarray(k))

    def formula(self, tokens: FloatArray, n: Number, k: Number) -> FloatArray:
        """The time without the correction."""
        moved = self.element_bytes * n * k + self.input_bytes * tokens * k + 2.0 * tokens * n
        compute = 2.0 * self._computed(tokens) * n * k / self.flops
        return self.launch + soft_maximum(moved / self.bandwidth, compute, self.sharpness)

    def _computed(self, tokens: FloatArray) -> FloatArray:
        """Tokens of whole tiles, where there is more than half a tile."""
        whole = np.ceil(tokens / self.tile_tokens) * self.tile_tokens
        return np.asarray(np.where(2.0 * tokens > self.tile_tokens, whole, tokens))


@dataclass(frozen=True)
class DecodeKernel:
    """Attention of one new token per sequence over a paged cache, one layer.

    seconds = launch + reading + serial: reading is context bytes / bandwidth, joined with a floor per block of work
    (`per_block` for each sequence and key-value head, `per_head` for each query head): their sum, or the root of the
    sum of squares (`root`). serial is what the longest sequence adds, per_token * c / (1 + c / half_tokens).
    Isolated measurements whose cache fits in the L2 of the GPU read faster (`warm_share` of the bytes, well below
    `warm_bytes`); in a serving step other layers have passed since, so `warm` is False there.
    """

    launch: float
    bandwidth: float
    per_block: float
    per_head: float
    per_token: float
    half_tokens: float
    warm_share: float
    warm_bytes: float
    element_bytes: float
    root: bool

    def floor(self, batch: FloatArray, heads: Number, kv_heads: Number) -> FloatArray:
        """Seconds that `batch` sequences take however short they are."""
        return batch * (self.per_block * kv_heads + self.per_head * heads)

    def per_context_token(self, kv_heads: Number, head_dim: Number) -> Number:
        """Seconds per token of context of all sequences, read from memory."""
        return 2.0 * kv_heads * head_dim * self.element_bytes / self.bandwidth

    def serial(self, longest: FloatArray) -> FloatArray:
        """Seconds that the longest context adds."""
        return self.per_token * longest / (1.0 + longest / self.half_tokens)

    def seconds(
        self,
        batch: FloatArray,
        context: FloatArray,
        heads: Number,
        kv_heads: Number,
        head_dim: Number,
        warm: bool = False,
    ) -> FloatArray:
        """Time of `batch` sequences of equal `context`."""
        reading = batch * context * self.per_context_token(kv_heads, head_dim)
        if warm:
            reading = reading * self._warmth(2.0 * batch * context * kv_heads * head_dim * self.element_bytes)
        floor = self.floor(batch, heads, kv_heads)
        joined = np.sqrt(reading**2 + floor**2) if self.root else reading + floor
        return self.launch + joined + self.serial(context)

    def _warmth(self, moved: FloatArray) -> FloatArray:
        cold = 1.0 / (1.0 + (self.warm_bytes / moved) ** 8)
        return self.warm_share + (1.0 - self.warm_share) * cold


@dataclass(frozen=True)
class PrefillKernel:
    """Attention of prompt chunks, one layer; all terms add up, so that the chunks of a step can be summed.

    `flops` holds for head sizes above 64; up to 64 it is flops * small_head_share. `diagonal_tokens` pairs per new
    token stand for the masked half of the tiles on the diagonal. `per_query` and `per_key` are seconds per new token,
    head and element, `per_prefix` the same for a token that is only read. `per_token` is what the longest chunk adds
    per token of its context (the last tiles run alone).
    """

    launch: float
    flops: float
    small_head_share: float
    diagonal_tokens: float
    per_query: float
    per_key: float
    per_prefix: float
    per_token: float
    per_sequence_head: float

    def per_pair(self, heads: Number, head_dim: Number) -> FloatArray:
        """Seconds per query-key pair."""
        rate = np.where(np.asarray(head_dim) <= 64, self.flops * self.small_head_share, self.flops)
        return np.asarray(4.0 * heads * head_dim / rate)

    def per_new_token(self, heads: Number, kv_heads: Number, head_dim: Number) -> FloatArray:
        """Seconds per token of the chunks, their pairs apart."""
        moved = self.per_query * heads * head_dim + self.per_key * kv_heads * head_dim
        return moved + self.diagonal_tokens * self.per_pair(heads, head_dim)

    def seconds(
        self,
        batch: FloatArray,
        tokens: FloatArray,
        prefix: FloatArray,
        heads: Number,
        kv_heads: Number,
        head_dim: Number,
    ) -> FloatArray:
        """Time of `batch` chunks of equal length `tokens`, each after `prefix` tokens."""
        pairs = batch * tokens * (prefix + (tokens + 1.0) / 2.0)
        time = self.launch + self.per_pair(heads, head_dim) * pairs
        time = time + self.per_new_token(heads, kv_heads, head_dim) * batch * tokens
        time = time + self.per_prefix * batch * prefix * kv_heads * head_dim
        return time + self.per_token * (prefix + tokens) + self.per_sequence_head * batch * heads


@dataclass(frozen=True)
class MoeKernel:
    """The routed experts of one layer: both products, routing bookkeeping and the weighted sum.

    seconds = (launch + per_expert touched + per_row rows + per_new_token tokens + soft maximum(memory, compute)) *
    surface(rows per touched expert, parameters of one matrix, touched experts).
    """

    launch: float
    per_expert: float
    per_row: float
    per_new_token: float
    bandwidth: float
    activation_bandwidth: float
    flops: float
    padding_rows: float
    sharpness: float
    element_bytes: float
    surface: Surface | None = None

    def seconds(
        self,
        tokens: FloatArray,
        rows: FloatArray,
        touched: FloatArray,
        hidden: Number,
        width: Number,
        num_matrices: Number,
    ) -> FloatArray:
        """Time of `tokens` tokens that make `rows` (token, expert) rows over `touched` experts on this GPU.

        `hidden` and `width` are the sides of an expert's matrices on this GPU, `num_matrices` 3 (gated) or 2.
        """
        time = self.formula(tokens, rows, touched, hidden, width, num_matrices)
        if self.surface is None:
            return time
        one = np.asarray(hidden * width)
        return time * self.surface.factor(np.maximum(rows, touched) / touched, one, touched)

    def formula(
        self,
        tokens: FloatArray,
        rows: FloatArray,
        touched: FloatArray,
        hidden: Number,
        width: Number,
        num_matrices: Number,
    ) -> FloatArray:
        """The time without the correction."""
        weights = num_matrices * hidden * width
        memory = touched * weights * self.element_bytes / self.bandwidth
        memory = memory + 2.0 * rows * (2.0 * hidden + 3.0 * width) / self.activation_bandwidth
        compute = 2.0 * (rows + self.padding_rows * touched) * weights / self.flops
        fixed = self.launch + self.per_expert * touched + self.per_row * rows + self.per_new_token * tokens
        return fixed + soft_maximum(memory, compute, self.sharpness)


@dataclass(frozen=True)
class Collective:
    """Seconds by message size, straight lines between knots in log-log; beyond the last knot time grows with size."""

    log2_bytes: tuple[float, ...]
    log2_seconds: tuple[float, ...]

    def seconds(self, num_bytes: FloatArray) -> FloatArray:
        size = np.log2(np.maximum(num_bytes, 1.0))
        beyond = np.maximum(size - self.log2_bytes[-1], 0.0)
        return np.exp2(np.interp(size, self.log2_bytes, self.log2_seconds) + beyond)


@dataclass(frozen=True)
class SmallKernel:
    """An elementwise kernel: the larger of a fixed time (a little more for wide rows) and its bytes."""

    launch: float
    per_element: float  # seconds per element of a row, in the fixed part
    bandwidth: float

    def seconds(self, width: Number, moved: FloatArray) -> FloatArray:
        """Time over rows of `width` elements that move `moved` bytes together."""
        return np.asarray(np.maximum(self.launch + self.per_element * width, moved / self.bandwidth))


def soft_maximum(a: FloatArray, b: FloatArray, sharpness: float) -> FloatArray:
    """(a^k + b^k)^(1/k), scaled so that nothing overflows."""
    top = np.maximum(a, b)
    scale = np.where(top > 0, top, 1.0)
    return top * ((a / scale) ** sharpness + (b / scale) ** sharpness) ** (1.0 / sharpness)
