"""One GPU through the CUDA driver: memory, kernels, launches, graphs, events. Needs cuda-bindings and a driver.

A thin layer, so that everything above it can be run in tests with an emulated driver. Never changes clocks or limits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sim.calibration.measure.compiler import KERNELS, compile_source, missing_compiler
from sim.errors import InputError, RunError

if TYPE_CHECKING:
    import numpy.typing as npt

Argument = tuple[Any, Any]  # value and ctypes type of one kernel parameter


class Launch(NamedTuple):
    """One kernel launch: name, grid and block sizes, arguments as `pointer`, `integer` or `number` make them."""

    kernel: str
    grid: tuple[int, int, int]
    block: int
    arguments: tuple[Argument, ...]


def pointer(address: int) -> Argument:
    """A device address."""
    return address, ctypes.c_void_p


def integer(value: int) -> Argument:
    """A 32-bit int."""
    return value, ctypes.c_int


def long_integer(value: int) -> Argument:
    """A 64-bit int."""
    return value, ctypes.c_longlong


def number(value: float) -> Argument:
    """A float32."""
    return value, ctypes.c_float


class Gpu:
    """The GPU with the given index, with a stream of its own. `InputError` when there is no driver or no such GPU.

    Attributes: `name`, `architecture` ("sm_90"), `num_multiprocessors`, `l2_bytes`, `memory_bytes`, `driver_version`.
    """

    def __init__(self, index: int = 0) -> None:
        reason = missing_compiler()
        if reason:
            raise InputError(f"no GPU can be measured: {reason}")
        from cuda.bindings import driver

        self._driver = driver
        self._modules: dict[str, Any] = {}
        self._functions: dict[str, Any] = {}
        self._allocations: list[int] = []
        self._open(index)

    def _open(self, index: int) -> None:
        try:
            self._call("cuInit", 0)
            count = self._call("cuDeviceGetCount")
        except RuntimeError as error:
            raise InputError(f"no GPU can be measured: the CUDA driver does not answer ({error})") from None
        if not 0 <= index < count:
            raise InputError(f"--device {index}: this machine has {count} GPUs, numbered from 0")
        self.index = index
        self.handle = self._call("cuDeviceGet", index)
        self._context = self._call("cuDevicePrimaryCtxRetain", self.handle)
        self._call("cuCtxSetCurrent", self._context)
        self.stream = self._call("cuStreamCreate", 1)  # does not wait for the default stream
        self._read_facts()

    def _read_facts(self) -> None:
        raw = self._call("cuDeviceGetName", 256, self.handle)
        self.name = raw.split(b"\0")[0].decode()
        kinds = self._driver.CUdevice_attribute
        self.num_multiprocessors = self._attribute(kinds.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
        self.l2_bytes = self._attribute(kinds.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)
        major = self._attribute(kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
        minor = self._attribute(kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
        self.ecc = bool(self._attribute(kinds.CU_DEVICE_ATTRIBUTE_ECC_ENABLED))
        self.architecture = f"sm_{major}{minor}"
        self.memory_bytes = int(self._call("cuDeviceTotalMem", self.handle))
        self.driver_version = int(self._call("cuDriverGetVersion"))

    def _attribute(self, kind: Any) -> int:
        return int(self._call("cuDeviceGetAttribute", kind, self.handle))

    def _call(self, name: str, *arguments: Any) -> Any:
        """A driver call; `RuntimeError` with its name and CUDA's error when it fails."""
        answer = getattr(self._driver, name)(*arguments)
        if answer[0] != self._driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"{name}: {answer[0].name}")
        return answer[1] if len(answer) == 2 else answer[1:]

    # --- memory -------------------------------------------------------------------------------------------------------

    @property
    def free_bytes(self) -> int:
        """Bytes of device memory that can still be allocated."""
        return int(self._call("cuMemGetInfo")[0])

    def allocate(self, num_bytes: int) -> int:
        """Address of new device memory; lives until `release` or `close`."""
        try:
            address = int(self._call("cuMemAlloc", max(num_bytes, 1)))
        except RuntimeError as error:
            raise RunError(f"{num_bytes} bytes of GPU memory cannot be had ({error}); close other programs") from None
        self._allocations.append(address)
        return address

    def release(self, address: int) -> None:
        """Free one allocation."""
        self._allocations.remove(address)
        self._call("cuMemFree", address)

    def upload(self, array: npt.NDArray[Any], address: int | None = None) -> int:
        """Copy an array to `address` (new memory without it) and return where it is."""
        packed = np.ascontiguousarray(array)
        target = self.allocate(packed.nbytes) if address is None else address
        self._call("cuMemcpyHtoD", target, packed.ctypes.data, packed.nbytes)
        return target

    def download(self, address: int, shape: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array of device memory, after all work so far."""
        self.synchronize()
        array = np.empty(shape, dtype)
        self._call("cuMemcpyDtoH", array.ctypes.data, address, array.nbytes)
        return array

    def allocate_pinned(self, num_bytes: int) -> int:
        """Address of page-locked host memory; give it back with `release_pinned`."""
        return int(self._call("cuMemHostAlloc", num_bytes, 0))

    def release_pinned(self, address: int) -> None:
        """Free page-locked host memory."""
        self._call("cuMemFreeHost", address)

    # --- work ---------------------------------------------------------------------------------------------------------

    def launch(self, work: Launch) -> None:
        """Put one kernel on the stream."""
        values, types = zip(*work.arguments, strict=True) if work.arguments else ((), ())
        parameters = (values, types) if work.arguments else 0
        self._call(
            *("cuLaunchKernel", self._function(work.kernel), *work.grid, work.block, 1, 1, 0, self.stream),
            *(parameters, 0),
        )

    def _function(self, kernel: str) -> Any:
        if kernel not in self._functions:
            source = next(name for name, kernels in KERNELS.items() if kernel in kernels)
            if source not in self._modules:
                self._modules[source] = self._call("cuModuleLoadData", compile_source(source, self.architecture).cubin)
            self._functions[kernel] = self._call("cuModuleGetFunction", self._modules[source], kernel.encode())
        return self._functions[kernel]

    def copy_to_device(self, target: int, host: int, num_bytes: int) -> None:
        """Put a copy from host memory on the stream."""
        self._call("cuMemcpyHtoDAsync", target, host, num_bytes, self.stream)

    def copy_to_host(self, host: int, source: int, num_bytes: int) -> None:
        """Put a copy to host memory on the stream."""
        self._call("cuMemcpyDtoHAsync", host, source, num_bytes, self.stream)

    def copy_on_device(self, target: int, source: int, num_bytes: int) -> None:
        """Put a copy within device memory on the stream."""
        self._call("cuMemcpyDtoDAsync", target, source, num_bytes, self.stream)

    def fill(self, address: int, byte: int, num_bytes: int) -> None:
        """Put a fill of device memory on the stream."""
        self._call("cuMemsetD8Async", address, byte, num_bytes, self.stream)

    def synchronize(self) -> None:
        """Wait for all work; a fault of a kernel comes out here as `RunError`."""
        try:
            self._call("cuStreamSynchronize", self.stream)
        except RuntimeError as error:
            raise RunError(f"the GPU reports a fault of a kernel: {error}") from None

    # --- time ---------------------------------------------------------------------------------------------------------

    def elapsed(self, work: Callable[[], None]) -> float:
        """Seconds between two events around the work that `work` puts on the stream."""
        start, end = self._call("cuEventCreate", 0), self._call("cuEventCreate", 0)
        try:
            self._call("cuEventRecord", start, self.stream)
            work()
            self._call("cuEventRecord", end, self.stream)
            self._call("cuEventSynchronize", end)
            return float(self._call("cuEventElapsedTime", start, end)) * 1e-3
        finally:
            self._call("cuEventDestroy", start)
            self._call("cuEventDestroy", end)

    @contextmanager
    def captured(self, work: Callable[[], None]) -> Iterator[Callable[[], None]]:
        """The work that `work` puts on the stream, as a graph: a function that replays it, valid within the context."""
        mode = self._driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._call("cuStreamBeginCapture", self.stream, mode)
        try:
            work()
        finally:
            graph = self._call("cuStreamEndCapture", self.stream)
        executable = self._call("cuGraphInstantiate", graph, 0)
        try:
            yield lambda: self._call("cuGraphLaunch", executable, self.stream)
        finally:
            self._call("cuGraphExecDestroy", executable)
            self._call("cuGraphDestroy", graph)

    def close(self) -> None:
        """Free everything; the last allocations first."""
        self.synchronize()
        for address in reversed(list(self._allocations)):
            self.release(address)
        self._call("cuStreamDestroy", self.stream)
        self._call("cuDevicePrimaryCtxRelease", self.handle)
