"""Measure, fit and check as one script of about four minutes on one GPU; and measuring a few points again."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sim.calibration.check import Verdict, check_measurement
from sim.calibration.measure.bench import Bench
from sim.calibration.measure.cublas import Cublas, find_cublas
from sim.calibration.measure.cuda import Gpu
from sim.calibration.measure.environment import catalogue_gpu
from sim.calibration.measure.grid import Grid, full_grid, quick_grid
from sim.calibration.measure.own_profile import fit_own
from sim.calibration.measure.plots import write_plots
from sim.calibration.measure.session import Session
from sim.calibration.profile import write_profile
from sim.cost.profile import FittedProfile, load_fitted
from sim.errors import InputError
from sim.hardware import load_gpu

if TYPE_CHECKING:
    from sim.hardware import HardwareProfile

Echo = Callable[[str], None]
PROFILE_FILE = "profile.yaml"
HOLDABLE_SHARE = 0.5  # of the random data that the largest point may take, so that there are two windows of it


@contextmanager
def opened(device: int, gpu_name: str | None) -> Iterator[tuple[Bench, HardwareProfile]]:
    """A GPU with its data, its catalogue entry and cuBLAS where there is one; everything is freed at the end."""
    gpu = Gpu(device)
    try:
        entry = load_gpu(gpu_name) if gpu_name else catalogue_gpu(gpu.name)
        found = find_cublas()
        yield Bench(gpu, Cublas(gpu, found) if found is not None else None), entry
    finally:
        gpu.close()


def measure_and_fit(
    out: Path, device: int, gpu_name: str | None, seconds: float, echo: Echo, grid: Grid | None = None
) -> tuple[FittedProfile, list[Verdict]]:
    """Measure into the folder `out`, fit `out/profile.yaml`, and hold it against whole steps that no fit has seen.

    Raises `InputError` without a GPU or when `out` has a measurement already, `RunError` when a kernel is wrong or
    times are impossible; what was measured until then stays in `out`.
    """
    refuse_used(out)
    with opened(device, gpu_name) as (bench, entry):
        echo(f"{bench.gpu.name} ({entry.name}), matrix products by {bench.library.name if bench.library else 'own'}")
        points = grid or full_grid(int(bench.num_bytes * HOLDABLE_SHARE))
        Session(bench, entry, points, out, echo, seconds=seconds).run()
    return fit_measured(out, entry.name, echo)


def fit_measured(out: Path, gpu_name: str, echo: Echo) -> tuple[FittedProfile, list[Verdict]]:
    """Fit, plot and check a finished measurement; needs no GPU."""
    date = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    write_profile(fit_own(out / "tables", gpu_name, date), out / PROFILE_FILE)
    echo(f"wrote {out / PROFILE_FILE}")
    profile = load_fitted(str((out / PROFILE_FILE).resolve()))
    write_plots(out, profile)
    return profile, check_measurement(profile, out)


def remeasure(profile: FittedProfile, out: Path, device: int, gpu_name: str | None, echo: Echo) -> list[Verdict]:
    """Measure a few points again and say whether `profile` holds."""
    refuse_used(out)
    with opened(device, gpu_name) as (bench, entry):
        if entry.name != profile.gpu:
            raise InputError(f"the profile is of GPU '{profile.gpu}', this one is '{entry.name}' ({bench.gpu.name})")
        points = quick_grid(int(bench.num_bytes * HOLDABLE_SHARE))
        Session(bench, entry, points, out, echo, passes=1).run()
    return check_measurement(profile, out)


def refuse_used(out: Path) -> None:
    """`InputError` when a folder has a measurement."""
    if (out / "raw.csv").exists():
        raise InputError(f"{out}: has a measurement already (raw.csv); name another folder")
