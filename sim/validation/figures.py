"""Figures of a validation: distributions over requests, predicted against measured, and all errors in one scatter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.validation.replay import Prediction

if TYPE_CHECKING:
    from sim.units import FloatArray

MOST_RUNS = 6  # whose distributions are drawn
MANY_DECADES = 1e3  # largest over smallest value from which only powers of ten are labelled
WIDE = 20.0  # largest over smallest value from which an axis is logarithmic


def write_figures(predictions: Sequence[Prediction], folder: Path) -> list[Path]:
    """Write the figures as PNG into `folder`; those that no run has data for are left out."""
    import matplotlib

    matplotlib.use("Agg")
    written = []
    detailed = [item for item in predictions if item.case.requests is not None and item.replay is not None][:MOST_RUNS]
    if detailed:
        written.append(_distributions(detailed, folder / "distributions.png"))
    if any("ttft.mean" in item.errors for item in predictions):
        written.append(_scatter(predictions, folder / "predicted_measured.png"))
    return written


def _distributions(predictions: Sequence[Prediction], path: Path) -> Path:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(len(predictions), 2, figsize=(9, 2.2 * len(predictions)), squeeze=False)
    for row, item in zip(axes, predictions, strict=True):
        assert item.replay is not None
        assert item.case.requests is not None
        _cdf(row[0], item.case.requests.ttft, item.replay.ttft, "TTFT, s")
        _cdf(row[1], item.case.requests.e2e, item.replay.e2e, "end to end, s")
        row[0].set_title(item.case.name, fontsize=8, loc="left")
    axes[0][0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _cdf(axis: Any, measured: FloatArray, predicted: FloatArray, label: str) -> None:
    for values, name, style in ((measured, "measured", "-"), (predicted, "predicted", "--")):
        ordered = np.sort(values[np.isfinite(values)])
        if len(ordered):
            axis.plot(ordered, np.arange(1, len(ordered) + 1) / len(ordered), style, label=name, linewidth=1.2)
    axis.set_xlabel(label, fontsize=8)
    both = np.concatenate([measured[np.isfinite(measured)], predicted[np.isfinite(predicted)]])
    if len(both) and both.max() > WIDE * both.min() > 0:
        axis.set_xscale("log")
        _plain_ticks(axis.xaxis, (both.min(), both.max()))
    axis.tick_params(labelsize=7)
    axis.set_ylabel("share of requests", fontsize=8)


def _plain_ticks(axis: Any, ends: tuple[float, float]) -> None:
    """Numbers as they are written, at 1, 2 and 5 of a decade, or at each decade where there are many."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    few = ends[1] < MANY_DECADES * ends[0]
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
    axis.set_major_formatter(FormatStrFormatter("%g"))
    axis.set_minor_formatter(NullFormatter())


def _scatter(predictions: Sequence[Prediction], path: Path) -> Path:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 4.2))
    for axis, metric in zip(axes, ("tpot.mean", "ttft.mean"), strict=True):
        for dataset in dict.fromkeys(item.case.dataset for item in predictions):
            own = [item for item in predictions if item.case.dataset == dataset and metric in item.errors]
            measured = [item.case.measured[metric] for item in own]
            axis.loglog(measured, [item.predicted[metric] for item in own], ".", markersize=4, label=dataset)
        low, high = axis.get_xlim()
        axis.plot([low, high], [low, high], color="0.6", linewidth=0.8)
        for side in (axis.xaxis, axis.yaxis):
            _plain_ticks(side, (low, high))
        axis.set_xlabel(f"measured {metric}, s")
        axis.set_ylabel("predicted, s")
    axes[0].legend(frameon=False, fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path
