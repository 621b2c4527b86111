"""The elementwise operations of a layer with this project's kernels: norm with residual, rotary, activation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sim.calibration.measure.bench import Bench, Work
from sim.calibration.measure.cuda import Launch, integer, number, pointer
from sim.calibration.measure.numbers import from_bits, relative_error, to_bits

if TYPE_CHECKING:
    from sim.units import FloatArray

EPSILON = 1e-5
BLOCKS_PER_MULTIPROCESSOR = 8
TABLE_NAMES = {"norm": "post_attention_layernorm", "rope": "attn_rope", "activation": "mlp_act"}


@dataclass(frozen=True)
class Layer:
    """The sizes of a transformer layer that elementwise kernels see."""

    hidden: int
    heads: int
    kv_heads: int
    inter: int

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


@dataclass(frozen=True)
class Elementwise:
    """One of `TABLE_NAMES` over `num_tokens` tokens; everything it touches is warm, as between kernels of a layer."""

    operation: str
    num_tokens: int
    layer: Layer
    table: str = "vidur_mlp_ops"

    @property
    def shape(self) -> dict[str, int | str]:
        layer = self.layer
        sizes = {"n_embd": layer.hidden, "n_head": layer.heads, "n_kv_head": layer.kv_heads, "n_ff": layer.inter}
        return {"op": TABLE_NAMES[self.operation], "num_tokens": self.num_tokens, "tp": 1, "gated": 1, **sizes}

    @property
    def flops(self) -> float:
        return 0.0

    @property
    def cold_bytes(self) -> float:
        return 0.0

    def prepare(self, bench: Bench) -> Work:
        launch = getattr(self, f"_{self.operation}")(bench)
        return Work(lambda _: bench.gpu.launch(launch), 1)

    def error(self, bench: Bench) -> float:
        before = {name: self._values(bench, name) for name in ("input", "residual", "rotary", "both")}
        work = self.prepare(bench)
        work.enqueue(0)
        found, expected = getattr(self, f"_check_{self.operation}")(bench, before)
        bench.clear()
        return relative_error(found, expected)

    # --- norm: residual += input; out = residual / rms * weight -------------------------------------------------------

    def _norm(self, bench: Bench) -> Launch:
        pointers = (self._at(bench, "input"), self._at(bench, "residual"), bench.window(0, 1), self._out(bench))
        arguments = (*map(pointer, pointers), integer(self.layer.hidden), number(EPSILON))
        return Launch("add_rms_norm", (self.num_tokens, 1, 1), 256, arguments)

    def _check_norm(self, bench: Bench, before: dict[str, FloatArray]) -> tuple[FloatArray, FloatArray]:
        total = from_bits(to_bits(before["input"] + before["residual"]))
        weight = from_bits(bench.read_bits(bench.window(0, 1), (self.layer.hidden,)))
        expected = total / np.sqrt(np.mean(total**2, axis=1, keepdims=True) + EPSILON) * weight
        return from_bits(bench.read_bits(self._out(bench), total.shape)), expected

    # --- rope: queries and keys of each token turn in place ---------------------------------------------------------

    def _rope(self, bench: Bench) -> Launch:
        angles = np.outer(
            np.arange(self.num_tokens), 1e4 ** (-np.arange(self.layer.head_dim // 2) * 2.0 / self.layer.head_dim)
        )
        table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
        pointers = (pointer(self._at(bench, "rotary")), pointer(bench.hold(table)))
        heads = self.layer.heads + self.layer.kv_heads
        arguments = (*pointers, integer(heads), integer(self.layer.head_dim))
        return Launch("rotary", (self.num_tokens, 1, 1), 256, arguments)

    def _check_rope(self, bench: Bench, before: dict[str, FloatArray]) -> tuple[FloatArray, FloatArray]:
        half = self.layer.head_dim // 2
        angles = np.outer(np.arange(self.num_tokens), 1e4 ** (-np.arange(half) / half))[:, None, :]
        x, y = before["rotary"][..., :half], before["rotary"][..., half:]
        turned = (x * np.cos(angles) - y * np.sin(angles), y * np.cos(angles) + x * np.sin(angles))
        return self._values(bench, "rotary"), np.concatenate(turned, axis=-1)

    # --- activation: out = silu(gate) * up --------------------------------------------------------------------------

    def _activation(self, bench: Bench) -> Launch:
        tokens, width = self.num_tokens, self.layer.inter
        blocks = min(-(-tokens * width // 512), BLOCKS_PER_MULTIPROCESSOR * bench.gpu.num_multiprocessors)
        pointers = (pointer(self._at(bench, "both")), pointer(self._out(bench)))
        return Launch("silu_multiply", (blocks, 1, 1), 256, (*pointers, integer(tokens), integer(width)))

    def _check_activation(self, bench: Bench, before: dict[str, FloatArray]) -> tuple[FloatArray, FloatArray]:
        gate, up = np.split(before["both"], 2, axis=1)
        return from_bits(bench.read_bits(self._out(bench), gate.shape)), gate / (1.0 + np.exp(-gate)) * up

    # --- data -------------------------------------------------------------------------------------------------------

    def _shape_of(self, name: str) -> tuple[int, ...]:
        layer = self.layer
        if name == "rotary":
            return self.num_tokens, layer.heads + layer.kv_heads, layer.head_dim
        return self.num_tokens, 2 * layer.inter if name == "both" else layer.hidden

    def _at(self, bench: Bench, name: str) -> int:
        return bench.random_scratch(name, 2 * int(np.prod(self._shape_of(name))))

    def _values(self, bench: Bench, name: str) -> FloatArray:
        return from_bits(bench.read_bits(self._at(bench, name), self._shape_of(name)))

    def _out(self, bench: Bench) -> int:
        return bench.scratch("elementwise", 2 * self.num_tokens * max(self.layer.hidden, self.layer.inter))
