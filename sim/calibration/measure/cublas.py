"""cuBLAS through ctypes, where the machine has it (CUDA toolkit, or the wheel nvidia-cublas): bfloat16 products."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from sim.errors import RunError

if TYPE_CHECKING:
    from sim.calibration.measure.cuda import Gpu

CUDA_R_16BF = 14
COMPUTE_32F = 68
TRANSPOSED, AS_IT_IS = 1, 0
DEFAULT_ALGORITHM = -1
WORKSPACE_BYTES = 32 * 2**20


def find_cublas() -> Any | None:
    """The library, or None where there is none."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        return ctypes.CDLL(load_nvidia_dynamic_lib("cublas").abs_path)
    except (ImportError, OSError, RuntimeError, ValueError):
        return None


class Cublas:
    """Products by `cublasGemmEx`, accumulated in float32, with the algorithm that cuBLAS chooses."""

    name = "cublas"

    def __init__(self, gpu: Gpu, library: Any) -> None:
        self._library = library
        self._handle = ctypes.c_void_p()
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        self._call("cublasCreate_v2", ctypes.byref(self._handle))
        self._call("cublasSetStream_v2", self._handle, ctypes.c_void_p(int(gpu.stream)))
        workspace = gpu.allocate(WORKSPACE_BYTES)  # so that nothing is allocated while a graph is captured
        self._call(
            "cublasSetWorkspace_v2", *(self._handle, ctypes.c_void_p(workspace)), ctypes.c_size_t(WORKSPACE_BYTES)
        )

    def multiply(self, a: int, b: int, c: int, m: int, n: int, k: int) -> None:
        """C = A B^T, all row-major; cuBLAS counts by columns, so it is asked for C^T = (B^T)^T A^T."""
        self._call(
            *("cublasGemmEx", self._handle, TRANSPOSED, AS_IT_IS, n, m, k, ctypes.byref(self._one)),
            *(ctypes.c_void_p(b), CUDA_R_16BF, k, ctypes.c_void_p(a), CUDA_R_16BF, k),
            *(ctypes.byref(self._zero), ctypes.c_void_p(c), CUDA_R_16BF, n, COMPUTE_32F, DEFAULT_ALGORITHM),
        )

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise RunError(f"{name} failed with status {status}")
