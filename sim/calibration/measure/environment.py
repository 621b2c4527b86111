"""What a measurement was taken on: GPU, driver, clocks, power, versions; and which catalogue GPU that is."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

from sim.calibration.measure.compiler import sources_hash, version
from sim.errors import InputError
from sim.hardware import gpu_names, load_gpu

if TYPE_CHECKING:
    from sim.calibration.measure.cuda import Gpu
    from sim.hardware import HardwareProfile

QUERY = (
    *("clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "power.draw", "power.limit", "temperature.gpu"),
    *("clocks_event_reasons.active", "ecc.mode.current", "mig.mode.current"),
)
HARMLESS_REASONS = 0x1 | 0x2  # idle; application clocks
_WORDS = re.compile(r"[a-z0-9]+")


def describe(gpu: Gpu, library: str) -> dict[str, Any]:
    """The facts of a measurement, for environment.json."""
    return {
        "gpu": gpu.name,
        "architecture": gpu.architecture,
        "num_multiprocessors": gpu.num_multiprocessors,
        "l2_bytes": gpu.l2_bytes,
        "memory_bytes": gpu.memory_bytes,
        "ecc": gpu.ecc,
        "driver_cuda_version": gpu.driver_version,
        "nvrtc": version(),
        "matrix_library": library,
        "kernel_sources_sha256": sources_hash(),
        "state": sample_state(gpu.index),
    }


def sample_state(index: int) -> dict[str, str]:
    """Clocks, power, temperature and throttle reasons by nvidia-smi; empty where it does not answer."""
    if shutil.which("nvidia-smi") is None:
        return {}
    command = ["nvidia-smi", f"--id={index}", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    values = [value.strip() for value in answer.splitlines()[0].split(",")] if answer.strip() else []
    return dict(zip(QUERY, values, strict=False))


def is_throttled(state: dict[str, str]) -> bool:
    """Whether the driver names a reason for lowered clocks, other than idleness."""
    reasons = state.get("clocks_event_reasons.active", "0x0")
    try:
        return bool(int(reasons, 16) & ~HARMLESS_REASONS)
    except ValueError:
        return False


def catalogue_gpu(name: str) -> HardwareProfile:
    """The catalogue entry for a GPU's driver name ("NVIDIA H100 80GB HBM3"). `InputError` asks for `--gpu`."""
    words = set(_WORDS.findall(name.lower().replace("sxm4", "sxm").replace("sxm5", "sxm")))
    if "pcie" not in words and "nvl" not in words:
        words.add("sxm")
    scored = sorted((-_likeness(words, entry), len(entry), entry) for entry in gpu_names())
    if scored and scored[0][0] < 0:
        return load_gpu(scored[0][2])
    raise InputError(f"GPU '{name}' is not in the catalogue; name the entry by --gpu; known: {', '.join(gpu_names())}")


def _likeness(words: set[str], entry: str) -> int:
    """How many words of an entry's name the driver's name has; 0 unless the chip and the form agree."""
    chip, *rest = entry.removeprefix("rtx-").split("-")
    if chip not in words or ("rtx" in words) != entry.startswith("rtx-") or ("sxm" in rest and "sxm" not in words):
        return 0
    return 1 + sum(word in words for word in rest)
