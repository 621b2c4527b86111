"""Tables of measured kernels (CSV, optionally gzipped) and the choice of shapes that are held out of every fit.

The columns are those of the public tables collected from aiconfigurator, Vidur and LLMServingSim: gemm,
attention_decode, attention_prefill, moe, collectives, vidur_mlp_ops, llmservingsim_layer_ops and
llmservingsim_attention_mixed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.errors import InputError
from sim.hardware import load_gpu
from sim.model import load_model

if TYPE_CHECKING:
    import pandas as pd

HELD_OUT_SHARE = 0.2

COLUMNS: dict[str, tuple[str, ...]] = {
    "gemm": ("gpu", "dtype", "m", "n", "k", "time_us", "backend", "source"),
    "attention_decode": ("gpu", "backend", "kv_dtype", "batch", "heads", "kv_heads", "head_dim", "kv_len", "time_us"),
    "attention_prefill": (
        *("gpu", "backend", "dtype", "kv_dtype", "batch", "q_len", "prefix_len"),
        *("heads", "kv_heads", "head_dim", "time_us"),
    ),
    "moe": (
        *("gpu", "backend", "kernel", "dtype", "num_tokens", "hidden", "inter", "topk", "num_experts"),
        *("moe_tp", "moe_ep", "distribution", "time_us"),
    ),
    "collectives": ("gpu", "library", "op", "world", "bytes", "time_us"),
    "vidur_mlp_ops": ("gpu", "op", "tp", "num_tokens", "time_us", "n_head", "n_kv_head", "n_embd", "n_ff", "gated"),
    "llmservingsim_layer_ops": ("gpu", "model", "dtype", "tp", "op", "num_tokens", "time_us"),
    "llmservingsim_attention_mixed": (
        *("gpu", "model", "tp", "prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"),
    ),
}


def read_table(folder: Path, name: str) -> pd.DataFrame | None:
    """The table `name` of a folder, None when the folder has none. `InputError` for a file without the columns."""
    import pandas as pd

    for suffix in (".csv.gz", ".csv"):
        path = folder / f"{name}{suffix}"
        if path.is_file():
            break
    else:
        return None
    try:
        frame = pd.read_csv(path, low_memory=False)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as CSV ({error})") from None
    missing = [column for column in COLUMNS[name] if column not in frame]
    if missing:
        raise InputError(f"{path}: missing columns {', '.join(missing)}; needed: {', '.join(COLUMNS[name])}")
    return _checked(frame, path)


def rows_of(frame: pd.DataFrame | None, gpu: str, **equal: object) -> pd.DataFrame | None:
    """Rows of one GPU (by catalogue name) with the given values, None without any."""
    if frame is None:
        return None
    chosen = frame["gpu"].map(_catalogue_names(frame["gpu"].unique())) == gpu
    for column, value in equal.items():
        chosen &= frame[column] == value
    return frame[chosen] if chosen.any() else None


def held_out_keys(keys: Iterable[Sequence[Any]]) -> set[tuple[Any, ...]]:
    """The fifth of the distinct keys whose SHA-256 (of the values joined by commas) is smallest; at least one of five.

    Depends on nothing but the keys, so that nobody can choose them by result.
    """
    distinct = {tuple(key) for key in keys}
    ordered = sorted(distinct, key=lambda key: hashlib.sha256(",".join(map(str, key)).encode()).hexdigest())
    if len(ordered) < 3:
        return set()
    return set(ordered[: max(1, round(HELD_OUT_SHARE * len(ordered)))])


def held_out_mask(frame: pd.DataFrame, columns: Sequence[str]) -> np.ndarray:
    """True for the rows whose key (the values of `columns`) is held out."""
    keys = list(zip(*(frame[column].tolist() for column in columns), strict=True))
    held = held_out_keys(keys)
    return np.array([key in held for key in keys], dtype=bool)


def layer_gemms(frame: pd.DataFrame | None) -> pd.DataFrame | None:
    """Projections of LLMServingSim's layer table as rows of the gemm table."""
    import pandas as pd

    if frame is None:
        return None
    keys = sorted(set(zip(frame.model, frame.tp, frame.op, strict=True)))
    rows = [_gemm_rows(frame, *key) for key in keys if key[2] in _PROJECTIONS]
    return pd.concat(rows, ignore_index=True) if rows else None


def mixed_attention(frame: pd.DataFrame | None) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """Pure decode and pure prefill rows of LLMServingSim's attention table, as the other two tables have them."""
    import pandas as pd

    if frame is None:
        return None
    parts = []
    for model, tp in sorted(set(zip(frame.model, frame.tp, strict=True))):
        part, spec = frame[(frame.model == model) & (frame.tp == tp)], load_model(model)
        heads, kv_heads = spec.heads_per_gpu(tp), spec.kv_heads_per_gpu(tp)
        parts.append(part.assign(heads=heads, kv_heads=kv_heads, head_dim=spec.head_dim))
    both = pd.concat(parts, ignore_index=True).assign(backend="vllm", dtype="bfloat16", kv_dtype="bfloat16")
    decode = both[(both.prefill_chunk == 0) & (both.n_decode > 0)]
    prefill = both[(both.n_decode == 0) & (both.prefill_chunk > 0)]
    return (
        decode.rename(columns={"n_decode": "batch", "kv_decode": "kv_len"}),
        prefill.rename(columns={"prefill_chunk": "q_len", "kv_prefill": "prefix_len"}).assign(batch=1),
    )


_PROJECTIONS = {"qkv_proj": 0, "o_proj": 1, "gate_up_proj": 0, "down_proj": 1}


def _gemm_rows(frame: pd.DataFrame, model: str, tp: int, operation: str) -> pd.DataFrame:
    part = frame[(frame.model == model) & (frame.tp == tp) & (frame.op == operation)]
    spec = load_model(model)
    gemms = spec.attention_gemms(tp) if operation in ("qkv_proj", "o_proj") else spec.mlp_gemms(tp)
    gemm = gemms[_PROJECTIONS[operation]]
    renamed = part.rename(columns={"num_tokens": "m"})
    return renamed.assign(n=gemm.n, k=gemm.k, dtype="bfloat16", backend="vllm", source="llmservingsim")


def _checked(frame: pd.DataFrame, path: Path) -> pd.DataFrame:
    bad = frame.index[~(frame["time_us"] > 0)]
    if len(bad):
        raise InputError(
            f"{path}: row {bad[0] + 2}: time_us must be a positive number (got {frame['time_us'][bad[0]]!r})"
        )
    return frame


def _catalogue_names(names: Iterable[str]) -> dict[str, str | None]:
    return {name: _catalogue_name(name) for name in names}


def _catalogue_name(name: str) -> str | None:
    try:
        return load_gpu(name).name
    except InputError:
        return None
