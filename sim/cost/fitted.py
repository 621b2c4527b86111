"""The cost model of measured kernels: a step's time from fitted formulas, plus what the engine adds.

Per layer: matrix products, attention, experts, two all-reduces, elementwise kernels; once: LM head on the sampled rows
and the sampler. Everything that depends on a number of tokens or sequences is a table built once; attention grows with
context by linear terms and one square root. Decode steps run in CUDA graphs, so token counts are padded to graph sizes.
A step with prefill tokens leaves the full graph: it pays a time per layer, and a larger one when no graph is large
enough. Host time is hidden behind the GPU by asynchronous scheduling and is not added.

Experts are slices on every GPU or, with expert parallelism, whole ones spread over the GPUs; the fullest GPU has
`expert_skew` times the mean rows. Data-parallel ranks have sequences and prompt tokens spread evenly, and exchange
tokens before and after the experts. Not modelled: overlap of communication and computation, several pipeline stages at
work at once (a step's time is its way through all of them), the time of speculative drafting or LoRA.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from sim.cost.base import BatchShape
from sim.cost.constant import decode_contexts
from sim.cost.kernels import DecodeKernel, PrefillKernel
from sim.cost.operations import Coverage, StepOperations, Timed
from sim.cost.profile import EngineConstants, FittedProfile
from sim.errors import InputError, unknown_name
from sim.hardware import HardwareProfile
from sim.model import ModelSpec

if TYPE_CHECKING:
    from sim.interconnect import Interconnect
    from sim.units import FloatArray

_OVERRIDES = (
    *("small_ops_scale", "mixed_step_per_layer", "eager_step_per_layer", "sampler", "sampler_per_logit"),
    "max_graph_size",
)


@dataclass(frozen=True)
class FittedParameters:
    """What a user may set besides the GPU's profile; None keeps the profile's or the model's own value."""

    profile: str | None = None  # name or path of another fitted profile
    engine: str = "vllm-0.15"  # whose constants in the profile
    top_p: bool | None = None  # requests are sampled with top_p or top_k
    cuda_graphs: bool = True
    max_graph_size: int | None = None  # tokens of the largest graph
    small_ops_scale: float | None = None
    mixed_step_per_layer: float | None = None
    eager_step_per_layer: float | None = None
    sampler: float | None = None
    sampler_per_logit: float | None = None
    expert_skew: float = 1.0  # with expert_parallel: rows of the fullest GPU over their mean

    def constants(self, profile: FittedProfile) -> EngineConstants:
        """The engine's constants with the user's values put in."""
        if self.engine not in profile.engines:
            raise unknown_name("engine of the fitted profile", self.engine, profile.engines)
        given = {name: getattr(self, name) for name in _OVERRIDES if getattr(self, name) is not None}
        for name, value in given.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise InputError(f"cost_model.{name} must be a number >= 0 (got {value!r})")
        return replace(profile.engines[self.engine], **given)


@dataclass(frozen=True)
class _Tables:
    """Seconds by count, as lists for the scalar path; index 0 is an empty batch."""

    decode: list[float]  # a pure decode step, what grows with context apart
    mixed: list[float]  # by tokens: a step with prefill tokens, attention kernels' times by context apart
    rows: list[float]  # by sequences: LM head and sampler
    floor: list[float]  # by decodes: attention's floor, where it is a sum
    offset: list[float]  # by decodes: (floor / slope)^2 in tokens^2, where it is a root


class FittedCost:
    """Seconds of a step from a fitted profile, for one model on one GPU type and parallelism."""

    def __init__(
        self,
        model: ModelSpec,
        gpu: HardwareProfile,
        profile: FittedProfile,
        *,
        tensor_parallel: int = 1,
        pipeline_parallel: int = 1,
        max_num_seqs: int = 256,
        num_rows: int = 8192 + 256,
        kv_dtype: str | None = None,
        data_parallel: int = 1,
        expert_parallel: bool = False,
        parameters: FittedParameters | None = None,
        interconnect: Interconnect | None = None,
    ) -> None:
        parameters = parameters or FittedParameters()
        if not parameters.expert_skew >= 1.0:
            raise InputError(f"cost_model.expert_skew must be at least 1 (got {parameters.expert_skew!r})")
        model.stage_layers(pipeline_parallel)
        self.model, self.constants = model, parameters.constants(profile)
        largest = min(self.constants.max_graph_size, 2 * max_num_seqs)
        self.max_graph_size = (parameters.max_graph_size or largest) if parameters.cuda_graphs else 0
        self._coverage = Coverage()
        sampled = bool(model.default_top_p) if parameters.top_p is None else parameters.top_p
        self._operations = StepOperations(
            *(model, gpu, profile, self.constants, tensor_parallel, pipeline_parallel, sampled, self._coverage),
            interconnect=interconnect,
            data_parallel=data_parallel,
            expert_parallel=expert_parallel,
            expert_skew=parameters.expert_skew,
        )
        self._ranks = float(data_parallel)
        self._window = float(model.sliding_window or 0) if model.num_sliding_layers else 0.0
        self._set_attention(profile, tensor_parallel, kv_dtype or model.dtype)
        self._num_rows = self._num_contexts = 0
        self._grow(num_rows)
        self._grow_contexts(min(model.max_position or 8192, 32768))

    def step_time(self, shape: BatchShape) -> float:
        num_tokens, num_prefills, pairs, prefill_context, num_decodes, context, longest, num_drafts, _ = shape
        if num_tokens + num_decodes + num_drafts >= self._num_rows:
            self._grow(num_tokens + num_decodes + num_drafts)
        if longest >= self._num_contexts:
            self._grow_contexts(longest)
        tables = self._tables
        if num_drafts:
            return self._verify_time(shape)
        if num_tokens == 0:
            return self._reading(num_decodes, context) + self._serial[longest] + tables.decode[num_decodes]
        time = tables.mixed[num_tokens + num_decodes] + tables.rows[num_prefills + num_decodes]
        if num_decodes:
            time += self._reading(num_decodes, context) + self._serial[longest] + tables.floor[num_decodes]
        return time + self._prefill(num_tokens, num_prefills, pairs, prefill_context, longest)

    def decode_times(self, num_sequences: int, context: int, max_context: int, num_steps: int) -> FloatArray:
        if num_sequences >= self._num_rows:
            self._grow(num_sequences)
        if max_context + num_steps > self._num_contexts:
            self._grow_contexts(max_context + num_steps)
        times = decode_contexts(num_sequences, context, num_steps)
        if self._window:
            near = np.minimum(times, self._window * num_sequences)
            self._read_all(near, num_sequences, self._near_slope)
            self._read_all(times, num_sequences, self._slope)
            times += near
        else:
            self._read_all(times, num_sequences, self._slope)
        times += self._serial_array[max_context : max_context + num_steps]
        times += self._tables.decode[num_sequences]
        return times

    def breakdown(self, shape: BatchShape) -> dict[str, dict[str, float | str]]:
        """Seconds, FLOPs and bytes by operation (0 where unknown); the seconds add up to `step_time`."""
        decoded = shape.num_decode_sequences + shape.num_draft_tokens
        tokens, rows = (
            self._of_a_rank(np.array([float(shape.num_prefill_tokens + decoded)])),
            self._of_a_rank(np.array([float(shape.num_prefill_sequences + decoded)])),
        )
        timed = [(part, tokens) for part in self._operations.by_tokens(self._padded(tokens))]
        timed += [(part, rows) for part in self._operations.by_rows(rows)]
        result = {part.name: _entry(part, amount) for part, amount in timed}
        result["attention"] = _known(self._attention_seconds(shape))
        if shape.num_prefill_tokens:
            result["outside_full_graph"] = _known(float(self._mixed_extra(tokens)[0]))
        return result

    def extrapolation(self) -> list[str]:
        """Sentences about what lies outside the shapes that the profile was fitted on; empty when nothing does."""
        return list(self._coverage.notes)

    def _reading(self, num_decodes: int, context: int) -> float:
        """Seconds that all layers read the cache of the decodes."""
        full = self._read_one(float(context), num_decodes, self._slope)
        if not self._window:
            return full
        near = min(float(context), self._window * num_decodes)
        return full + self._read_one(near, num_decodes, self._near_slope)

    def _verify_time(self, shape: BatchShape) -> float:
        """A step whose decodes verify drafts: every draft is a row of the matrix products and of the LM head."""
        num_tokens, num_prefills, pairs, prefill_context, num_decodes, _, longest, num_drafts, _ = shape
        tables, num_rows = self._tables, num_decodes + num_drafts
        time = self._verifying(shape) + self._serial[longest] + tables.floor[num_decodes]
        if num_tokens == 0:
            return time + tables.decode[num_rows] - tables.floor[num_rows]
        time += tables.mixed[num_tokens + num_rows] + tables.rows[num_prefills + num_rows]
        return time + self._prefill(num_tokens, num_prefills, pairs, prefill_context, longest)

    def _verifying(self, shape: BatchShape) -> float:
        """Seconds in which all layers read the cache of the decodes, or compute all pairs if that takes longer."""
        reading = self._reading(shape.num_decode_sequences, shape.decode_context)
        if not shape.num_draft_tokens:
            return reading
        pairs, rows = (
            float(shape.decode_context + shape.draft_pairs),
            shape.num_decode_sequences + shape.num_draft_tokens,
        )
        near = min(pairs, self._window * rows) * self.model.num_sliding_layers
        return max(reading, (pairs * self.model.num_full_layers + near) * self._per_pair)

    def _read_one(self, context: float, num_decodes: int, slope: float) -> float:
        if self._root:
            return math.sqrt(context * context + self._tables.offset[num_decodes]) * slope
        return context * slope

    def _read_all(self, contexts: FloatArray, num_decodes: int, slope: float) -> None:
        """`_read_one` of an array, in place and with the same bits."""
        if self._root:
            contexts *= contexts
            contexts += self._tables.offset[num_decodes]
            np.sqrt(contexts, out=contexts)
        contexts *= slope

    def _prefill(self, num_tokens: int, num_prefills: int, pairs: int, context: int, longest: int) -> float:
        """Seconds of prefill attention in all layers, its launches apart."""
        prefix = context - num_tokens
        time = (pairs * self._per_pair + prefix * self._per_prefix) * self.model.num_full_layers
        if self._window:
            near_pairs = min(float(pairs), num_tokens * self._window)
            near_prefix = min(float(prefix), num_prefills * self._window)
            time += (near_pairs * self._per_pair + near_prefix * self._per_prefix) * self.model.num_sliding_layers
        time += num_tokens * self._per_new_token + num_prefills * self._per_prefill
        return time + min(longest, context) * self._per_chunk_token

    def _attention_seconds(self, shape: BatchShape) -> float:
        num_tokens, num_prefills, pairs, prefill_context, num_decodes, _, longest, *_ = shape
        launch = self._prefill_kernel.launch if num_tokens else self._decode_kernel.launch
        total = self.model.num_layers * launch
        if num_decodes:
            total += self._verifying(shape) + self._serial[longest] + self._tables.floor[num_decodes]
        if num_tokens:
            total += self._prefill(num_tokens, num_prefills, pairs, prefill_context, longest)
        return total

    def _set_attention(self, profile: FittedProfile, tensor_parallel: int, kv_dtype: str) -> None:
        """Choose the attention kernels and turn prefill's coefficients into seconds per pair, token and sequence."""
        model, layers = self.model, self.model.num_layers
        heads, kv_heads = float(model.heads_per_gpu(tensor_parallel)), float(model.kv_heads_per_gpu(tensor_parallel))
        cached, dim = float(model.head_dim), float(model.head_dim)
        if model.mla_kv_lora_rank is not None:
            self._coverage.note("latent attention is not calibrated; read as one key-value head of its latent")
            kv_heads, cached = 1.0, (model.mla_kv_lora_rank + model.mla_qk_rope_head_dim) / 2.0
            dim = (model.head_dim + model.mla_v_head_dim) / 2.0
        decode = self._coverage.choose(profile.decode_attention, kv_dtype, "decode attention")
        prefill = self._coverage.choose_prefill(profile.prefill_attention, kv_dtype)
        for fitted, name in ((decode, "decode attention"), (prefill, "prefill attention")):
            self._coverage.check(fitted, name, heads=heads, kv_heads=kv_heads, head_dim=float(model.head_dim))
        self._decode_fitted, self._heads = decode, (heads, kv_heads)
        self._decode_kernel: DecodeKernel = decode.kernel
        self._prefill_kernel: PrefillKernel = prefill.kernel
        self._root = bool(decode.kernel.root)
        self._layer_slope = float(decode.kernel.per_context_token(kv_heads, cached)) / self._ranks
        self._slope = self._layer_slope * model.num_full_layers
        self._near_slope = self._layer_slope * model.num_sliding_layers
        self._per_pair = float(self._prefill_kernel.per_pair(heads, dim)) / self._ranks
        self._per_prefix = float(self._prefill_kernel.per_prefix) * kv_heads * cached / self._ranks
        self._per_new_token = float(self._prefill_kernel.per_new_token(heads, kv_heads, dim)) * layers / self._ranks
        self._per_prefill = float(self._prefill_kernel.per_sequence_head) * heads * layers / self._ranks
        self._per_chunk_token = float(self._prefill_kernel.per_token) * layers

    def _grow(self, num_rows: int) -> None:
        """Tabulate everything that depends on a count, up to at least `num_rows`."""
        self._num_rows = max(num_rows + 1, 2 * self._num_rows)
        counts = self._of_a_rank(np.maximum(np.arange(self._num_rows, dtype=np.float64), 1.0))
        padded = self._padded(counts)
        work, rows = _total(self._operations.by_tokens(padded)), _total(self._operations.by_rows(counts))
        layers, floor = self.model.num_layers, self._decode_kernel.floor(counts, *self._heads)
        added = np.zeros(self._num_rows) if self._root else layers * floor
        decode = work + rows + layers * self._decode_kernel.launch + added
        mixed = work + self._mixed_extra(counts) + layers * self._prefill_kernel.launch
        for table in (decode, rows, added):
            table[0] = 0.0
        offset = (floor / self._layer_slope) ** 2
        offset[0] = 0.0
        self._tables = _Tables(*(table.tolist() for table in (decode, mixed, rows, added, offset)))

    def _grow_contexts(self, longest: int) -> None:
        """Tabulate what the longest context adds, up to at least `longest` tokens."""
        self._num_contexts = max(longest + 1, 2 * self._num_contexts)
        lengths = np.arange(self._num_contexts, dtype=np.float64)
        total = self.model.num_full_layers * self._decode_kernel.serial(lengths)
        if self._window:
            near = self._decode_kernel.serial(np.minimum(lengths, self._window))
            total += self.model.num_sliding_layers * near
        self._serial_array = total
        self._serial: list[float] = total.tolist()
        self._coverage.check(self._decode_fitted, "decode attention", context=float(max(longest, 1)))

    def _of_a_rank(self, counts: FloatArray) -> FloatArray:
        """What the fullest data-parallel rank has of these tokens or sequences, spread as evenly as can be."""
        return np.asarray(np.ceil(counts / self._ranks))

    def _padded(self, tokens: FloatArray) -> FloatArray:
        """Token counts rounded up to the next CUDA graph (1, 2, 4, 8, then steps of 8, of 16 above 256)."""
        sizes = np.where(tokens <= 256, np.ceil(tokens / 8) * 8, np.ceil(tokens / 16) * 16)
        for size in (4.0, 2.0, 1.0):
            sizes = np.where(tokens <= size, size, sizes)
        return np.where(sizes <= self.max_graph_size, sizes, tokens)

    def _mixed_extra(self, tokens: FloatArray) -> FloatArray:
        """What a step with prefill tokens pays for leaving the full graph."""
        per_layer = (self.constants.mixed_step_per_layer, self.constants.eager_step_per_layer)
        return self.model.num_layers * np.where(tokens <= self.max_graph_size, *per_layer)


def _total(parts: list[Timed]) -> FloatArray:
    total = np.zeros_like(parts[0].seconds)
    for part in parts:
        total += part.seconds
    return total


def _entry(part: Timed, amount: FloatArray) -> dict[str, float | str]:
    if part.work is None:
        return _known(float(part.seconds[0]))
    flops, moved = (part.work.count * float(value[0]) for value in (part.work.flops(amount), part.work.bytes(amount)))
    return {"seconds": float(part.seconds[0]), "flops": flops, "bytes": moved, "bound": "measured"}


def _known(seconds: float) -> dict[str, float | str]:
    return {"seconds": seconds, "flops": 0.0, "bytes": 0.0, "bound": "measured"}
