"""Puts a fitted profile together from a folder of kernel tables, and writes it as YAML."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.calibration.fit import (
    Outcome,
    Score,
    fit_collective,
    fit_decode,
    fit_gemm,
    fit_moe,
    fit_prefill,
    fit_small,
)
from sim.calibration.solve import significant
from sim.calibration.tables import layer_gemms, mixed_attention, read_table, rows_of
from sim.errors import InputError
from sim.hardware import HardwareProfile, load_gpu

if TYPE_CHECKING:
    import pandas as pd

# Names of data types in profiles, by their names in the tables. fp8_block products of vLLM are left out: their times
# have a floor of 55 to 280 us that is host time. Experts of 8 bits are those of the block-scaled Triton kernel.
GEMM_DTYPES = {"bfloat16": "bf16", "fp8": "fp8"}
KV_DTYPES = {"bfloat16": "bf16", "fp8": "fp8"}
MOE_DTYPES = {"bfloat16": "bf16", "fp8_block": "fp8", "fp8": "fp8_per_tensor", "w4a16_mxfp4": "mxfp4"}
SMALL_OPS = {"norm": "post_attention_layernorm", "rope": "attn_rope", "activation": "mlp_act"}
OTHER_BACKENDS = ("sglang", "trtllm")
SMALL_OPS_FALLBACK = "h100-sxm"

# Constants of vLLM 0.15 beside its kernels, fitted by `servesim validate --fit` on eight measured servers
# (inference-sim/training@ed5c1d26: four models on 1 to 4 H100), 2026-11-29. Standard errors: small_ops_scale 9 %,
# mixed_step_per_layer 12 %, eager_step_per_layer 12 %, client_latency 14 %, per sequence 38 %. The sampler's two are
# fitted on eight runs of Qwen3-14B and Llama-3.1-8B of the same test bed (sim-to-real-accuracy-validation).
ENGINES: dict[str, dict[str, float]] = {
    "vllm-0.15": {
        "small_ops_scale": 0.619,
        "mixed_step_per_layer": 47.3e-6,
        "eager_step_per_layer": 111e-6,
        "sampler": 0.0,
        "sampler_per_logit": 0.134e-9,
        "max_graph_size": 512,
        "client_latency": 4.65e-3,
        "client_latency_per_sequence": 0.0433e-3,
    }
}


class Tables:
    """The tables of one folder, read when first asked for."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder of kernel tables")
        self.folder = folder
        self._read: dict[str, pd.DataFrame | None] = {}

    def get(self, name: str) -> pd.DataFrame | None:
        if name not in self._read:
            self._read[name] = read_table(self.folder, name)
        return self._read[name]


class _Builder:
    """Collects the sections and scores of one profile."""

    def __init__(self, tables: Tables, gpu: HardwareProfile) -> None:
        self.tables, self.gpu = tables, gpu
        self.errors: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.sources: set[str] = set()

    def add(self, section: dict[Any, Any], key: Any, operation: str, backend: str, outcome: Outcome) -> None:
        section[key] = {**kernel_values(outcome.kernel), "region": {k: list(v) for k, v in outcome.region.items()}}
        self.record(operation, str(key), backend, outcome.score)

    def record(self, operation: str, dtype: str, backend: str, score: Score | None) -> None:
        if score is not None:
            named = {"operation": operation, "dtype": dtype, "backend": backend}
            self.errors.append({**named, **{k: _rounded(v) for k, v in asdict(score).items()}})

    def rows(self, frame: pd.DataFrame | None, **equal: object) -> pd.DataFrame | None:
        found = rows_of(frame, self.gpu.name, **equal)
        if found is not None and "source" in found:
            self.sources |= set(found["source"].astype(str))
        return found


def fit_profile(tables: Tables, gpu_name: str, date: str, other_backends: bool = True) -> dict[str, Any]:
    """The values of a fitted profile of one GPU. `InputError` when the tables have nothing of it.

    With `other_backends` the same formulas are fitted to sglang and trtllm too, for their errors only.
    """
    builder = _Builder(tables, load_gpu(gpu_name))
    sections: dict[str, dict[Any, Any]] = {"gemm": _gemm_section(builder), **_attention_sections(builder)}
    if not sections["gemm"] or not sections["decode_attention"]:
        raise InputError(f"{tables.folder}: no gemm or decode attention rows of GPU '{builder.gpu.name}' by vllm")
    sections |= {
        "moe": _moe_section(builder),
        "all_reduce": _collective_section(builder),
        "small_ops": _small_section(builder),
    }
    if other_backends:
        for backend in OTHER_BACKENDS:
            _score_backend(builder, backend)
    return {
        "gpu": builder.gpu.name,
        "date": date,
        "kernel_source": f"vLLM kernels; tables: {', '.join(sorted(builder.sources)) or 'llmservingsim'}",
        "units": "seconds, bytes, FLOP/s, B/s; knots are log2, surface values natural logarithms",
        "notes": builder.notes,
        **sections,
        "engines": ENGINES,
        "errors": builder.errors,
    }


def _gemm_section(builder: _Builder) -> dict[Any, Any]:
    section: dict[Any, Any] = {}
    for table, name in GEMM_DTYPES.items():
        rows = builder.rows(builder.tables.get("gemm"), dtype=table, backend="vllm")
        if rows is None and name == "bf16":
            rows = builder.rows(layer_gemms(builder.tables.get("llmservingsim_layer_ops")))
        if rows is not None:
            builder.add(section, name, "gemm", "vllm", fit_gemm(rows, builder.gpu, table))
    return section


def _attention_sections(builder: _Builder) -> dict[str, dict[Any, Any]]:
    decode: dict[Any, Any] = {}
    prefill: dict[Any, Any] = {}
    for table, name in KV_DTYPES.items():
        decode_rows, prefill_rows = _attention_rows(builder, table, "vllm")
        outcome = None if decode_rows is None else fit_decode(decode_rows, builder.gpu, table)
        if outcome is not None:
            builder.add(decode, name, "decode_attention", "vllm", outcome)
        if prefill_rows is not None:
            fitted = fit_prefill(prefill_rows, builder.gpu, table, outcome.kernel if outcome else None)
            builder.add(prefill, name, "prefill_attention", "vllm", fitted)
    return {"decode_attention": decode, "prefill_attention": prefill}


def _attention_rows(builder: _Builder, kv_dtype: str, backend: str) -> tuple[pd.DataFrame | None, pd.DataFrame | None]:
    chosen = {"kv_dtype": kv_dtype, "backend": backend}
    decode = builder.rows(builder.tables.get("attention_decode"), **chosen)
    prefill = builder.rows(builder.tables.get("attention_prefill"), dtype="bfloat16", **chosen)
    if decode is None and prefill is None:
        mixed = mixed_attention(builder.rows(builder.tables.get("llmservingsim_attention_mixed")))
        if mixed is not None and backend == "vllm" and kv_dtype == "bfloat16":
            return mixed
    return decode, prefill


def _moe_section(builder: _Builder) -> dict[Any, Any]:
    section: dict[Any, Any] = {}
    for table, name in MOE_DTYPES.items():
        rows = builder.rows(builder.tables.get("moe"), dtype=table, distribution="balanced", backend="vllm")
        if rows is None and name == "bf16":
            rows = builder.rows(builder.tables.get("moe"), dtype=table, backend="vllm")
            if rows is not None:
                builder.notes.append("moe bf16: only measured with skewed routing, fitted as if it were even")
        if rows is not None:
            builder.add(section, name, "moe", "vllm", fit_moe(rows, builder.gpu, table))
    return section


def _collective_section(builder: _Builder) -> dict[Any, Any]:
    section: dict[Any, Any] = {}
    rows = builder.rows(builder.tables.get("collectives"), op="all_reduce")
    if rows is None:
        return section
    rows = rows[rows.library.str.contains("vLLM_custom_graph")]
    for world, part in rows.groupby("world"):
        builder.add(section, int(str(world)), "all_reduce", "vllm", fit_collective(part))
    return section


def _small_section(builder: _Builder) -> dict[Any, Any]:
    section: dict[Any, Any] = {}
    measured = builder.rows(builder.tables.get("vidur_mlp_ops"))
    source = builder.gpu if measured is not None else load_gpu(SMALL_OPS_FALLBACK)
    frame = builder.tables.get("vidur_mlp_ops")
    for name, operation in SMALL_OPS.items():
        rows = rows_of(frame, source.name, op=operation)
        if rows is None:
            raise InputError(f"{builder.tables.folder}: vidur_mlp_ops has no rows of op '{operation}' on {source.name}")
        outcome = fit_small(rows, source, name)
        scale = builder.gpu.memory_bandwidth / source.memory_bandwidth
        values = kernel_values(outcome.kernel)
        section[name] = {**values, "bandwidth": significant(values["bandwidth"] * scale)}
        if measured is not None:
            builder.record(f"small_ops.{name}", "bf16", "vidur", outcome.score)
    if measured is None:
        builder.notes.append(f"small_ops: not measured on this GPU; times of {source.name}, bytes at its own bandwidth")
    return section


def _score_backend(builder: _Builder, backend: str) -> None:
    for table, name in GEMM_DTYPES.items():
        rows = builder.rows(builder.tables.get("gemm"), dtype=table, backend=backend)
        if rows is not None:
            builder.record("gemm", name, backend, fit_gemm(rows, builder.gpu, table).score)
    for table, name in KV_DTYPES.items():
        decode, prefill = _attention_rows(builder, table, backend)
        outcome = None if decode is None else fit_decode(decode, builder.gpu, table)
        if outcome is not None:
            builder.record("decode_attention", name, backend, outcome.score)
        if prefill is not None:
            kernel = outcome.kernel if outcome else None
            builder.record("prefill_attention", name, backend, fit_prefill(prefill, builder.gpu, table, kernel).score)


def kernel_values(kernel: Any) -> dict[str, Any]:
    """The fields of a kernel as plain values for YAML; a missing surface is left out."""
    values: dict[str, Any] = {}
    for entry in fields(kernel):
        value = getattr(kernel, entry.name)
        if value is not None:
            values[entry.name] = _plain(value)
    return values


def write_profile(values: Mapping[str, Any], path: Path) -> None:
    """Write a profile atomically, lists on as few lines as fit."""
    text = "# Written by `servesim calibrate fit`; errors are those on shapes that entered no fit.\n" + emit(values)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None


def emit(values: Mapping[Any, Any], indent: int = 0) -> str:
    """YAML of nested mappings, lists of plain values and lists of flat mappings."""
    import textwrap

    from sim import yamlfile

    lines: list[str] = []
    pad = " " * indent
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            lines.append(f"{pad}{key}:\n{emit(value, indent + 2)}".rstrip("\n"))
        elif isinstance(value, list) and value and isinstance(value[0], Mapping | str):
            lines.append(f"{pad}{key}:")
            lines += [f"{pad}  - {_flow(item)}" for item in value]
        elif isinstance(value, list):
            head = f"{pad}{key}: "
            wrapped = textwrap.wrap(_flow(value), 118 - indent, initial_indent=head, subsequent_indent=pad + "  ")
            lines += wrapped
        else:
            lines.append(f"{pad}{key}: {yamlfile.dump(value).removesuffix('...' + chr(10)).strip()}")
    return "\n".join(lines) + "\n"


def _flow(value: Any) -> str:
    import yaml

    return (
        yaml.safe_dump(value, default_flow_style=True, width=1_000_000, sort_keys=False).removesuffix("...\n").strip()
    )


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "knots"):
        return {"knots": _plain(value.knots), "values": _plain(value.values)}
    return value


def _rounded(value: float) -> float:
    return value if isinstance(value, int) else round(float(np.asarray(value)), 4)
