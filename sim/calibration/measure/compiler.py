"""Compiles the kernels in sim/calibration/kernels with NVRTC; needs the wheels of the extra `cuda`, but no GPU."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from typing import Any, NoReturn

from sim.errors import InputError, RunError

HEADER = "common.cuh"
KERNELS = {
    "ceilings": ("stream_copy", "stream_read", "peak_fma", "peak_mma", "empty"),
    "elementwise": ("add_rms_norm", "rotary", "silu_multiply"),
    "gemm": ("gemm_128x128", "gemm_16x32"),
    "paged_decode": (
        *("paged_decode_d64_g4", "paged_decode_d64_g8", "paged_decode_combine"),
        *("paged_decode_d128_g1", "paged_decode_d128_g4", "paged_decode_d128_g8"),
    ),
    "prefill_attention": ("prefill_attention_d64", "prefill_attention_d128"),
}
SOURCES = tuple(KERNELS)
INSTALL = "pip install 'servesim[cuda]'"
OPTIONS = ("-std=c++17", "--ptxas-options=-v")

_FUNCTION = re.compile(r"Compiling entry function '(\w+)'")
_SPILL = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class Usage:
    """What the assembler says about one kernel: registers a thread, bytes spilled a thread, bytes of shared memory."""

    registers: int
    spilled: int
    shared: int


@dataclass(frozen=True)
class Compiled:
    """Machine code of one source file for one architecture, and the usage of each kernel in it."""

    source: str
    architecture: str
    cubin: bytes
    usage: dict[str, Usage]


def source_text(name: str) -> str:
    """The text of one file of the kernels folder."""
    return (files("sim.calibration.kernels") / name).read_text(encoding="utf-8")


def sources_hash() -> str:
    """SHA-256 over all kernel sources; goes into every measurement."""
    digest = hashlib.sha256()
    for name in (HEADER, *(f"{source}.cu" for source in SOURCES)):
        digest.update(source_text(name).encode())
    return digest.hexdigest()


def missing_compiler() -> str | None:
    """Why nothing can be compiled here, or None."""
    for module in ("cuda.bindings.nvrtc", "cuda.bindings.driver"):
        try:
            found = find_spec(module)
        except ModuleNotFoundError:
            found = None
        if found is None:
            return f"the Python package '{module.rsplit('.', 1)[0]}' is missing; {INSTALL}"
    try:
        version()
    except (RuntimeError, OSError, ImportError) as error:
        return f"NVRTC cannot be loaded ({str(error).splitlines()[0]}); {INSTALL}"
    return None


def version() -> str:
    """The version of NVRTC."""
    from cuda.bindings import nvrtc

    error, major, minor = nvrtc.nvrtcVersion()
    _check(nvrtc, error, "nvrtcVersion")
    return f"{major}.{minor}"


def compile_source(name: str, architecture: str) -> Compiled:
    """Compile `name` (one of `SOURCES`) for an architecture such as `sm_90`.

    Raises `InputError` without the compiler, `RunError` with the compiler's first complaint.
    """
    reason = missing_compiler()
    if reason:
        raise InputError(f"kernels cannot be compiled: {reason}")
    from cuda.bindings import nvrtc

    error, program = nvrtc.nvrtcCreateProgram(
        *(source_text(f"{name}.cu").encode(), f"{name}.cu".encode()),
        *(1, [source_text(HEADER).encode()], [HEADER.encode()]),
    )
    _check(nvrtc, error, "nvrtcCreateProgram")
    try:
        options = [option.encode() for option in (f"--gpu-architecture={architecture}", *OPTIONS)]
        (error,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = _text(nvrtc, program)
        if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            _refuse(name, architecture, log)
        return Compiled(name, architecture, _cubin(nvrtc, program), parse_usage(log))
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def parse_usage(log: str) -> dict[str, Usage]:
    """Usage by kernel from the assembler's verbose log."""
    usage: dict[str, Usage] = {}
    parts = _FUNCTION.split(log)
    for kernel, text in zip(parts[1::2], parts[2::2], strict=True):
        spill, registers, shared = _SPILL.search(text), _REGISTERS.search(text), _SHARED.search(text)
        usage[kernel] = Usage(
            registers=int(registers[1]) if registers else 0,
            spilled=int(spill[1]) + int(spill[2]) if spill else 0,
            shared=int(shared[1]) if shared else 0,
        )
    return usage


def _refuse(name: str, architecture: str, log: str) -> NoReturn:
    first = next((line for line in log.splitlines() if "error" in line), log.strip().splitlines()[-1] if log else "?")
    raise RunError(f"{name}.cu does not compile for {architecture}: {first.strip()}")


def _text(nvrtc: Any, program: Any) -> str:
    error, size = nvrtc.nvrtcGetProgramLogSize(program)
    _check(nvrtc, error, "nvrtcGetProgramLogSize")
    buffer: bytes = b" " * size
    (error,) = nvrtc.nvrtcGetProgramLog(program, buffer)
    _check(nvrtc, error, "nvrtcGetProgramLog")
    return str(buffer.rstrip(b"\0 ").decode(errors="replace"))


def _cubin(nvrtc: Any, program: Any) -> bytes:
    error, size = nvrtc.nvrtcGetCUBINSize(program)
    _check(nvrtc, error, "nvrtcGetCUBINSize")
    buffer: bytes = b"\0" * size
    (error,) = nvrtc.nvrtcGetCUBIN(program, buffer)
    _check(nvrtc, error, "nvrtcGetCUBIN")
    return buffer


def _check(nvrtc: Any, error: Any, call: str) -> None:
    if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"{call} failed: {error}")
