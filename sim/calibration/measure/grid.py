"""Which shapes are measured: few enough for minutes, chosen so that the formulas can be told apart.

Contexts vary at equal batch, tokens lie on and just behind tile edges, a part of the decodes has uneven contexts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sim.calibration.measure.attention import BLOCK_SIZE, Decode, Heads, Prefill
from sim.calibration.measure.bench import Operation
from sim.calibration.measure.elementwise import TABLE_NAMES, Elementwise, Layer
from sim.calibration.measure.matrices import Gemm
from sim.calibration.measure.step import Step

if TYPE_CHECKING:
    from sim.units import FloatArray

SIDES = (1024, 2048, 4096, 8192, 14336, 28672)
EXTRA_SIDES = ((6144, 4096), (2560, 5120), (5120, 5120), (7168, 5120), (3072, 3072), (10240, 8192), (1536, 8960))
TOKENS = (1, 4, 16, 32, 64, 128, 129, 256, 257, 512, 1024, 2048, 4096)
DECODE_HEADS = (
    *(Heads(32, 8, 128), Heads(64, 8, 128), Heads(32, 32, 128), Heads(8, 1, 128), Heads(8, 2, 128), Heads(16, 4, 128)),
    *(Heads(16, 2, 128), Heads(8, 8, 128), Heads(32, 8, 64), Heads(64, 8, 64)),
)
BATCHES = (1, 4, 16, 64, 256)
CONTEXTS = (128, 1024, 4096, 16384)
PREFILL_HEADS = (
    *(Heads(32, 8, 128), Heads(64, 8, 128), Heads(32, 32, 128), Heads(16, 4, 128), Heads(8, 1, 128)),
    Heads(32, 8, 64),
)
CHUNKS = (16, 64, 256, 512, 1024, 2048, 4096)
PREFIXES = (0, 1024, 4096, 16384)
MODEL_LAYER = Layer(4096, 32, 8, 14336)
LAYERS = (MODEL_LAYER, Layer(8192, 64, 8, 28672), Layer(3072, 24, 8, 8192), Layer(5120, 40, 8, 13824))
ELEMENTWISE_TOKENS = (1, 16, 128, 1024, 4096)
MODEL_HEADS = Heads(32, 8, 128)
LONGEST_CONTEXT = 16384
COPY_SIZES = tuple(2**power for power in (16, 18, 20, 22, 24, 26, 28, 30))


@dataclass(frozen=True)
class Grid:
    """The points of one measurement: `points` enter the fit, `held_out` are whole steps that only test it."""

    checks: tuple[Operation, ...]
    points: tuple[Operation, ...]
    held_out: tuple[Operation, ...]
    copy_sizes: tuple[int, ...]
    peak_iterations: int


def full_grid(max_bytes: int, seed: int = 0) -> Grid:
    """All points whose data fits into `max_bytes`."""
    rng = np.random.default_rng(seed)
    points: list[Operation] = [
        *gemm_points(),
        *decode_points(),
        *uneven_decodes(rng, 30),
        *prefill_points(),
        *elementwise_points(),
    ]
    steps = random_steps(rng, 60)
    fitting = tuple(point for point in points if needed_bytes(point) <= max_bytes)
    return Grid(
        correctness_points(), fitting, tuple(s for s in steps if needed_bytes(s) <= max_bytes), COPY_SIZES, 4096
    )


def quick_grid(max_bytes: int, seed: int = 1) -> Grid:
    """A few points of each kind, to see whether a profile still holds."""
    whole = full_grid(max_bytes, seed)
    rng = np.random.default_rng(seed)
    kinds = sorted({point.table for point in whole.points})
    chosen: list[Operation] = []
    for kind in kinds:
        of_kind = [point for point in whole.points if point.table == kind]
        picked = rng.choice(len(of_kind), size=min(8, len(of_kind)), replace=False)
        chosen += [of_kind[i] for i in sorted(picked)]
    return Grid(whole.checks, tuple(chosen), whole.held_out[:8], (2**20, 2**26), 4096)


def gemm_points() -> list[Gemm]:
    """Square and oblong weights over token counts."""
    sides = [(n, k) for n in SIDES for k in SIDES if n * k <= 28672 * 8192]
    return [Gemm(m, n, k) for n, k in (*sides, *EXTRA_SIDES) for m in TOKENS]


def decode_points() -> list[Decode]:
    """Equal contexts."""
    return [Decode((context,) * batch, heads) for heads in DECODE_HEADS for batch in BATCHES for context in CONTEXTS]


def uneven_decodes(rng: np.random.Generator, count: int) -> list[Decode]:
    """Contexts log-uniform between a random pair of lengths, as batches of a server have them."""
    return [Decode(random_contexts(rng, round(2.0 ** rng.uniform(1, 8))), MODEL_HEADS) for _ in range(count)]


def prefill_points() -> list[Prefill]:
    """One chunk after prefixes, and several short ones."""
    single = [Prefill(((n, m),), heads) for heads in PREFILL_HEADS for n in CHUNKS for m in PREFIXES]
    several = [Prefill(((n, 0),) * b, heads) for heads in PREFILL_HEADS for b in (4, 16) for n in (64, 512)]
    return [*single, *several]


def elementwise_points() -> list[Elementwise]:
    """Norm, rotary embedding and activation of four layers."""
    return [Elementwise(name, t, layer) for layer in LAYERS for name in TABLE_NAMES for t in ELEMENTWISE_TOKENS]


def random_steps(rng: np.random.Generator, count: int) -> list[Step]:
    """Whole steps of a small model as a server mixes them: half pure decode, half with one chunk."""
    return [_random_step(rng, with_chunk=i % 2 == 1) for i in range(count)]


def _random_step(rng: np.random.Generator, with_chunk: bool) -> Step:
    contexts = random_contexts(rng, round(2.0 ** rng.uniform(0, 7)))
    chunk = None
    if with_chunk:
        chunk = round(2.0 ** rng.uniform(5, 11)), int(rng.integers(0, 2) * round(2.0 ** rng.uniform(6, 12)))
    return Step(contexts, chunk, MODEL_LAYER, MODEL_HEADS)


def random_contexts(rng: np.random.Generator, count: int) -> tuple[int, ...]:
    """`count` lengths, log-uniform between two random bounds."""
    low, high = np.sort(rng.uniform(np.log2(64), np.log2(LONGEST_CONTEXT), 2))
    lengths: FloatArray = np.round(2.0 ** rng.uniform(low, high, count))
    return tuple(int(length) for length in lengths)


def correctness_points() -> tuple[Operation, ...]:
    """Small ragged shapes on which every kernel is compared with float64: edges, prefixes, splits, groups."""
    small = Layer(256, 4, 2, 96)
    attention: Sequence[Operation] = (
        Decode((5, 37, 90), Heads(8, 2, 64)),
        Decode((20, 30), Heads(16, 2, 64)),
        Decode((300, 17, 555), Heads(4, 4, 128)),
        Decode((600,), Heads(8, 1, 128)),
        Decode((33, 64), Heads(8, 2, 128)),
        Prefill(((70, 0),), Heads(4, 2, 64)),
        Prefill(((5, 100), (66, 13)), Heads(4, 1, 128)),
    )
    products = (Gemm(5, 40, 72), Gemm(70, 136, 104), Gemm(130, 264, 40))
    return (*products, *attention, *(Elementwise(name, 3, small) for name in TABLE_NAMES))


def needed_bytes(point: Operation) -> int:
    """Bytes of random data that a point needs at once."""
    if isinstance(point, Gemm):
        return 2 * max(point.n * point.k, point.m * point.k)
    if isinstance(point, Decode | Prefill):
        lengths = point.contexts if isinstance(point, Decode) else tuple(sum(chunk) for chunk in point.chunks)
        blocks = sum(-(-length // BLOCK_SIZE) for length in lengths)
        return 2 * blocks * BLOCK_SIZE * point.heads.cache_bytes
    if isinstance(point, Step):
        return max(needed_bytes(part) for part in point.operations)
    return int(2 * point.shape["num_tokens"] * 2 * max(int(point.shape["n_ff"]), int(point.shape["n_embd"])))
