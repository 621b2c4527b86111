"""A fitted profile from this project's own measurements, by the same fits as profiles from public tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.calibration.fit import Outcome, fit_decode, fit_gemm, fit_prefill, fit_small
from sim.calibration.measure.records import parse_shape
from sim.calibration.origin import OWN_KEY
from sim.calibration.profile import ENGINES, SMALL_OPS, Tables, kernel_values
from sim.calibration.tables import rows_of
from sim.cost.kernels import DecodeKernel
from sim.cost.profile import FittedProfile
from sim.errors import InputError
from sim.hardware import load_gpu

if TYPE_CHECKING:
    import pandas as pd

    from sim.hardware import HardwareProfile
    from sim.units import FloatArray

DTYPE, NAME = "bfloat16", "bf16"
LIBRARY_ROWS = ("cublas", "own")  # backends of matrix products, in order of preference
NOT_MEASURED = (
    "not measured: 8-bit and 4-bit types, experts, collectives, what an engine adds",
    "attention is timed with this project's kernels, which are slower than those of serving engines: overheads and the "
    "shape of the formulas carry over, peaks of attention do not",
    "engine constants: those of vLLM 0.15 measured elsewhere",
)


def fit_own(folder: Path, gpu_name: str, date: str) -> dict[str, Any]:
    """The values of a profile from the tables in `folder`. `InputError` names the table that is missing."""
    tables, gpu = Tables(folder), load_gpu(gpu_name)
    backend, gemm_rows = _gemm_rows(tables, gpu.name)
    decode_rows = _rows(tables, "attention_decode", gpu.name)
    gemm = fit_gemm(gemm_rows, gpu, DTYPE)
    decode = fit_decode(decode_rows, gpu, DTYPE)
    prefill = fit_prefill(_rows(tables, "attention_prefill", gpu.name), gpu, DTYPE, decode.kernel)
    small = {name: fit_small(_small_rows(tables, gpu.name, op), gpu, name) for name, op in SMALL_OPS.items()}
    fits = {
        ("gemm", backend): gemm,
        ("decode_attention", "own"): decode,
        ("prefill_attention", "own"): prefill,
        **{(f"small_ops.{name}", "own"): outcome for name, outcome in small.items()},
    }
    return {
        **_head(gpu, date, backend),
        "gemm": {NAME: _section(gemm)},
        "decode_attention": {NAME: _section(decode)},
        "prefill_attention": {NAME: _section(prefill)},
        "moe": {},
        "all_reduce": {},
        "small_ops": {name: kernel_values(outcome.kernel) for name, outcome in small.items()},
        "engines": ENGINES,
        "errors": [_error(*key, outcome) for key, outcome in fits.items() if outcome.score is not None],
    }


def _head(gpu: HardwareProfile, date: str, backend: str) -> dict[str, Any]:
    return {
        "gpu": gpu.name,
        "date": date,
        OWN_KEY: "servesim calibrate measure",
        "kernel_source": f"matrix products: {backend}; attention and elementwise kernels: own",
        "units": "seconds, bytes, FLOP/s, B/s; knots are log2, surface values natural logarithms",
        "notes": list(NOT_MEASURED),
    }


def _gemm_rows(tables: Tables, gpu: str) -> tuple[str, pd.DataFrame]:
    """The rows of one library only: two are never mixed in one profile."""
    for backend in LIBRARY_ROWS:
        rows = rows_of(tables.get("gemm"), gpu, backend=backend)
        if rows is not None:
            return backend, rows
    raise InputError(f"{tables.folder}: no gemm rows of GPU '{gpu}' by {' or '.join(LIBRARY_ROWS)}")


def _rows(tables: Tables, name: str, gpu: str) -> pd.DataFrame:
    rows = rows_of(tables.get(name), gpu, backend="own")
    if rows is None:
        raise InputError(f"{tables.folder}: no {name} rows of GPU '{gpu}' by this project's kernels")
    return rows


def _small_rows(tables: Tables, gpu: str, operation: str) -> pd.DataFrame:
    rows = rows_of(tables.get("vidur_mlp_ops"), gpu, op=operation)
    if rows is None:
        raise InputError(f"{tables.folder}: vidur_mlp_ops has no rows of op '{operation}' on GPU '{gpu}'")
    return rows


def _section(outcome: Outcome) -> dict[str, Any]:
    return {**kernel_values(outcome.kernel), "region": {key: list(box) for key, box in outcome.region.items()}}


def _error(operation: str, backend: str, outcome: Outcome) -> dict[str, Any]:
    values = asdict(outcome.score) if outcome.score else {}
    rounded = {key: value if isinstance(value, int) else round(float(value), 4) for key, value in values.items()}
    return {"operation": operation, "dtype": NAME, "backend": backend, **rounded}


# --- what a profile predicts for measured points -------------------------------------------------------------------


def predict(profile: FittedProfile, table: str, shape: Mapping[str, int | str]) -> float:
    """Seconds that a profile gives for one measured point of a table of `calibrate measure`."""
    if table == "gemm":
        return float(profile.gemm[NAME].kernel.seconds(*(_one(shape[key]) for key in ("m", "n", "k")))[0])
    if table == "attention_decode":
        return _predict_decode(profile.decode_attention[NAME].kernel, shape)
    if table == "attention_prefill":
        keys = ("batch", "q_len", "prefix_len", "heads", "kv_heads", "head_dim")
        return float(profile.prefill_attention[NAME].kernel.seconds(*(_one(shape[key]) for key in keys))[0])
    if table == "vidur_mlp_ops":
        return _predict_small(profile, shape)
    return _predict_step(profile, shape)


def _predict_decode(kernel: DecodeKernel, shape: Mapping[str, int | str]) -> float:
    contexts = _contexts(shape)
    heads, kv_heads, dim = (float(shape[key]) for key in ("heads", "kv_heads", "head_dim"))
    reading = float(contexts.sum()) * float(kernel.per_context_token(kv_heads, dim))
    floor = float(kernel.floor(np.array([float(len(contexts))]), heads, kv_heads)[0])
    joined = float(np.hypot(reading, floor)) if kernel.root else reading + floor
    return kernel.launch + joined + float(kernel.serial(contexts.max(keepdims=True))[0])


def _contexts(shape: Mapping[str, int | str]) -> FloatArray:
    text = shape.get("contexts")
    if text is None:
        return np.full(int(shape["batch"]), float(shape["kv_len"]))
    return np.array([float(part) for part in str(text).split("+")])


def _predict_small(profile: FittedProfile, shape: Mapping[str, int | str]) -> float:
    tokens, hidden = float(shape["num_tokens"]), float(shape["n_embd"])
    name = next(name for name, operation in SMALL_OPS.items() if operation == shape["op"])
    if name == "norm":
        width, moved = hidden, 4.0 * tokens * hidden
    elif name == "rope":
        width = (float(shape["n_head"]) + float(shape["n_kv_head"])) * hidden / float(shape["n_head"])
        moved = 4.0 * tokens * width
    else:
        width = float(shape["n_ff"])
        moved = 6.0 * tokens * width
    return float(profile.small_ops[name].seconds(width, np.array([moved]))[0])


def _predict_step(profile: FittedProfile, shape: Mapping[str, int | str]) -> float:
    from sim.calibration.measure.grid import MODEL_HEADS, MODEL_LAYER
    from sim.calibration.measure.step import Step

    contexts = tuple(int(part) for part in str(shape["contexts"]).split("+"))
    chunk = (int(shape["chunk"]), int(shape["prefix"])) if int(shape["chunk"]) else None
    step = Step(contexts, chunk, MODEL_LAYER, MODEL_HEADS)
    one = sum(predict(profile, part.table, part.shape) for part in step.operations)
    return int(shape["layers"]) * one


def point_errors(profile: FittedProfile, points: pd.DataFrame) -> FloatArray:
    """log(measured / predicted) of each row of `records.medians`."""
    predicted = [predict(profile, row["table"], parse_shape(str(row["shape"]))) for _, row in points.iterrows()]
    return np.asarray(np.log(points["seconds"].to_numpy(dtype=float) / np.array(predicted)))


def _one(value: int | str) -> FloatArray:
    return np.array([float(value)])
