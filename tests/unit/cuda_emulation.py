"""Builds an emulated CUDA driver (g++) and runs Python code on it in a process of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

from sim.calibration.measure.compiler import HEADER, KERNELS, missing_compiler

HERE = Path(__file__).parent / "cuda_emulator"
ROOT = Path(__file__).parents[2]


def missing() -> str | None:
    """Why nothing can be emulated here, or None."""
    if shutil.which("g++") is None:
        return "g++ is not installed, so the emulated driver cannot be built"
    return missing_compiler()


def build_driver(folder: Path, edits: dict[str, tuple[str, str]] | None = None) -> Path:
    """A folder with `libcuda.so.1` in it. `edits`: by file name, a regular expression and what replaces its matches."""
    kernels = files("sim.calibration.kernels")
    for name in (HEADER, *(f"{source}.cu" for source in KERNELS)):
        text = (kernels / name).read_text(encoding="utf-8")
        if edits and name in edits:
            text, count = re.subn(*edits[name], text)
            assert count, f"nothing to edit in {name}"
        (folder / name).write_text(text, encoding="utf-8")
    names = [name for kernels_of in KERNELS.values() for name in kernels_of]
    includes = "".join(f'#include "{source}.cu"\n' for source in KERNELS)
    listed = ", ".join(f"KERNEL({name})" for name in names)
    (folder / "kernels.inc").write_text(f"{includes}#define KERNELS {listed}\n", encoding="utf-8")
    options = ["-std=c++20", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-w", "-Wl,-soname,libcuda.so.1"]
    library = folder / "libcuda.so.1"
    command = ["g++", *options, "-I", str(folder), "-o", str(library), str(HERE / "driver.cpp"), "-ldl"]
    subprocess.run(command, check=True)
    return folder


def run_on(driver: Path, code: str, order: str = "forward") -> subprocess.CompletedProcess[str]:
    """Run Python code with the emulated driver in place of the real one."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(driver), "EMULATOR_ORDER": order, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
