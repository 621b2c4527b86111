"""The CUDA kernels without a GPU: they compile, and an emulated driver runs them against float64.

The emulated driver stands in for libcuda, so the code that drives a GPU runs as it is: argument packing, launch shapes,
captured graphs, copies. What only a GPU shows is not tested: speed, memory consistency, the vendor's tensor cores.
"""

from __future__ import annotations

import json
from pathlib import Path

import cuda_emulation
import pytest

from sim.calibration.measure import compiler
from sim.calibration.measure.compiler import KERNELS, SOURCES, Usage, compile_source, parse_usage
from sim.errors import InputError, RunError

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
THREADS = {"gemm_128x128": 256}  # of a block, where it is not 128; 64 K registers are shared by a block
SHARED_BYTES = 48 * 1024
ROUNDING = 0.004  # relative error that bfloat16 outputs and probabilities explain

_no_compiler = compiler.missing_compiler()
needs_compiler = pytest.mark.skipif(_no_compiler is not None, reason=_no_compiler or "")
_no_emulator = cuda_emulation.missing()
needs_emulator = pytest.mark.skipif(_no_emulator is not None, reason=_no_emulator or "")

# Compiling takes seconds and is tested by itself; the emulated driver has the kernels built in.
PREAMBLE = """
from types import SimpleNamespace
import sim.calibration.measure.cuda as cuda
cuda.compile_source = lambda source, architecture: SimpleNamespace(cubin=b"\\x7fELF")
from pathlib import Path
from sim.calibration.measure.bench import Bench
from sim.calibration.measure.grid import *
"""
CHECKS = (
    PREAMBLE
    + """
import json
gpu = cuda.Gpu()
bench = Bench(gpu, num_bytes=1 << 22)
points = [*correctness_points(), Step((3, 40), (20, 9), Layer(64, 1, 1, 32), Heads(4, 1, 64))]
print(json.dumps([(point.table, point.error(bench)) for point in points]))
gpu.close()
"""
)


@needs_compiler
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_compile_without_spilling_and_fit_on_a_multiprocessor(source: str, architecture: str) -> None:
    compiled = compile_source(source, architecture)
    assert set(compiled.usage) == set(KERNELS[source])
    assert compiled.cubin[:4] == b"\x7fELF"
    for name, usage in compiled.usage.items():
        assert usage.spilled == 0, name
        assert 0 < usage.registers * THREADS.get(name, 128) <= 65536, name
        assert usage.shared <= SHARED_BYTES, name


@needs_compiler
def test_a_kernel_that_does_not_compile_is_named_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        compiler, "source_text", lambda name: "" if name == compiler.HEADER else "__device__ int x;\nbroken"
    )
    with pytest.raises(RunError, match=r"gemm\.cu does not compile for sm_90: gemm\.cu\(2\): error"):
        compile_source("gemm", "sm_90")


def test_usage_is_read_from_the_log_of_the_assembler() -> None:
    log = (
        "ptxas info : Compiling entry function 'first' for 'sm_90'\n"
        "    0 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\n"
        "ptxas info : Used 33 registers, used 1 barriers, 4096 bytes smem\n"
        "ptxas info : Compiling entry function 'second' for 'sm_90'\n"
        "ptxas info : Used 8 registers\n"
    )
    assert parse_usage(log) == {"first": Usage(33, 12, 4096), "second": Usage(8, 0, 0)}


def test_without_the_wheels_the_answer_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"'cuda\.bindings' is missing; pip install 'servesim\[cuda\]'"):
        compile_source("gemm", "sm_90")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The emulated driver."""
    return cuda_emulation.build_driver(tmp_path_factory.mktemp("driver"))


def errors_on(driver: Path, order: str) -> list[tuple[str, float]]:
    """Relative error of every correctness point, with threads in index order or in reverse."""
    done = cuda_emulation.run_on(driver, CHECKS, order)
    assert done.returncode == 0, done.stderr
    return [(table, float(error)) for table, error in json.loads(done.stdout)]


@needs_emulator
def test_every_kernel_agrees_with_float64_in_any_order_of_threads(driver: Path) -> None:
    forward, reverse = errors_on(driver, "forward"), errors_on(driver, "reverse")
    assert {table for table, _ in forward} >= {"gemm", "attention_decode", "attention_prefill", "vidur_mlp_ops"}
    assert all(0 < error < ROUNDING for _, error in forward), forward
    assert forward == reverse


@needs_emulator
def test_a_missing_barrier_is_noticed(tmp_path: Path) -> None:
    edits = {
        "gemm.cu": (r"(piece_b\.store\(slices\.b\);\s+)__syncthreads\(\);", r"\1"),
        "prefill_attention.cu": (r"(first, context\);\s+)__syncthreads\(\);", r"\1"),
        "paged_decode.cu": (r"(\}\s+)__syncthreads\(\);(\s+float top)", r"\1\2"),
        "elementwise.cu": (r"(= square;\s+)__syncthreads\(\);", r"\1"),
    }
    broken = cuda_emulation.build_driver(tmp_path, edits)
    found = [*errors_on(broken, "forward"), *errors_on(broken, "reverse")]
    noticed = {table for table, error in found if not error < ROUNDING}
    assert noticed >= {"gemm", "attention_decode", "attention_prefill", "vidur_mlp_ops"}


SESSION = (
    PREAMBLE
    + """
import sys
import sim.calibration.measure.ceilings as ceilings
from sim.calibration.measure.environment import catalogue_gpu
from sim.calibration.measure.session import Session
from sim.calibration.measure.timing import Protocol
ceilings.EAGER_LAUNCHES = 3
gpu = cuda.Gpu()
bench = Bench(gpu, num_bytes=1 << 16)
heads, layer = Heads(4, 1, 64), Layer(64, 1, 1, 64)
points = (Gemm(3, 16, 16), Gemm(5, 24, 16), Decode((5, 9), heads), Decode((16, 16), heads), Prefill(((4, 0),), heads),
          *(Elementwise(name, 2, layer) for name in ("norm", "rope", "activation")))
grid = Grid(points, points, (Step((3, 4), (5, 2), layer, heads),), (256, 1024), 2)
protocol = Protocol(repeats=2, region_duration=1e-6, warm_up_duration=0.0, max_warm_up_duration=0.0, max_launches=2)
Session(bench, catalogue_gpu(gpu.name), grid, Path(sys.argv[1]), print, passes=1, protocol=protocol).run()
gpu.close()
"""
)


@needs_emulator
def test_a_whole_measurement_writes_raw_samples_tables_and_what_it_was_taken_on(driver: Path, tmp_path: Path) -> None:
    from sim.calibration.measure.records import read_raw
    from sim.calibration.tables import read_table

    code = SESSION.replace("sys.argv[1]", repr(str(tmp_path / "out")))
    done = cuda_emulation.run_on(driver, code)
    assert done.returncode == 0, done.stderr
    assert "8 kernel checks against float64" in done.stdout
    raw = read_raw(tmp_path / "out" / "raw.csv")
    assert len(raw) == 9 * 2  # points, repeats
    assert set(raw["table"]) == {"gemm", "attention_decode", "attention_prefill", "vidur_mlp_ops", "steps"}
    for name in ("gemm", "attention_decode", "attention_prefill", "vidur_mlp_ops"):
        assert read_table(tmp_path / "out" / "tables", name) is not None
    facts = json.loads((tmp_path / "out" / "environment.json").read_text(encoding="utf-8"))
    assert (facts["catalogue_gpu"], facts["matrix_library"]) == ("h100-sxm", "own")
    assert facts["kernel_sources_sha256"] == compiler.sources_hash()
    copies = (tmp_path / "out" / "copies.csv").read_text(encoding="utf-8").splitlines()
    assert len(copies) == 1 + 2 * 2 * 2  # directions, kinds of memory, sizes


@needs_emulator
def test_a_wrong_kernel_stops_the_measurement_before_anything_is_timed(driver: Path, tmp_path: Path) -> None:
    wrong = "import sim.calibration.measure.session as session\nsession.TOLERANCE = 1e-9\n"
    code = wrong + SESSION.replace("sys.argv[1]", repr(str(tmp_path / "out")))
    done = cuda_emulation.run_on(driver, code)
    assert "against float64 (allowed 1e-09); nothing was timed" in done.stderr
    assert not (tmp_path / "out" / "raw.csv").exists()


@needs_emulator
def test_a_write_outside_an_allocation_is_noticed(driver: Path) -> None:
    code = PREAMBLE + (
        "gpu = cuda.Gpu()\n"
        "source, target = gpu.allocate(64), gpu.allocate(56)\n"
        "for count in (3, 4):\n"
        "    arguments = (cuda.pointer(source), cuda.pointer(target), cuda.long_integer(count))\n"
        "    gpu.launch(cuda.Launch('stream_copy', (1, 1, 1), 32, arguments))\n"
        "print('launched')\n"
        "gpu.close()\n"
    )
    done = cuda_emulation.run_on(driver, code)
    assert "launched" in done.stdout
    assert "cuMemFree: CUDA_ERROR_LAUNCH_FAILED" in done.stderr
