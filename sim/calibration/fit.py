"""Fits the kernel formulas of one GPU to tables of measured kernels, and scores them on shapes held out.

One set of coefficients per GPU, operation and data type, for all models. Held out are a fifth of the shapes: of (n, k)
for matrix products, (heads, kv_heads, head_dim) for attention, (hidden, inter, topk, num_experts) for experts, message
sizes for collectives, (hidden size, tensor_parallel) for elementwise kernels; chosen by hash (`tables.held_out_keys`).
They enter neither the formulas nor the correction surfaces. The stored coefficients are rounded before they are scored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.calibration.solve import Bounds, Parameters, fit_parameters, fit_surface, significant
from sim.calibration.tables import held_out_mask
from sim.cost.kernels import Collective, DecodeKernel, GemmKernel, MoeKernel, PrefillKernel, SmallKernel
from sim.hardware import HardwareProfile

if TYPE_CHECKING:
    import pandas as pd

    from sim.units import FloatArray

MICROSECOND = 1e-6
ELEMENT_BYTES = {"bfloat16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "w4a16_mxfp4": 0.53125, "nvfp4": 0.5625}
GEMM_KEY, ATTENTION_KEY = ("n", "k"), ("heads", "kv_heads", "head_dim")
MOE_KEY = ("hidden", "inter", "topk", "num_experts")

LARGE = 1024  # matrices at least this large on both sides decide the physical coefficients
# Tokens of a tile of matrix products. The tables hardly leave its multiples; Vidur's rows, of all multiples of 8, jump
# by 31, 37 and 30 per cent (medians) from 128, 256 and 384 tokens to eight more on A100, and by as much on H100.
TILE_TOKENS = 128.0
MIN_KEYS_FOR_SURFACE = 8  # fewer shapes cannot tell a correction from noise
MIN_DECODE_SECONDS = 20 * MICROSECOND  # shorter decode attention is launch time; weighed half and not scored
DECODE_WEIGHT_BELOW = 0.5
ROOT_PREFERENCE = 1.05  # the form with a root is taken unless it costs this much more than the sum

_TOKENS = (0.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0)
_SIDES = (5.0, 7.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 16.0)
GEMM_KNOTS = (_TOKENS, _SIDES, _SIDES)
MOE_KNOTS = (
    (0.0, 2.0, 4.0, 5.0, 6.0, 7.0, 8.0, 11.0),
    (14.0, 18.0, 20.0, 22.0, 23.0, 24.0, 25.0, 26.0),
    (0.0, 2.0, 3.0, 4.0, 6.0, 8.0),
)

# Experts without a gate in the public tables: (hidden, inter) of the Nemotron family (squared ReLU).
UNGATED_EXPERTS = {(2688, 1856), (2048, 5120), (1024, 2688), (1024, 5120), (4096, 2688)}


@dataclass(frozen=True)
class Score:
    """Errors on held-out rows: |predicted / measured - 1|; bias is the median of predicted / measured - 1."""

    num_rows: int
    num_keys: int
    median: float
    p90: float
    bias: float


@dataclass(frozen=True)
class Outcome:
    """A fitted kernel, the box of its data, and its score (None when no shape could be held out)."""

    kernel: Any
    region: Mapping[str, tuple[float, float]]
    score: Score | None


def fit_gemm(rows: pd.DataFrame, gpu: HardwareProfile, dtype: str) -> Outcome:
    """Matrix products of one type and backend."""
    held = held_out_mask(rows, GEMM_KEY)
    tokens, n, k, measured = _arrays(rows, "m", "n", "k")
    size = ELEMENT_BYTES[dtype]
    large = ~held & (n >= LARGE) & (k >= LARGE)
    chosen = large if large.sum() >= 50 else ~held
    bounds = _gemm_bounds(gpu, dtype)

    def model(p: Parameters) -> FloatArray:
        return _gemm_kernel(p, size).formula(tokens[chosen], n[chosen], k[chosen])

    found, _ = fit_parameters(model, measured[chosen], bounds)
    kernel = _gemm_kernel(found, size)
    if _num_keys(rows[~held], GEMM_KEY) >= MIN_KEYS_FOR_SURFACE * 4:
        residual = np.log(measured / kernel.formula(tokens, n, k))[~held]
        surface = fit_surface(GEMM_KNOTS, (tokens[~held], n[~held], k[~held]), residual)
        kernel = replace(kernel, surface=surface)
    score = _score(rows, held, GEMM_KEY, kernel.seconds(tokens, n, k), measured)
    return Outcome(kernel, _region(rows, tokens="m", n="n", k="k"), score)


def fit_decode(rows: pd.DataFrame, gpu: HardwareProfile, kv_dtype: str) -> Outcome:
    """Decode attention over a cache of one type."""
    held = held_out_mask(rows, ATTENTION_KEY)
    batch, context, heads, kv_heads, head_dim, measured = _arrays(rows, "batch", "kv_len", *ATTENTION_KEY)
    train = ~held
    weights = np.where(measured > MIN_DECODE_SECONDS, 1.0, DECODE_WEIGHT_BELOW)[train]
    fixed = {"element_bytes": ELEMENT_BYTES[kv_dtype]}
    fits: dict[bool, tuple[float, DecodeKernel]] = {}
    for root in (False, True):

        def model(p: Parameters, root: bool = root) -> FloatArray:
            kernel = DecodeKernel(**p, **fixed, root=root)
            times = kernel.seconds(batch, context, heads, kv_heads, head_dim, warm=True)
            return np.asarray(times[train])

        found, cost = fit_parameters(model, measured[train], _decode_bounds(gpu), weights)
        fits[root] = cost, DecodeKernel(**found, **fixed, root=root)
    # Blocks overlap with the reading of others, so the root holds beyond the fitted shapes too; only a clearly worse
    # fit speaks for the sum.
    chosen = fits[fits[True][0] < ROOT_PREFERENCE * fits[False][0]][1]
    predicted = chosen.seconds(batch, context, heads, kv_heads, head_dim, warm=True)
    scored = held & (measured > MIN_DECODE_SECONDS)
    region = _region(rows, batch="batch", context="kv_len", heads="heads", kv_heads="kv_heads", head_dim="head_dim")
    return Outcome(chosen, region, _score(rows, scored, ATTENTION_KEY, predicted, measured))


def fit_prefill(rows: pd.DataFrame, gpu: HardwareProfile, kv_dtype: str, decode: DecodeKernel | None) -> Outcome:
    """Prefill attention; a prefix costs what decoding it would, unless the table has prefixes."""
    rows = rows[(rows.q_len > 1) & (rows.head_dim <= 128)]
    held = held_out_mask(rows, ATTENTION_KEY)
    shape = _arrays(rows, "batch", "q_len", "prefix_len", *ATTENTION_KEY)
    columns, measured = shape[:-1], shape[-1]
    train = ~held
    bounds = _prefill_bounds(gpu)
    fixed: dict[str, float] = {}
    if not (rows.prefix_len > 0).any():
        del bounds["per_prefix"]
        read = 2.0 * ELEMENT_BYTES[kv_dtype] / (decode.bandwidth if decode else gpu.memory_bandwidth)
        fixed["per_prefix"] = significant(read)

    def model(p: Parameters) -> FloatArray:
        return PrefillKernel(**p, **fixed).seconds(*(column[train] for column in columns))

    found, _ = fit_parameters(model, measured[train], bounds)
    kernel = PrefillKernel(**found, **fixed)
    names = {"batch": "batch", "tokens": "q_len", "heads": "heads", "kv_heads": "kv_heads", "head_dim": "head_dim"}
    score = _score(rows, held, ATTENTION_KEY, kernel.seconds(*columns), measured)
    return Outcome(kernel, _region(rows, **names), score)


def fit_moe(rows: pd.DataFrame, gpu: HardwareProfile, dtype: str) -> Outcome:
    """Routed experts of one type, of the kernel that serves most rows."""
    rows = rows[rows.kernel == rows.kernel.value_counts().index[0]]
    held = held_out_mask(rows, MOE_KEY)
    shape, measured = moe_shape(rows), rows.time_us.to_numpy(dtype=float) * MICROSECOND
    train, size = ~held, ELEMENT_BYTES[dtype]

    def model(p: Parameters) -> FloatArray:
        return _moe_kernel(p, size).formula(*(column[train] for column in shape))

    found, _ = fit_parameters(model, measured[train], _moe_bounds(gpu, dtype))
    kernel = _moe_kernel(found, size)
    if _num_keys(rows[train], MOE_KEY) >= MIN_KEYS_FOR_SURFACE:
        _, routed, touched, hidden, width, _ = shape
        where = (np.maximum(routed, touched) / touched, hidden * width, touched)
        residual = np.log(measured / kernel.formula(*shape))[train]
        surface = fit_surface(MOE_KNOTS, tuple(axis[train] for axis in where), residual)
        kernel = replace(kernel, surface=surface)
    score = _score(rows, held, MOE_KEY, kernel.seconds(*shape), measured)
    names = {"tokens": "num_tokens", "hidden": "hidden", "inter": "inter", "num_experts": "num_experts"}
    return Outcome(kernel, _region(rows, **names), score)


def moe_shape(rows: pd.DataFrame) -> tuple[FloatArray, ...]:
    """tokens, rows, touched experts, hidden, width, matrices of table rows, as one GPU sees them.

    The tables deal tokens to experts evenly, so that rows touch as many experts as they can.
    """
    tokens, hidden, inter, topk, experts, tp, ep, _ = _arrays(
        rows, "num_tokens", "hidden", "inter", "topk", "num_experts", "moe_tp", "moe_ep"
    )
    routed = np.maximum(tokens * topk / ep, 1.0)
    touched = np.minimum(experts / ep, routed)
    pairs = zip(rows.hidden, rows.inter, strict=True)
    matrices = np.array([2.0 if pair in UNGATED_EXPERTS else 3.0 for pair in pairs])
    return tokens, routed, touched, hidden, inter / tp, matrices


def fit_collective(rows: pd.DataFrame) -> Outcome:
    """All-reduce among one number of GPUs: straight lines in log-log with a knot at every twofold size."""
    held = held_out_mask(rows, ("bytes",))
    size, measured = np.log2(rows.bytes.to_numpy(dtype=float)), rows.time_us.to_numpy(dtype=float) * MICROSECOND
    knots = np.arange(np.floor(size.min()), size.max() + 1.0)
    hats = np.array([np.interp(size[~held], knots, row) for row in np.eye(len(knots))]).T
    bends = 0.05 * np.diff(np.eye(len(knots)), n=2, axis=0)  # keeps knots without data on the line of their neighbours
    target = np.concatenate([np.log2(measured[~held]), np.zeros(len(bends))])
    values = np.linalg.lstsq(np.vstack([hats, bends]), target, rcond=None)[0]
    kernel = Collective(tuple(knots.tolist()), tuple(round(float(value), 3) for value in values))
    score = _score(rows, held, ("bytes",), kernel.seconds(2.0**size), measured)
    return Outcome(kernel, _region(rows, bytes="bytes"), score)


def fit_small(rows: pd.DataFrame, gpu: HardwareProfile, operation: str) -> Outcome:
    """An elementwise kernel of Vidur's table: norm, rope or activation."""
    held = held_out_mask(rows, ("n_embd", "tp"))
    width, moved = small_shape(rows, operation)
    measured = rows.time_us.to_numpy(dtype=float) * MICROSECOND
    bounds = {
        "launch": (1e-7, 2e-6, 2e-5),
        "per_element": (1e-14, 2e-10, 1e-8),
        "bandwidth": (0.05 * gpu.memory_bandwidth, 0.5 * gpu.memory_bandwidth, gpu.memory_bandwidth),
    }

    def model(p: Parameters) -> FloatArray:
        return np.asarray(SmallKernel(**p).seconds(width, moved)[~held])

    found, _ = fit_parameters(model, measured[~held], bounds)
    kernel = SmallKernel(**found)
    return Outcome(kernel, {}, _score(rows, held, ("n_embd", "tp"), kernel.seconds(width, moved), measured))


def small_shape(rows: pd.DataFrame, operation: str) -> tuple[FloatArray, FloatArray]:
    """Elements of a row and bytes moved (16 bit) of an elementwise kernel over the table's rows."""
    tokens, tp, hidden, heads, kv_heads, inter, gated, _ = _arrays(
        rows, "num_tokens", "tp", "n_embd", "n_head", "n_kv_head", "n_ff", "gated"
    )
    if operation == "norm":
        return hidden, 4.0 * tokens * hidden
    if operation == "rope":
        width = (heads + kv_heads) / tp * hidden / heads
        return width, 4.0 * tokens * width
    width = inter / tp
    return width, np.where(gated > 0, 6.0, 4.0) * tokens * width


def _arrays(rows: pd.DataFrame, *columns: str) -> tuple[Any, ...]:
    """The columns as floats, and last the measured time in seconds."""
    values = [rows[column].to_numpy(dtype=float) for column in columns]
    return *values, rows.time_us.to_numpy(dtype=float) * MICROSECOND


def _score(
    rows: pd.DataFrame, chosen: np.ndarray, key: Sequence[str], predicted: FloatArray, measured: FloatArray
) -> Score | None:
    if not chosen.any():
        return None
    ratio = predicted[chosen] / measured[chosen] - 1.0
    error = np.abs(ratio)
    median, p90, bias = float(np.median(error)), float(np.quantile(error, 0.9)), float(np.median(ratio))
    return Score(int(chosen.sum()), _num_keys(rows[chosen], key), median, p90, bias)


def _num_keys(rows: pd.DataFrame, key: Sequence[str]) -> int:
    return len(rows[list(key)].drop_duplicates())


def _region(rows: pd.DataFrame, **columns: str) -> dict[str, tuple[float, float]]:
    return {name: (float(rows[column].min()), float(rows[column].max())) for name, column in columns.items()}


def _gemm_bounds(gpu: HardwareProfile, dtype: str) -> Bounds:
    bandwidth, flops = gpu.memory_bandwidth, gpu.peak_flops("bf16" if dtype == "bfloat16" else "fp8")
    bounds = {
        "launch": (5e-7, 4e-6, 4e-5),
        "bandwidth": (0.2 * bandwidth, 0.8 * bandwidth, 1.05 * bandwidth),
        "flops": (0.1 * flops, 0.7 * flops, flops),
        "sharpness": (1.0, 2.5, 12.0),
    }
    return bounds if dtype == "bfloat16" else {**bounds, "input_bytes": (1.0, 6.0, 40.0)}


def _gemm_kernel(p: Parameters, element_bytes: float) -> GemmKernel:
    values = {"input_bytes": element_bytes, **p, "element_bytes": element_bytes, "tile_tokens": TILE_TOKENS}
    return GemmKernel(**values, surface=None)


def _moe_kernel(p: Parameters, element_bytes: float) -> MoeKernel:
    values = {**p, "element_bytes": element_bytes}
    return MoeKernel(**values, surface=None)


def _decode_bounds(gpu: HardwareProfile) -> Bounds:
    bandwidth = gpu.memory_bandwidth
    return {
        "launch": (1e-6, 9e-6, 4e-5),
        "bandwidth": (0.2 * bandwidth, 0.8 * bandwidth, 1.05 * bandwidth),
        "per_block": (1e-11, 2e-9, 2e-7),
        "per_head": (1e-12, 5e-10, 1e-7),
        "per_token": (1e-12, 3e-10, 2e-8),
        "half_tokens": (500.0, 1e5, 1e7),
        "warm_share": (0.05, 0.6, 1.0),
        "warm_bytes": (4e6, 3e7, 3e8),
    }


def _prefill_bounds(gpu: HardwareProfile) -> dict[str, tuple[float, float, float]]:
    bandwidth, flops = gpu.memory_bandwidth, gpu.peak_flops("bf16")
    return {
        "launch": (1e-6, 1e-5, 1e-4),
        "flops": (0.05 * flops, 0.5 * flops, flops),
        "small_head_share": (0.3, 0.9, 1.0),
        "diagonal_tokens": (0.01, 64.0, 3000.0),
        "per_query": (0.5 / bandwidth, 6.0 / bandwidth, 200.0 / bandwidth),
        "per_key": (0.5 / bandwidth, 6.0 / bandwidth, 200.0 / bandwidth),
        "per_prefix": (0.5 / bandwidth, 5.0 / bandwidth, 200.0 / bandwidth),
        "per_token": (1e-12, 5e-10, 3e-8),
        "per_sequence_head": (1e-12, 1e-9, 1e-6),
    }


def _moe_bounds(gpu: HardwareProfile, dtype: str) -> Bounds:
    bandwidth, flops = gpu.memory_bandwidth, gpu.peak_flops("fp8" if dtype.startswith("fp8") else "bf16")
    return {
        "launch": (1e-6, 2e-5, 2e-4),
        "per_expert": (1e-10, 2e-8, 2e-6),
        "per_row": (1e-12, 1e-10, 1e-6),
        "per_new_token": (1e-12, 1e-9, 5e-7),
        "bandwidth": (0.1 * bandwidth, 0.8 * bandwidth, 1.1 * bandwidth),
        "activation_bandwidth": (0.05 * bandwidth, 0.5 * bandwidth, 5.0 * bandwidth),
        "flops": (0.05 * flops, 0.6 * flops, flops),
        "padding_rows": (0.1, 16.0, 256.0),
        "sharpness": (1.0, 3.0, 8.0),
    }
