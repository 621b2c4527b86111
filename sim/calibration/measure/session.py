"""One measurement of one GPU from start to end: correctness, ceilings, points in random order and passes, tables.

Everything measured is written the moment it is known. A point that is faster than the GPU's data sheet allows is kept
in the raw samples, marked impossible, and enters no table; many of them stop the measurement.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.calibration.measure import records
from sim.calibration.measure.bench import Bench, Operation
from sim.calibration.measure.ceilings import Copied, Reading, measure_ceilings, measure_copies
from sim.calibration.measure.environment import describe, is_throttled, sample_state
from sim.calibration.measure.matrices import Gemm
from sim.calibration.measure.timing import Protocol, Timed, region_overhead, spread, time_work
from sim.errors import RunError

if TYPE_CHECKING:
    from sim.calibration.measure.grid import Grid
    from sim.hardware import HardwareProfile

TOLERANCE = 0.01  # relative error of a kernel against float64; rounding to bfloat16 alone gives 0.0017
CEILING_SLACK = 1.03  # a reading may pass the data sheet by so much (boost clocks, event resolution)
MAX_IMPOSSIBLE = 0.05  # share of points
PROBE_EVERY = 10  # points
Echo = Callable[[str], None]


@dataclass
class Session:
    """Measures `grid` on `bench` into the folder `out`. `seconds` bounds the passes; the first is always whole."""

    bench: Bench
    gpu: HardwareProfile
    grid: Grid
    out: Path
    echo: Echo
    seconds: float = 180.0
    passes: int = 2
    protocol: Protocol = field(default_factory=Protocol)
    seed: int = 0

    def run(self) -> None:
        """Measure everything; then the folder holds environment.json, ceilings.csv, copies.csv, raw.csv and tables/."""
        started = time.perf_counter()
        self.out.mkdir(parents=True, exist_ok=True)
        self._environment()
        self._correctness()
        self._ceilings()
        self._points(started)
        self._tables()

    @property
    def library(self) -> str:
        """Who multiplies matrices."""
        return self.bench.library.name if self.bench.library is not None else "own"

    def _environment(self) -> None:
        facts = {**describe(self.bench.gpu, self.library), "catalogue_gpu": self.gpu.name, "seed": self.seed}
        records.write_text(self.out / "environment.json", json.dumps(facts, indent=2) + "\n")

    def _correctness(self) -> None:
        """Every kernel against float64 on the same data, before anything is timed."""
        worst = 0.0
        for operation in self.grid.checks:
            error = operation.error(self.bench)
            worst = max(worst, error)
            if not error <= TOLERANCE:
                raise RunError(
                    f"{operation.table} {operation.shape}: relative error {error:.2g} against float64 (allowed "
                    f"{TOLERANCE:g}); nothing was timed"
                )
        self.echo(f"{len(self.grid.checks)} kernel checks against float64: largest relative error {worst:.4f}")

    def _ceilings(self) -> None:
        found = measure_ceilings(self.bench, self.protocol, self.grid.peak_iterations)
        records.write_rows(self.out / "ceilings.csv", found, Reading._fields)
        peaks = {"B/s": self.gpu.memory_bandwidth, "FLOP/s": self.gpu.peak_flops("bf16")}
        for reading in found:
            peak = peaks.get(reading.unit)
            share = (
                f" ({reading.value / peak:.0%} of the data sheet)" if peak and reading.name != "peak_fma_flops" else ""
            )
            self.echo(f"{reading.name}: {reading.value:.4g} {reading.unit}{share}")
            if peak and reading.value > CEILING_SLACK * peak:
                raise RunError(
                    f"{reading.name} of {reading.value:.4g} {reading.unit} is above the data sheet's {peak:.4g}"
                )
        records.write_rows(self.out / "copies.csv", measure_copies(self.bench, self.grid.copy_sizes), Copied._fields)

    def _points(self, started: float) -> None:
        overhead = region_overhead(self.bench.gpu)
        points: Sequence[Operation] = (*self.grid.points, *self.grid.held_out)
        rng = np.random.default_rng(self.seed)
        probe = _Probe(self.bench, self.protocol, overhead)
        writer = records.RawWriter(self.out / "raw.csv")
        throttled = impossible = done = 0
        try:
            for number in range(self.passes):
                for order, index in enumerate(rng.permutation(len(points))):
                    if number and time.perf_counter() - started > self.seconds:
                        break
                    if order % PROBE_EVERY == 0:
                        probe.take()
                        throttled += is_throttled(sample_state(self.bench.gpu.index))
                    possible = self._point(writer, probe, number, order, points[index], overhead)
                    impossible += not possible
                    done += 1
        finally:
            writer.close()
        self._judge(done, impossible, throttled, probe)

    def _point(
        self, writer: records.RawWriter, probe: _Probe, number: int, order: int, point: Operation, overhead: float
    ) -> bool:
        timed = time_work(self.bench.gpu, point.prepare(self.bench), point.cold_bytes, self.protocol, overhead)
        self.bench.clear()
        possible = self.is_possible(point, timed)
        backend = self.library if isinstance(point, Gemm) else "own"
        writer.add(number, order, point, backend, timed, possible, probe.noise)
        return possible

    def is_possible(self, point: Operation, timed: Timed) -> bool:
        """Whether a reading stays below the data sheet's FLOP/s, and bandwidth where its data was cold."""
        if point.flops / timed.median > CEILING_SLACK * self.gpu.peak_flops("bf16"):
            return False
        return not timed.cold or point.cold_bytes / timed.median <= CEILING_SLACK * self.gpu.memory_bandwidth

    def _judge(self, done: int, impossible: int, throttled: int, probe: _Probe) -> None:
        self.echo(f"{done} points timed; noise floor (p90 - p10 of a repeated probe) {probe.noise:.1%}")
        if throttled:
            self.echo(f"warning: the driver named a reason for lowered clocks at {throttled} probes")
        if impossible > MAX_IMPOSSIBLE * done:
            raise RunError(
                f"{impossible} of {done} points are faster than the data sheet of {self.gpu.name} allows: wrong --gpu, "
                f"or timing that cannot be trusted; raw samples are in {self.out / 'raw.csv'}"
            )
        if impossible:
            self.echo(f"warning: {impossible} points faster than the data sheet allows are left out of the tables")

    def _tables(self) -> None:
        points = records.medians(records.read_raw(self.out / "raw.csv"))
        tables = records.tables_of(points, self.gpu.name, "servesim calibrate measure")
        records.write_tables(tables, self.out / "tables")


class _Probe:
    """One point that is measured again and again: its drift is the noise floor."""

    def __init__(self, bench: Bench, protocol: Protocol, overhead: float) -> None:
        side = 1024 if bench.num_bytes >= 2**21 else 64
        self._bench, self._protocol, self._overhead = bench, protocol, overhead
        self._operation = Gemm(64, side, side)
        self._medians: list[float] = []

    def take(self) -> None:
        """Measure it once more."""
        work = self._operation.prepare(self._bench)
        timed = time_work(self._bench.gpu, work, self._operation.cold_bytes, self._protocol, self._overhead)
        self._medians.append(timed.median)

    @property
    def noise(self) -> float:
        """(p90 - p10) / median of its medians so far."""
        return spread(np.array(self._medians)) if self._medians else 0.0


def load_environment(folder: Path) -> dict[str, Any]:
    """environment.json of a measurement."""
    loaded: dict[str, Any] = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    return loaded
