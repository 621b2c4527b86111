"""A whole step of a small model as a chain of the measured kernels: what the sum of their formulas is held against.

Not measured: what an engine adds (its scheduler, sampler, graph padding); those constants come from measured servers.
"""

from __future__ import annotations

from dataclasses import dataclass

from sim.calibration.measure.attention import Decode, Heads, Prefill
from sim.calibration.measure.bench import Bench, Operation, Work
from sim.calibration.measure.elementwise import Elementwise, Layer
from sim.calibration.measure.matrices import Gemm

NUM_LAYERS = 4


@dataclass(frozen=True)
class Step:
    """Decodes of `contexts` and perhaps one chunk (new tokens, tokens before), through `NUM_LAYERS` layers."""

    contexts: tuple[int, ...]
    chunk: tuple[int, int] | None
    layer: Layer
    heads: Heads
    table: str = "steps"

    @property
    def num_tokens(self) -> int:
        return len(self.contexts) + (self.chunk[0] if self.chunk else 0)

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The kernels of one layer, in order."""
        layer, heads, tokens = self.layer, self.heads, self.num_tokens
        width = (heads.heads + 2 * heads.kv_heads) * heads.head_dim
        norm = Elementwise("norm", tokens, layer)
        prefill = (Prefill((self.chunk,), heads),) if self.chunk else ()
        return (
            norm,
            Gemm(tokens, width, layer.hidden),
            Elementwise("rope", tokens, layer),
            Decode(self.contexts, heads),
            *prefill,
            Gemm(tokens, layer.hidden, heads.heads * heads.head_dim),
            norm,
            Gemm(tokens, 2 * layer.inter, layer.hidden),
            Elementwise("activation", tokens, layer),
            Gemm(tokens, layer.hidden, layer.inter),
        )

    @property
    def shape(self) -> dict[str, int | str]:
        new, prefix = self.chunk or (0, 0)
        contexts = "+".join(map(str, self.contexts))
        return {"contexts": contexts, "chunk": new, "prefix": prefix, "layers": NUM_LAYERS}

    @property
    def flops(self) -> float:
        return NUM_LAYERS * sum(part.flops for part in self.operations)

    @property
    def cold_bytes(self) -> float:
        return NUM_LAYERS * sum(part.cold_bytes for part in self.operations)

    def prepare(self, bench: Bench) -> Work:
        works = [part.prepare(bench) for part in self.operations]

        def enqueue(index: int) -> None:
            for number in range(NUM_LAYERS):
                for work in works:
                    work.enqueue(index * NUM_LAYERS + number)

        return Work(enqueue, max(work.num_windows for work in works))

    def error(self, bench: Bench) -> float:
        """The largest error of its kernels, one by one."""
        return max(part.error(bench) for part in self.operations)
