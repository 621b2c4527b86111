"""The cost model of data sheets: every operation takes the longer of its FLOPs and its bytes, plus a launch.

Used for hardware that nobody has measured. Peaks come from the hardware profile, multiplied by achieved shares
(`efficiencies` of the profile, else `sim.hardware.EFFICIENCY_DEFAULTS`). Not modelled: tile and wave effects, padding
to CUDA-graph sizes, skewed context lengths, uneven expert load, overlap of communication with computation, expert
parallelism, batches of several pipeline stages in flight (a step's time is its way through all stages).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from sim.cost.base import BatchShape
from sim.cost.constant import decode_contexts
from sim.cost.work import Work, attention_work, row_work, token_work
from sim.errors import InputError
from sim.hardware import EFFICIENCY_DEFAULTS, HardwareProfile
from sim.model import ModelSpec

if TYPE_CHECKING:
    from sim.interconnect import Interconnect
    from sim.units import FloatArray

ELEMENTWISE_KERNELS = 3  # per layer, as a compiler fuses them


@dataclass(frozen=True)
class RooflineParameters:
    """What a user may set; seconds, and shares of peak in (0, 1]."""

    kernel_overhead: float = 3e-6  # launch, first wave and tail of one kernel in a CUDA graph
    all_reduce_latency: float = 6e-6  # of one small all-reduce within a node
    step_overhead: float = 0.0  # host time that is not hidden behind the GPU
    efficiencies: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("kernel_overhead", "all_reduce_latency", "step_overhead"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise InputError(f"cost_model.{name} must be a number of seconds >= 0 (got {value!r})")
        for name, value in self.efficiencies.items():
            if name not in EFFICIENCY_DEFAULTS or not 0 < value <= 1:
                known = ", ".join(EFFICIENCY_DEFAULTS)
                raise InputError(
                    f"cost_model.efficiencies.{name} must lie in (0, 1] and be one of {known} (got {value!r})"
                )


class RooflineCost:
    """Seconds of a step by rooflines, for one model on one GPU type and parallelism."""

    def __init__(
        self,
        model: ModelSpec,
        gpu: HardwareProfile,
        *,
        tensor_parallel: int = 1,
        pipeline_parallel: int = 1,
        num_rows: int = 8192 + 256,
        kv_dtype: str | None = None,
        parameters: RooflineParameters | None = None,
        interconnect: Interconnect | None = None,
    ) -> None:
        model.stage_layers(pipeline_parallel)
        self.model, self.gpu, self.interconnect = model, gpu, interconnect
        self.parameters = parameters or RooflineParameters()
        self._token_work = token_work(model, tensor_parallel, pipeline_parallel, interconnect)
        self._row_work = row_work(model, tensor_parallel)
        self._attention = attention_work(model, tensor_parallel, kv_dtype)
        self._window = float(model.sliding_window or 0) if model.num_sliding_layers else 0.0
        self._set_slopes()
        self._size = 0
        self._grow(num_rows)

    def step_time(self, shape: BatchShape) -> float:
        num_tokens, num_prefills, pairs, prefill_context, num_decodes, decode_context, _, num_drafts, draft_pairs = (
            shape
        )
        num_rows = num_decodes + num_drafts
        if num_tokens + num_rows >= self._size:
            self._grow(num_tokens + num_rows)
        if num_tokens == num_drafts == 0:
            return self._decode_time(num_decodes, decode_context)
        time = self._token_table[num_tokens + num_rows] + self._row_table[num_prefills + num_rows]
        if num_drafts:
            time += self._verify_attention(num_decodes, decode_context, num_drafts, draft_pairs)
        elif num_decodes:
            time += self._decode_attention(num_decodes, decode_context)
        if num_tokens == 0:
            return time
        return time + self._prefill_attention(num_tokens, num_prefills, pairs, prefill_context)

    def decode_times(self, num_sequences: int, context: int, max_context: int, num_steps: int) -> FloatArray:
        if num_sequences >= self._size:
            self._grow(num_sequences)
        times = decode_contexts(num_sequences, context, num_steps)
        if self._window:
            near = np.minimum(times, self._window * num_sequences)
            near *= self._near_slope
            times *= self._slope
            times += near
        else:
            times *= self._slope
        times += self._decode_table[num_sequences]
        return times

    def breakdown(self, shape: BatchShape) -> dict[str, dict[str, float | str]]:
        """Seconds, FLOPs, bytes and what bounds it, by operation; the seconds add up to `step_time`."""
        decoded = shape.num_decode_sequences + shape.num_draft_tokens
        tokens, rows = float(shape.num_prefill_tokens + decoded), float(shape.num_prefill_sequences + decoded)
        result: dict[str, dict[str, float | str]] = {}
        for work, amount in [(w, tokens) for w in self._token_work] + [(w, rows) for w in self._row_work]:
            result[work.name] = self._explain(work, amount)
        result["attention_launch"] = _entry(
            self.model.num_layers * self.parameters.kernel_overhead, 0.0, 0.0, "overhead"
        )
        result["step_overhead"] = _entry(self.parameters.step_overhead, 0.0, 0.0, "overhead")
        if shape.num_decode_sequences:
            result["decode_attention"] = self._explain_decode(shape)
        if shape.num_prefill_tokens:
            result["prefill_attention"] = self._explain_prefill(shape)
        return result

    def extrapolation(self) -> list[str]:
        """Nothing here is calibrated: one line that says so, and one about links between nodes."""
        between = [self.interconnect.note()] if self.interconnect else []
        return [
            *between,
            f"roofline: step times of '{self.model.name}' on '{self.gpu.name}' are computed, not measured",
        ]

    def _decode_time(self, num_decodes: int, context: int) -> float:
        if self._window:
            near = min(float(context), self._window * num_decodes) * self._near_slope
            return context * self._slope + near + self._decode_table[num_decodes]
        return context * self._slope + self._decode_table[num_decodes]

    def _decode_attention(self, num_decodes: int, context: int) -> float:
        return context * self._slope + min(float(context), self._window * num_decodes) * self._near_slope

    def _verify_attention(self, num_decodes: int, context: int, num_drafts: int, draft_pairs: int) -> float:
        """Attention of decodes that verify drafts: the cache is read once a sequence, every row has its pairs."""
        pairs = context + draft_pairs
        far = max(pairs * self._decode_pair_slope, context * self._read_slope) * self.model.num_full_layers
        if not self._window:
            return far
        near_pairs = min(float(pairs), self._window * (num_decodes + num_drafts))
        near_context = min(float(context), self._window * num_decodes + num_drafts)
        near = max(near_pairs * self._decode_pair_slope, near_context * self._read_slope)
        return far + near * self.model.num_sliding_layers

    def _prefill_attention(self, num_tokens: int, num_prefills: int, pairs: int, context: int) -> float:
        far = max(pairs * self._pair_slope, context * self._read_slope) * self.model.num_full_layers
        if not self._window:
            return far
        near_pairs, near_context = self._within_window(num_tokens, num_prefills, pairs, context)
        near = max(near_pairs * self._pair_slope, near_context * self._read_slope)
        return far + near * self.model.num_sliding_layers

    def _within_window(self, num_tokens: int, num_prefills: int, pairs: int, context: int) -> tuple[float, float]:
        return min(pairs, num_tokens * self._window), min(context, num_prefills * self._window + num_tokens)

    def _efficiency(self, operation: str) -> float:
        return self.parameters.efficiencies.get(operation, self.gpu.efficiency(operation))

    def _set_slopes(self) -> None:
        """Seconds per context token of all full (or windowed) layers, and per pair and token read of one layer."""
        flops = self.gpu.peak_flops(self.model.dtype) * self._efficiency("attention_compute")
        bandwidth = self.gpu.memory_bandwidth * self._efficiency("attention_memory")
        work = self._attention
        self._read_slope = work.bytes_per_context_token / bandwidth
        self._pair_slope = work.prefill_flops_per_pair / flops
        self._decode_pair_slope = work.decode_flops_per_pair / flops
        decode = max(self._decode_pair_slope, self._read_slope)
        self._slope = decode * self.model.num_full_layers
        self._near_slope = decode * self.model.num_sliding_layers

    def _grow(self, num_rows: int) -> None:
        """Tabulate the terms of token and row counts up to at least `num_rows`."""
        self._size = max(num_rows + 1, 2 * self._size)
        counts = np.arange(self._size, dtype=np.float64)
        fixed = self.model.num_layers * self.parameters.kernel_overhead + self.parameters.step_overhead
        tokens = sum((self._seconds(work, counts) for work in self._token_work), np.full(self._size, fixed))
        rows = sum((self._seconds(work, counts) for work in self._row_work), np.zeros(self._size))
        tokens[0] = rows[0] = 0.0
        self._token_table: list[float] = tokens.tolist()
        self._row_table: list[float] = rows.tolist()
        self._decode_table: list[float] = (tokens + rows).tolist()

    def _seconds(self, work: Work, counts: FloatArray) -> FloatArray:
        if self.interconnect is not None and work.kind == "all_reduce_across_nodes":
            return work.count * self.interconnect.all_reduce(work.bytes(counts))
        if self.interconnect is not None and work.kind == "send_across_nodes":
            return work.count * self.interconnect.send(work.bytes(counts))
        compute, memory = self._parts(work, counts)
        return work.count * (self._overhead(work) + np.maximum(compute, memory))

    def _parts(self, work: Work, counts: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Seconds of one time by FLOPs and by bytes."""
        flops, rate = work.flops(counts), self._byte_rate(work)
        peak = self.gpu.peak_flops(work.dtype) * self._efficiency("gemm_compute") if work.flops_per_token else 1.0
        return flops / peak, work.bytes(counts) / rate

    def _byte_rate(self, work: Work) -> float:
        if work.kind in ("all_reduce", "send"):
            return self.gpu.link_bandwidth * self._efficiency("scaleup_bandwidth")
        share = "elementwise_memory" if work.kind == "elementwise" else "gemm_memory"
        return self.gpu.memory_bandwidth * self._efficiency(share)

    def _overhead(self, work: Work) -> float:
        if work.kind in ("all_reduce", "send"):
            return self.parameters.all_reduce_latency
        return self.parameters.kernel_overhead * (ELEMENTWISE_KERNELS if work.kind == "elementwise" else 1)

    def _explain(self, work: Work, amount: float) -> dict[str, float | str]:
        counts = np.array([amount])
        if work.kind.endswith("_across_nodes"):
            return _entry(float(self._seconds(work, counts)[0]), 0.0, work.count * float(work.bytes(counts)[0]), "link")
        compute, memory = (float(part[0]) for part in self._parts(work, counts))
        flops, moved = float(work.flops(counts)[0]), float(work.bytes(counts)[0])
        seconds = float(self._seconds(work, counts)[0])
        bound = _bound(
            compute, memory, self._overhead(work), "link" if work.kind in ("all_reduce", "send") else "memory"
        )
        return _entry(seconds, work.count * flops, work.count * moved, bound)

    def _explain_decode(self, shape: BatchShape) -> dict[str, float | str]:
        near = min(float(shape.decode_context), self._window * shape.num_decode_sequences)
        reads = self.model.num_full_layers * shape.decode_context + self.model.num_sliding_layers * near
        flops, moved = reads * self._attention.decode_flops_per_pair, reads * self._attention.bytes_per_context_token
        seconds = self._decode_attention(shape.num_decode_sequences, shape.decode_context)
        return _entry(seconds, flops, moved, "compute" if seconds > reads * self._read_slope * (1 + 1e-9) else "memory")

    def _explain_prefill(self, shape: BatchShape) -> dict[str, float | str]:
        num_tokens, num_prefills, pairs, context, *_ = shape
        near_pairs, near_context = self._within_window(num_tokens, num_prefills, pairs, context)
        full, sliding = self.model.num_full_layers, self.model.num_sliding_layers
        flops = (full * pairs + sliding * near_pairs) * self._attention.prefill_flops_per_pair
        moved = (full * context + sliding * near_context) * self._attention.bytes_per_context_token
        seconds = self._prefill_attention(num_tokens, num_prefills, pairs, context)
        bound = "compute" if pairs * self._pair_slope >= context * self._read_slope else "memory"
        return _entry(seconds, flops, moved, bound)


def _entry(seconds: float, flops: float, moved: float, bound: str) -> dict[str, float | str]:
    return {"seconds": seconds, "flops": flops, "bytes": moved, "bound": bound}


def _bound(compute: float, memory: float, overhead: float, memory_name: str) -> str:
    if overhead > max(compute, memory):
        return "overhead"
    return "compute" if compute > memory else memory_name
