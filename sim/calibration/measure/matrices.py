"""Matrix products as a linear layer makes them: cold weights, warm activations; by cuBLAS, or this project's kernel."""

from __future__ import annotations

from dataclasses import dataclass

from sim.calibration.measure.bench import Bench, Work
from sim.calibration.measure.cuda import Launch, integer, pointer
from sim.calibration.measure.numbers import from_bits, relative_error

FEW_TOKENS = 64  # up to here the kernel with small tiles is taken


@dataclass(frozen=True)
class Gemm:
    """C [m, n] = A [m, k] B [n, k]^T in bfloat16; B are the weights. n and k multiples of 8."""

    m: int
    n: int
    k: int
    table: str = "gemm"

    @property
    def shape(self) -> dict[str, int | str]:
        return {"m": self.m, "n": self.n, "k": self.k}

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k

    @property
    def cold_bytes(self) -> float:
        return 2.0 * self.n * self.k

    def prepare(self, bench: Bench) -> Work:
        weights = 2 * self.n * self.k
        activations = bench.window(0, 2 * self.m * self.k)
        out = bench.scratch("gemm", 2 * self.m * self.n)

        def enqueue(index: int) -> None:
            self._multiply(bench, activations, bench.window(index, weights), out)

        return Work(enqueue, bench.windows(weights))

    def error(self, bench: Bench) -> float:
        work = self.prepare(bench)
        last = work.num_windows - 1
        work.enqueue(last)
        a = bench.read_bits(bench.window(0, 2 * self.m * self.k), (self.m, self.k))
        b = bench.read_bits(bench.window(last, 2 * self.n * self.k), (self.n, self.k))
        c = bench.read_bits(bench.scratch("gemm", 0), (self.m, self.n))
        return relative_error(from_bits(c), from_bits(a) @ from_bits(b).T)

    def _multiply(self, bench: Bench, a: int, b: int, c: int) -> None:
        if bench.library is not None:
            bench.library.multiply(a, b, c, self.m, self.n, self.k)
            return
        tile_m, tile_n, block = (16, 32, 128) if self.m <= FEW_TOKENS else (128, 128, 256)
        grid = (-(-self.n // tile_n), -(-self.m // tile_m), 1)
        arguments = (pointer(a), pointer(b), pointer(c), integer(self.m), integer(self.n), integer(self.k))
        bench.gpu.launch(Launch(f"gemm_{tile_m}x{tile_n}", grid, block, arguments))
