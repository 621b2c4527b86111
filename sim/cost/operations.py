"""The operations of a step by number of tokens and of sampled rows, timed with a fitted profile.

No operation is faster than the peaks of the GPU allow. What a profile lacks is replaced by the nearest thing that it
has, or by a stated rate, and noted: `Coverage` collects such sentences, and shapes outside the box of the fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sim.cost.kernels import GemmKernel, MoeKernel, soft_maximum
from sim.cost.profile import EngineConstants, Fitted, FittedProfile
from sim.cost.work import Work, touched_experts
from sim.errors import InputError
from sim.hardware import DTYPE_BYTES, HardwareProfile
from sim.model import Gemm, ModelSpec

if TYPE_CHECKING:
    from sim.interconnect import Interconnect
    from sim.units import FloatArray

PROFILE_DTYPES = {"fp16": "bf16"}  # kernels of 16-bit types take the same time
KV_WRITE_SECONDS = 2e-6  # of one layer, set with the engine constants
SMALL_MESSAGE_SECONDS = 1e-5  # latency of a transfer or of an all-reduce that nobody measured
UNMEASURED_LINK_SHARE = 0.75
# Experts without a fitted kernel: launch, shares of bandwidth and FLOP/s, sharpness (Mixtral and Scout on H100).
UNMEASURED_EXPERTS = (30e-6, 0.89, 0.75, 3.0)


class Timed(NamedTuple):
    """One operation: its name, its work when that is known, and its seconds by count."""

    name: str
    work: Work | None
    seconds: FloatArray


@dataclass
class Coverage:
    """Sentences about what a profile does not cover, each once, in order of appearance."""

    notes: dict[str, None] = field(default_factory=dict)
    _outside: set[tuple[str, str]] = field(default_factory=set)

    def note(self, sentence: str) -> None:
        self.notes[sentence] = None

    def check(self, fitted: Fitted, name: str, **coordinates: float) -> None:
        """Note every coordinate outside the box that the kernel was fitted on."""
        for axis, value in coordinates.items():
            low, high = fitted.region.get(axis, (value, value))
            if not low <= value <= high and (name, axis) not in self._outside:
                self._outside.add((name, axis))
                self.note(f"{name}: {axis} {value:g} lies outside the calibrated {low:g} to {high:g}")

    def choose(self, table: Mapping[str, Fitted], dtype: str, name: str) -> Fitted:
        """The kernel of a data type, or the 16-bit one with that type's bytes and a note."""
        wanted = PROFILE_DTYPES.get(dtype, dtype)
        if wanted in table:
            return table[wanted]
        if "bf16" not in table:
            raise InputError(f"the fitted profile has no {name}; use cost_model: {{kind: roofline}}")
        self.note(f"{name}: {dtype} is not calibrated; the 16-bit kernel with {DTYPE_BYTES[dtype]:g} bytes an element")
        kernel: Any = replace(table["bf16"].kernel, element_bytes=DTYPE_BYTES[dtype])
        return replace(table["bf16"], kernel=kernel)

    def choose_prefill(self, table: Mapping[str, Fitted], kv_dtype: str) -> Fitted:
        """The prefill kernel for a type of cache, or the 16-bit one and a note."""
        wanted = PROFILE_DTYPES.get(kv_dtype, kv_dtype)
        if wanted not in table:
            self.note(f"prefill attention: a {kv_dtype} cache is not calibrated; the 16-bit kernel")
        return self.choose(table, wanted if wanted in table else "bf16", "prefill attention")


@dataclass(frozen=True)
class StepOperations:
    """Everything of a step but attention, for one model on one GPU type and parallelism."""

    model: ModelSpec
    gpu: HardwareProfile
    profile: FittedProfile
    constants: EngineConstants
    tensor_parallel: int
    pipeline_parallel: int
    sampled: bool  # top_p or top_k
    coverage: Coverage
    interconnect: Interconnect | None = None  # of a replica that spans several nodes
    data_parallel: int = 1
    expert_parallel: bool = False
    expert_skew: float = 1.0  # rows of the fullest GPU over their mean

    def by_tokens(self, tokens: FloatArray) -> list[Timed]:
        """Operations of all layers over `tokens` tokens a data-parallel rank."""
        model, tp = self.model, self.tensor_parallel
        parts = [self._product(gemm, model.num_layers, tokens) for gemm in model.attention_gemms(tp)]
        if model.num_layers > model.num_moe_layers:
            num_dense = model.num_layers - model.num_moe_layers
            parts += [self._product(gemm, num_dense, tokens) for gemm in model.mlp_gemms(tp)]
        if model.is_moe:
            gemms = (model.router_gemm(), *model.shared_expert_gemms(tp))
            parts += [self._product(gemm, model.num_moe_layers, tokens) for gemm in gemms]
            parts.append(Timed("experts", None, model.num_moe_layers * self._experts(tokens * self.data_parallel)))
        parts.append(Timed("small_ops", None, model.num_layers * self._small(tokens)))
        if self.data_parallel > 1:
            parts.append(Timed("expert_exchange", None, model.num_moe_layers * self._exchange(tokens)))
        return parts + self._messages(tokens)

    def by_rows(self, rows: FloatArray) -> list[Timed]:
        """The LM head and the sampler over `rows` sequences."""
        parts = [self._product(self.model.lm_head_gemm(self.tensor_parallel), 1, rows)]
        if self.sampled:
            logits = rows * self.model.vocab_size
            seconds = self.constants.sampler + self.constants.sampler_per_logit * logits
            parts.append(Timed("sampler", None, seconds))
        return parts

    def _product(self, gemm: Gemm, count: int, tokens: FloatArray) -> Timed:
        fitted = self.coverage.choose(self.profile.gemm, gemm.dtype, "matrix products")
        self.coverage.check(fitted, f"matrix products ({gemm.name})", n=float(gemm.n), k=float(gemm.k))
        kernel: GemmKernel = self._at_rate_of(gemm.dtype, fitted.kernel)
        size, flops = DTYPE_BYTES[gemm.dtype], 2.0 * gemm.n * gemm.k
        work = Work(gemm.name, "gemm", count, flops, size * gemm.n * gemm.k, size * gemm.k + 2.0 * gemm.n)
        compute = work.flops(tokens) / self.gpu.peak_flops(gemm.dtype)
        ceiling = np.maximum(compute, work.fixed_bytes / self.gpu.memory_bandwidth)
        seconds = np.maximum(kernel.seconds(tokens, float(gemm.n), float(gemm.k)), ceiling)
        return Timed(gemm.name, work, count * seconds)

    def _at_rate_of(self, dtype: str, kernel: GemmKernel) -> GemmKernel:
        """A 16-bit kernel that stands in for a type nobody calibrated, at that type's share of the peak rate."""
        if PROFILE_DTYPES.get(dtype, dtype) in self.profile.gemm:
            return kernel
        faster = self.gpu.peak_flops(dtype) / self.gpu.peak_flops("bf16")
        return replace(kernel, flops=kernel.flops * faster) if faster > 1 else kernel

    def _experts(self, tokens: FloatArray) -> FloatArray:
        """Routed experts of one layer; tokens choose them uniformly."""
        model, dtype = self.model, self.model.expert_dtype
        rows = tokens * model.experts_per_token
        touched = touched_experts(model.num_experts, model.experts_per_token, tokens)
        shards = self.tensor_parallel * self.data_parallel
        if self.expert_parallel:
            rows, touched = rows / shards * self.expert_skew, touched / shards
        hidden, width = float(model.hidden_size), float(model.expert_share(shards, self.expert_parallel)[1])
        matrices = 3.0 if model.gated_mlp else 2.0
        weights = matrices * hidden * width
        memory = touched * weights * DTYPE_BYTES[dtype] / self.gpu.memory_bandwidth
        compute = 2.0 * rows * weights / self.gpu.peak_flops(dtype)
        if PROFILE_DTYPES.get(dtype, dtype) not in self.profile.moe:
            launch, read, computed, sharpness = UNMEASURED_EXPERTS
            self.coverage.note(f"experts: {dtype} is not calibrated; {launch:g} s and {read:.0%} of bandwidth a layer")
            return launch + soft_maximum(memory / read, compute / computed, sharpness)
        fitted = self.coverage.choose(self.profile.moe, dtype, "experts")
        self.coverage.check(fitted, "experts", hidden=hidden, num_experts=float(model.num_experts))
        kernel: MoeKernel = fitted.kernel
        seconds = kernel.seconds(tokens, rows, touched, hidden, width, matrices)
        return np.maximum(seconds, np.maximum(memory, compute))

    def _small(self, tokens: FloatArray) -> FloatArray:
        """Elementwise kernels of one layer: two norms with residuals, rotary embedding, KV write, activation."""
        model, ops, tp = self.model, self.profile.small_ops, self.tensor_parallel
        hidden = float(model.hidden_size)
        rotary = float((model.heads_per_gpu(tp) + model.kv_heads_per_gpu(tp)) * model.head_dim)
        total = 2.0 * ops["norm"].seconds(hidden, 8.0 * tokens * hidden)
        total = total + ops["rope"].seconds(rotary, 4.0 * tokens * rotary) + KV_WRITE_SECONDS
        if not model.is_moe:  # fused experts have their own
            width = float(-(-model.intermediate_size // tp))
            moved = (6.0 if model.gated_mlp else 4.0) * tokens * width
            total = total + ops["activation"].seconds(width, moved)
        return self.constants.small_ops_scale * total

    def _messages(self, tokens: FloatArray) -> list[Timed]:
        """What GPUs send one another: within nodes, and across them."""
        joined, parts = self.interconnect, []
        if joined is not None and self.data_parallel > 1:
            self.coverage.note("messages between nodes of data-parallel ranks are timed as if within one")
            joined = None
        moved, num_reduced = tokens * self.model.hidden_size * self.model.dtype_bytes, self._num_all_reduces()
        across = joined is not None and joined.num_nodes > 1
        within = joined.group_gpus if joined is not None and across else self.tensor_parallel
        if within > 1:
            parts.append(Timed("all_reduce", None, num_reduced * self._all_reduce(moved, within)))
        num_sends = self.pipeline_parallel - 1 - (joined.num_crossings if joined else 0)
        if num_sends:
            parts.append(Timed("pipeline_send", None, num_sends * self._send(moved)))
        if joined is not None:
            self.coverage.note(joined.note())
            parts += self._across_nodes(joined, moved)
        return parts

    def _across_nodes(self, joined: Interconnect, moved: FloatArray) -> list[Timed]:
        parts = []
        if joined.num_nodes > 1:
            seconds = self._num_all_reduces() * joined.all_reduce(moved)
            parts.append(Timed("all_reduce_across_nodes", None, seconds))
        if joined.num_crossings:
            parts.append(Timed("pipeline_send_across_nodes", None, joined.num_crossings * joined.send(moved)))
        return parts

    def _num_all_reduces(self) -> int:
        """Two a layer; what follows the experts is part of their exchange where data-parallel ranks share them."""
        shared = self.model.num_moe_layers if self.data_parallel > 1 else 0
        return 2 * self.model.num_layers - shared

    def _exchange(self, tokens: FloatArray) -> FloatArray:
        """Tokens to the GPUs of their experts and back, one layer; `tokens` a rank.

        With whole experts, all-to-all of as many copies as a token has experts, less those that stay; with slices of
        experts, all tokens to all GPUs and their sums back. Each way a latency and the link's bandwidth.
        """
        model, gpus = self.model, self.tensor_parallel * self.data_parallel
        self.coverage.note(
            f"exchange of tokens among {gpus} GPUs is not calibrated; {UNMEASURED_LINK_SHARE:.0%} of the link"
        )
        copies = (
            tokens / self.tensor_parallel * model.experts_per_token
            if self.expert_parallel
            else tokens * self.data_parallel
        )
        moved = (gpus - 1) / gpus * copies * model.hidden_size * model.dtype_bytes
        return 2.0 * (SMALL_MESSAGE_SECONDS + moved / (UNMEASURED_LINK_SHARE * self.gpu.link_bandwidth))

    def _all_reduce(self, moved: FloatArray, world: int) -> FloatArray:
        if world in self.profile.all_reduce:
            return np.asarray(self.profile.all_reduce[world].kernel.seconds(moved))
        self.coverage.note(f"all-reduce among {world} GPUs is not calibrated; {UNMEASURED_LINK_SHARE:.0%} of the link")
        rate = UNMEASURED_LINK_SHARE * self.gpu.link_bandwidth
        return SMALL_MESSAGE_SECONDS + 2.0 * (world - 1) / world * moved / rate

    def _send(self, moved: FloatArray) -> FloatArray:
        self.coverage.note("transfers between pipeline stages are not calibrated; 10 us and the link's bandwidth")
        return SMALL_MESSAGE_SECONDS + moved / self.gpu.link_bandwidth
