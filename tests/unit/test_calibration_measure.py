"""Measuring a GPU, without one: the timing protocol, ceilings, tables, and a profile from a device with known times."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from sim.calibration.check import Verdict, check_measurement
from sim.calibration.measure import flow, records
from sim.calibration.measure.attention import Decode, Heads, Prefill, attend
from sim.calibration.measure.environment import catalogue_gpu, is_throttled
from sim.calibration.measure.grid import Grid, full_grid, needed_bytes, quick_grid
from sim.calibration.measure.matrices import Gemm
from sim.calibration.measure.numbers import from_bits, relative_error, to_bits
from sim.calibration.measure.own_profile import fit_own, predict
from sim.calibration.measure.session import Session
from sim.calibration.measure.timing import Protocol, Timed, plan_launches, warm_up
from sim.calibration.origin import origins, summary
from sim.cli.calibrate import app
from sim.cost.kernels import DecodeKernel, GemmKernel, PrefillKernel, SmallKernel
from sim.cost.profile import EngineConstants, Fitted, FittedProfile, fitted_names, load_fitted
from sim.errors import InputError, RunError
from sim.hardware import load_gpu

GPU = "h200-sxm"
GIB = 2**30


# --- numbers ----------------------------------------------------------------------------------------------------------


@given(st.floats(-(2.0**100), 2.0**100, width=32))
def test_rounding_to_bfloat16_gives_the_nearest_value(value: float) -> None:
    found = float(from_bits(to_bits(np.array([value])))[0])
    assert abs(found - value) <= 2.0**-8 * abs(value) + 1e-38
    assert to_bits(np.array([found])) == to_bits(np.array([value]))


def test_ties_go_to_the_even_neighbour() -> None:
    assert from_bits(to_bits(np.array([1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8]))).tolist() == [1.0, 1.0 + 2.0**-6]


def test_an_output_that_was_not_written_is_infinitely_wrong() -> None:
    assert relative_error(np.array([1.0, np.nan]), np.array([1.0, 2.0])) == float("inf")


def test_the_reference_attends_to_what_came_before_only() -> None:
    keys, values = np.zeros((3, 1, 2)), np.array([[[1.0, 0.0]], [[3.0, 0.0]], [[8.0, 0.0]]])
    out = attend(np.ones((2, 1, 2)), keys, values, Heads(1, 1, 2))
    assert out[:, 0, 0].tolist() == [2.0, 4.0]  # means of two and of three


# --- protocol ---------------------------------------------------------------------------------------------------------


def test_a_region_passes_through_three_times_the_cache() -> None:
    protocol = Protocol(region_duration=1e-3)
    assert plan_launches(1e-5, 1000, 1e6, 50_000_000, protocol) == (150, True)
    assert plan_launches(1e-5, 1000, 1e3, 50_000_000, protocol) == (512, False)  # too small to be cold
    assert plan_launches(1e-5, 10, 1e6, 50_000_000, protocol) == (150, False)  # ten windows, used again and again
    assert plan_launches(1e-5, 1, 0.0, 50_000_000, protocol) == (100, False)


def test_warming_up_ends_when_two_medians_agree() -> None:
    times = iter([5.0] * 3 + [3.0] * 3 + [1.0] * 3 + [1.001] * 3 + [9.0] * 3)
    assert warm_up(lambda: next(times), Protocol(warm_up_duration=0.0)) == 12


def session(grid: Grid | None = None, out: Path = Path("unused")) -> Session:
    bench: Any = SimpleNamespace(library=None, gpu=None)
    return Session(bench, load_gpu(GPU), grid or Grid((), (), (), (), 1), out, lambda text: None)


@pytest.mark.parametrize(("share", "possible"), [(0.5, True), (1.02, True), (1.1, False)])
def test_a_reading_above_the_data_sheet_is_impossible(share: float, possible: bool) -> None:
    gpu = load_gpu(GPU)
    compute = Gemm(4096, 4096, 4096)
    timed = Timed((compute.flops / (share * gpu.peak_flops("bf16")),), 1, True)
    assert session().is_possible(compute, timed) is possible
    memory = Decode((16384,) * 64, Heads(32, 8, 128))
    seconds = (memory.cold_bytes / (share * gpu.memory_bandwidth),)
    assert session().is_possible(memory, Timed(seconds, 1, True)) is possible
    assert session().is_possible(memory, Timed(seconds, 1, False))  # read from a cache, who knows


def test_many_impossible_points_stop_the_measurement(tmp_path: Path) -> None:
    probe: Any = SimpleNamespace(noise=0.01)
    session(out=tmp_path)._judge(100, 5, 0, probe)
    with pytest.raises(RunError, match="6 of 100 points are faster than the data sheet of h200-sxm allows"):
        session(out=tmp_path)._judge(100, 6, 0, probe)


@pytest.mark.parametrize(
    ("driver", "entry"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA B200", "b200-sxm"),
    ],
)
def test_the_driver_s_name_finds_the_catalogue_entry(driver: str, entry: str) -> None:
    assert catalogue_gpu(driver).name == entry


@pytest.mark.parametrize("driver", ["Tesla T4", "NVIDIA A100 80GB PCIe", "NVIDIA RTX 6000 Ada Generation"])
def test_a_gpu_that_is_not_in_the_catalogue_asks_for_a_name(driver: str) -> None:
    with pytest.raises(InputError, match="name the entry by --gpu"):
        catalogue_gpu(driver)


def test_idleness_is_no_throttling() -> None:
    assert not is_throttled({"clocks_event_reasons.active": "0x0000000000000001"})
    assert is_throttled({"clocks_event_reasons.active": "0x0000000000000008"})
    assert not is_throttled({"clocks_event_reasons.active": "[N/A]"})
    assert not is_throttled({})


# --- grid -------------------------------------------------------------------------------------------------------------


def test_the_grid_fits_into_the_data_and_separates_batch_from_context() -> None:
    grid = full_grid(4 * GIB)
    assert max(needed_bytes(point) for point in grid.points) <= 4 * GIB
    decodes = [point for point in grid.points if isinstance(point, Decode) and point.is_even]
    pairs = {(len(point.contexts), point.contexts[0]) for point in decodes}
    assert len({context for batch, context in pairs if batch == 4}) >= 4
    assert sum(isinstance(point, Decode) and not point.is_even for point in grid.points) >= 15
    assert len({(point.n, point.k) for point in grid.points if isinstance(point, Gemm)}) >= 40  # enough for a surface
    assert all(point.n % 8 == 0 and point.k % 8 == 0 for point in grid.points if isinstance(point, Gemm))


def test_whole_steps_enter_no_fit() -> None:
    grid = full_grid(4 * GIB)
    assert {point.table for point in grid.held_out} == {"steps"}
    assert "steps" not in {point.table for point in grid.points}


# --- a device whose times are known -----------------------------------------------------------------------------------

TRUE = FittedProfile(
    gpu=GPU,
    gemm={"bf16": Fitted(GemmKernel(3e-6, 4.0e12, 7.0e14, 3.0, 2.0, 2.0))},
    decode_attention={"bf16": Fitted(DecodeKernel(6e-6, 3.8e12, 3e-9, 4e-10, 3e-10, 1e5, 1.0, 1e6, 2.0, True))},
    prefill_attention={
        "bf16": Fitted(PrefillKernel(8e-6, 3.0e14, 0.8, 40.0, 2e-12, 2e-12, 1.5e-12, 3e-10, 1e-9)),
    },
    moe={},
    all_reduce={},
    small_ops={name: SmallKernel(2e-6, 1e-10, 2.5e12) for name in ("norm", "rope", "activation")},
    engines={"vllm-0.15": EngineConstants()},
    errors=(),
    notes=(),
    file="known",
)


def write_known(folder: Path, slower: float = 1.0, noise: float = 0.005, whole: bool = False) -> Path:
    """The raw samples that a device with the times of `TRUE` would leave, times `slower`; `whole`: of the full grid."""
    folder.mkdir()
    rng, grid = np.random.default_rng(1), (full_grid if whole else quick_grid)(2 * GIB)
    writer = records.RawWriter(folder / "raw.csv")
    for order, point in enumerate((*grid.points, *grid.held_out)):
        seconds = slower * predict(TRUE, point.table, point.shape)
        timed = Timed(tuple(seconds * np.exp(noise * rng.standard_normal(6))), 10, True)
        writer.add(0, order, point, "own", timed, True, 0.01)
    writer.close()
    points = records.medians(records.read_raw(folder / "raw.csv"))
    records.write_tables(records.tables_of(points, GPU, "known"), folder / "tables")
    return folder


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, FittedProfile, list[Verdict]]:
    folder = write_known(tmp_path_factory.mktemp("known") / "measurement", whole=True)
    profile, found = flow.fit_measured(folder, GPU, lambda text: None)
    return folder, profile, found


def test_a_known_device_is_recovered(known: tuple[Path, FittedProfile, list[Verdict]]) -> None:
    _, profile, found = known
    assert profile.gemm["bf16"].kernel.bandwidth == pytest.approx(4.0e12, rel=0.05)
    assert profile.gemm["bf16"].kernel.flops == pytest.approx(7.0e14, rel=0.05)
    assert profile.decode_attention["bf16"].kernel.bandwidth == pytest.approx(3.8e12, rel=0.05)
    assert profile.prefill_attention["bf16"].kernel.flops == pytest.approx(3.0e14, rel=0.05)
    assert {verdict.table for verdict in found} >= {"gemm", "attention_decode", "attention_prefill", "steps"}
    assert all(verdict.holds and verdict.median_error < 0.02 for verdict in found), found


def test_errors_on_shapes_held_out_are_stored(known: tuple[Path, FittedProfile, list[Verdict]]) -> None:
    _, profile, _ = known
    stored = {row["operation"]: row for row in profile.errors}
    assert {"gemm", "decode_attention", "prefill_attention", "small_ops.norm"} <= set(stored)
    assert all(row["median"] < 0.02 and row["backend"] == "own" for row in stored.values())


def test_figures_and_the_profile_stand_beside_the_samples(known: tuple[Path, FittedProfile, list[Verdict]]) -> None:
    folder, _, _ = known
    assert {"raw.csv", "tables", "profile.yaml", "predicted.png", "roofline.png"} <= {p.name for p in folder.iterdir()}


def test_a_device_that_became_slower_breaks_its_profile(
    known: tuple[Path, FittedProfile, list[Verdict]], tmp_path: Path
) -> None:
    folder, profile, _ = known
    slow = write_known(tmp_path / "slow", slower=1.3)
    assert not any(verdict.holds for verdict in check_measurement(profile, slow))
    path = str(folder / "profile.yaml")
    result = CliRunner().invoke(app, ["check", path, "--measured", str(slow)])
    assert isinstance(result.exception, RunError)
    assert "DOES NOT HOLD" in result.stdout
    assert CliRunner().invoke(app, ["check", path, "--measured", str(folder)]).exit_code == 0


def test_the_noise_of_a_measurement_widens_the_limits(
    known: tuple[Path, FittedProfile, list[Verdict]], tmp_path: Path
) -> None:
    _, profile, _ = known
    slow = write_known(tmp_path / "noisy", slower=1.12)
    text = (slow / "raw.csv").read_text(encoding="utf-8").replace(",0.0100\n", ",0.0900\n")
    (slow / "raw.csv").write_text(text, encoding="utf-8")
    assert all(verdict.holds for verdict in check_measurement(profile, slow))


def test_two_matrix_libraries_never_mix_in_one_profile(tmp_path: Path) -> None:
    folder = write_known(tmp_path / "two", whole=True)
    table = folder / "tables" / "gemm.csv"
    lines = table.read_text(encoding="utf-8").splitlines()
    table.write_text("\n".join([*lines, *(line.replace(",own,", ",cublas,") for line in lines[1:])]), encoding="utf-8")
    values = fit_own(folder / "tables", GPU, "2026-11-30")
    assert values["kernel_source"].startswith("matrix products: cublas;")
    assert next(row for row in values["errors"] if row["operation"] == "gemm")["backend"] == "cublas"


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_folder_with_a_measurement_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "raw.csv").write_text("", encoding="utf-8")
    for backend in ("cuda", "cpu"):
        result = CliRunner().invoke(app, ["measure", str(tmp_path), "--backend", backend])
        assert isinstance(result.exception, InputError)
        assert "has a measurement already" in str(result.exception)


def test_wrong_raw_samples_are_refused_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "raw.csv"
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(InputError, match="column pass is missing"):
        records.read_raw(path)
    good = dict.fromkeys(records.RAW_COLUMNS, "1")
    path.write_text(",".join(good) + "\n" + ",".join({**good, "seconds": "-1"}.values()) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match="row 2: seconds must be positive"):
        records.read_raw(path)


def test_an_unknown_backend_names_the_known_ones(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["measure", str(tmp_path / "x"), "--backend", "gpu"])
    assert "unknown backend 'gpu'" in str(result.exception)
    assert "known: cpu, cuda" in str(result.exception)


def test_the_two_ways_to_check_exclude_each_other(tmp_path: Path) -> None:
    arguments = ["check", "h100-sxm", "--measured", str(tmp_path), "--remeasure", str(tmp_path / "x")]
    assert "exclude each other" in str(CliRunner().invoke(app, arguments).exception)


def test_shapes_survive_the_raw_file() -> None:
    for point in (Decode((5, 9), Heads(4, 1, 64)), Prefill(((4, 2),), Heads(4, 1, 64)), Gemm(1, 8, 16)):
        text = " ".join(f"{key}={value}" for key, value in point.shape.items())
        assert records.parse_shape(text) == point.shape


# --- where profiles come from -----------------------------------------------------------------------------------------


def test_the_list_says_which_profiles_own_kernels_measured(known: tuple[Path, FittedProfile, list[Verdict]]) -> None:
    found = origins()
    assert sorted(found) == fitted_names()
    own = [name for name, origin in found.items() if origin.measured_here]
    assert f"own kernels: {', '.join(own) or 'none so far'};" in summary(found)
    for name, origin in found.items():
        assert origin.gpu == load_fitted(name).gpu
    folder, _, _ = known
    assert "measured_by: servesim calibrate measure" in (folder / "profile.yaml").read_text(encoding="utf-8")
