"""Two figures of a measurement: predicted against measured time, and the achieved share of the roofline by size."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.calibration.measure.own_profile import predict
from sim.calibration.measure.records import medians, parse_shape, read_raw
from sim.hardware import load_gpu

if TYPE_CHECKING:
    import pandas as pd

    from sim.cost.profile import FittedProfile
    from sim.hardware import HardwareProfile
    from sim.units import FloatArray

LABELS = {
    "gemm": "matrix products",
    "attention_decode": "decode attention",
    "attention_prefill": "prefill attention",
    "vidur_mlp_ops": "elementwise",
    "steps": "whole steps (held out)",
}


def write_plots(folder: Path, profile: FittedProfile) -> list[Path]:
    """Write predicted.png and roofline.png into the folder of a measurement."""
    from matplotlib.figure import Figure

    points = medians(read_raw(folder / "raw.csv"))
    paths = []
    for name, draw in (("predicted", _predicted), ("roofline", _roofline)):
        figure = Figure(figsize=(7.0, 5.0), layout="constrained")
        draw(figure.subplots(), points, profile)
        figure.savefig(folder / f"{name}.png", dpi=120)
        paths.append(folder / f"{name}.png")
    return paths


def _predicted(axes: Any, points: pd.DataFrame, profile: FittedProfile) -> None:
    for table, part in points.groupby("table"):
        measured = part.seconds.to_numpy(dtype=float) * 1e6
        ours = [1e6 * predict(profile, str(table), parse_shape(str(text))) for text in part["shape"]]
        axes.loglog(measured, ours, ".", markersize=4, label=LABELS.get(str(table), str(table)))
    low, high = points.seconds.min() * 1e6, points.seconds.max() * 1e6
    line = np.array([low, high])
    axes.plot(line, line, color="0.3", linewidth=0.8)
    axes.fill_between(line, 0.9 * line, 1.1 * line, color="0.8", zorder=0, label="within 10 %")
    axes.set(xlabel="measured, microseconds", ylabel="predicted, microseconds")
    axes.legend()


def _roofline(axes: Any, points: pd.DataFrame, profile: FittedProfile) -> None:
    gpu = load_gpu(profile.gpu)
    for table in ("gemm", "attention_decode", "attention_prefill"):
        part = points[points.table == table]
        if not len(part):
            continue
        least = np.array([ideal_seconds(gpu, table, parse_shape(str(text))) for text in part["shape"]])
        axes.semilogx(least * 1e6, least / part.seconds.to_numpy(dtype=float), ".", markersize=4, label=LABELS[table])
    axes.set(
        xlabel="time that the data sheet allows, microseconds", ylabel="achieved share of the roofline", ylim=(0, 1.1)
    )
    axes.legend()


def ideal_seconds(gpu: HardwareProfile, table: str, shape: dict[str, int | str]) -> float:
    """The larger of FLOP / peak and cold bytes / bandwidth of a point."""
    flops, moved = _work(table, shape)
    return max(flops / gpu.peak_flops("bf16"), moved / gpu.memory_bandwidth)


def _work(table: str, shape: dict[str, int | str]) -> tuple[float, float]:
    if table == "gemm":
        m, n, k = (float(shape[key]) for key in ("m", "n", "k"))
        return 2.0 * m * n * k, 2.0 * (n * k + m * k + m * n)
    heads, kv_heads, dim = (float(shape[key]) for key in ("heads", "kv_heads", "head_dim"))
    contexts, pairs = _tokens(table, shape)
    return 4.0 * heads * dim * pairs, 4.0 * kv_heads * dim * contexts


def _tokens(table: str, shape: dict[str, int | str]) -> tuple[float, float]:
    """Tokens of context that are read, and query-key pairs."""
    if table == "attention_decode":
        text = shape.get("contexts")
        contexts: FloatArray = (
            np.full(int(shape["batch"]), float(shape["kv_len"]))
            if text is None
            else np.array([float(part) for part in str(text).split("+")])
        )
        return float(contexts.sum()), float(contexts.sum())
    batch, new, prefix = (float(shape[key]) for key in ("batch", "q_len", "prefix_len"))
    return batch * (new + prefix), batch * (new * prefix + new * (new + 1.0) / 2.0)
