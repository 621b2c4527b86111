"""Whether a profile still holds: measured points against what the profile predicts, by operation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sim.calibration.measure.own_profile import point_errors
from sim.calibration.measure.records import medians, read_raw
from sim.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from sim.cost.profile import FittedProfile

MAX_BIAS = 0.10  # of the median of measured / predicted - 1
MAX_ERROR = 0.20  # of the median of |measured / predicted - 1|
NOISE_FACTOR = 2.0  # limits are never tighter than so many noise floors
MIN_POINTS = 3


class Verdict(NamedTuple):
    """How well a profile predicts the measured points of one table. Shares, not per cent."""

    table: str
    num_points: int
    median_error: float
    p90_error: float
    bias: float
    limit_error: float
    limit_bias: float

    @property
    def holds(self) -> bool:
        return self.median_error <= self.limit_error and abs(self.bias) <= self.limit_bias


def check_measurement(profile: FittedProfile, folder: Path) -> list[Verdict]:
    """Verdicts on the measurement in `folder`, one a table. `InputError` when it holds no points."""
    raw = read_raw(folder / "raw.csv")
    noise = float(raw["noise_floor"].iloc[-1]) if len(raw) else 0.0
    return verdicts(profile, medians(raw), noise)


def verdicts(profile: FittedProfile, points: pd.DataFrame, noise: float) -> list[Verdict]:
    """Verdicts on points as `records.medians` gives them; tables with fewer than three points have none."""
    limits = max(MAX_ERROR, NOISE_FACTOR * noise), max(MAX_BIAS, NOISE_FACTOR * noise)
    found = [
        _verdict(str(name), np.expm1(point_errors(profile, part)), limits)
        for name, part in points.groupby("table")
        if len(part) >= MIN_POINTS
    ]
    if not found:
        raise InputError("the measurement has too few points to judge a profile by")
    return found


def _verdict(name: str, ratio: np.ndarray, limits: tuple[float, float]) -> Verdict:
    error = np.abs(ratio)
    shares = float(np.median(error)), float(np.quantile(error, 0.9)), float(np.median(ratio))
    return Verdict(name, len(ratio), *shares, *limits)
