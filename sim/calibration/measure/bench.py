"""What all measured operations share: random data that is larger than the cache, scratch buffers, a matrix library."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from sim.calibration.measure.numbers import to_bits
from sim.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt

    from sim.calibration.measure.cuda import Gpu

ALIGNMENT = 256
TILE_BYTES = 16 * 2**20  # of random data that is made on the host and repeated
MAX_SHARE = 0.35  # of free device memory that random data may take
MAX_BYTES = 12 * 2**30


class MatrixLibrary(Protocol):
    """A library that multiplies matrices: its name in tables, and C [m, n] = A [m, k] B [n, k]^T on a stream."""

    name: str

    def multiply(self, a: int, b: int, c: int, m: int, n: int, k: int) -> None:
        """Put the product of bfloat16 matrices at these addresses on the stream."""
        ...


class Work(NamedTuple):
    """A prepared operation: `enqueue(i)` puts it on the stream with the i-th of `num_windows` sets of cold data."""

    enqueue: Callable[[int], None]
    num_windows: int


class Operation(Protocol):
    """One operation at one shape, as it is timed and as it stands in a table."""

    @property
    def table(self) -> str:
        """The table that its time goes into."""
        ...

    @property
    def shape(self) -> dict[str, int | str]:
        """Coordinates, as the table's columns call them."""
        ...

    @property
    def flops(self) -> float:
        """Floating point operations that it needs at least."""
        ...

    @property
    def cold_bytes(self) -> float:
        """Bytes that must come from memory where nothing of the last run is in a cache."""
        ...

    def prepare(self, bench: Bench) -> Work:
        """Place its data; `Bench.clear` takes small arrays away again."""
        ...

    def error(self, bench: Bench) -> float:
        """Relative error of the kernel against float64 NumPy on the same data."""
        ...


class Bench:
    """A GPU with random bfloat16 data of `num_bytes` (default: as much as is sensible) in device memory."""

    def __init__(
        self, gpu: Gpu, library: MatrixLibrary | None = None, num_bytes: int | None = None, seed: int = 0
    ) -> None:
        self.gpu, self.library = gpu, library
        self.rng = np.random.default_rng(seed)
        sensible = min(MAX_BYTES, int(MAX_SHARE * gpu.free_bytes))
        self.num_bytes = (num_bytes or sensible) // ALIGNMENT * ALIGNMENT
        self.data = gpu.allocate(self.num_bytes)
        self._fill()
        self._scratch: dict[str, tuple[int, int]] = {}
        self._held: list[int] = []

    def _fill(self) -> None:
        tile = to_bits(self.rng.standard_normal(min(TILE_BYTES, self.num_bytes) // 2))
        self.gpu.upload(tile, self.data)
        done = tile.nbytes
        while done < self.num_bytes:
            more = min(done, self.num_bytes - done)
            self.gpu.copy_on_device(self.data + done, self.data, more)
            done += more
        self.gpu.synchronize()

    def windows(self, num_bytes: int) -> int:
        """How many pieces of this size the data has. `InputError` when it has none."""
        count = self.num_bytes // _aligned(num_bytes)
        if not count:
            raise InputError(
                f"{num_bytes} bytes of data do not fit into the {self.num_bytes} bytes of this measurement"
            )
        return count

    def window(self, index: int, num_bytes: int) -> int:
        """Address of a piece; pieces of one size do not overlap until all have been used."""
        return self.data + index % self.windows(num_bytes) * _aligned(num_bytes)

    def scratch(self, name: str, num_bytes: int) -> int:
        """A buffer that is overwritten: the same one for a name, grown as needed."""
        address, size = self._scratch.get(name, (0, 0))
        if size < num_bytes:
            if address:
                self.gpu.synchronize()
                self.gpu.release(address)
            address = self.gpu.allocate(num_bytes)
            self._scratch[name] = address, num_bytes
        return address

    def random_scratch(self, name: str, num_bytes: int) -> int:
        """A buffer as `scratch` has them that holds random values when it is made or grows."""
        known = self._scratch.get(name, (0, 0))[1]
        address = self.scratch(name, num_bytes)
        if known < num_bytes:
            self.gpu.copy_on_device(address, self.window(0, num_bytes), num_bytes)
        return address

    def hold(self, array: npt.NDArray[Any]) -> int:
        """Upload a small array that lives until `clear`."""
        self._held.append(self.gpu.upload(array))
        return self._held[-1]

    def clear(self) -> None:
        """Free what `hold` uploaded."""
        self.gpu.synchronize()
        for address in self._held:
            self.gpu.release(address)
        self._held.clear()

    def read_bits(self, address: int, shape: tuple[int, ...]) -> npt.NDArray[np.uint16]:
        """bfloat16 bits of device memory."""
        return self.gpu.download(address, shape, np.uint16)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
