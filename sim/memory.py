"""Where the memory of a GPU goes, and how many KV blocks are left.

    kv bytes = ceil(total * gpu_memory_utilization) - weights - activations - runtime - communication

Weights include the table of rotary positions (one row a position that the model allows) and a vision tower. What the
engine takes besides depends on its version: `ENGINE_MEMORY`. Those constants come from start-up logs of vLLM on H100
(0.15 and 0.16: llm-d-benchmark's empirical-vllm-memory-results.md and llm-d-planner's accuracy report; 0.19: the same
report and its logs) and from the KV block counts of measured servers (inference-sim/training,
sim-to-real-accuracy-validation, vLLM 0.15.1). `servesim validate` lists predicted beside measured counts. Not modelled:
CUDA graphs of other engines, LoRA slots, window groups of hybrid models, 4-bit weights that are repacked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from sim.errors import InputError, unknown_name
from sim.hardware import HardwareProfile
from sim.model import ModelSpec

HIDDEN_BUFFERS = 4  # activations of hidden size alive at the peak, per token
MLP_BUFFERS = 3  # activations of MLP width alive at the peak, per token
DEFAULT_ENGINE_MEMORY = "vllm-0.15"


@dataclass(frozen=True)
class EngineMemory:
    """What a version of an engine takes on each GPU besides weights and layers. Bytes."""

    runtime: float  # CUDA context growth, kernels, workspaces
    communication: float  # buffers of collectives, with more than one GPU
    sampler_per_logit: float  # logits, and what sorting and normalising them takes


ENGINE_MEMORY: Mapping[str, EngineMemory] = {
    # 0.11 to 0.16: logits in float32, sorted copies with 64-bit indices, probabilities.
    "vllm-0.15": EngineMemory(runtime=0.30e9, communication=0.37e9, sampler_per_logit=38.3),
    # 0.17 to 0.19: a sampler that sorts nothing; collectives with preallocated buffers.
    "vllm-0.19": EngineMemory(runtime=0.27e9, communication=1.95e9, sampler_per_logit=14.9),
}


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes on the fullest GPU of a replica, and the blocks that remain. All sizes in bytes."""

    total_bytes: int
    requested_bytes: int  # what gpu_memory_utilization allows
    weight_bytes: int
    activation_bytes: int
    runtime_bytes: int
    communication_bytes: int
    kv_bytes: int
    block_bytes: int
    block_size: int  # tokens
    num_blocks: int  # the engine's count, its reserved null block included; of all data-parallel ranks

    @property
    def num_tokens(self) -> int:
        """Tokens that fit in the usable blocks."""
        return (self.num_blocks - 1) * self.block_size

    def lines(self) -> list[str]:
        """The plan as lines for people, in GB (1e9 bytes)."""
        parts = (
            ("memory of the GPU", self.total_bytes),
            ("allowed by gpu_memory_utilization", self.requested_bytes),
            ("weights", self.weight_bytes),
            ("activations", self.activation_bytes),
            ("runtime", self.runtime_bytes),
            ("communication", self.communication_bytes),
            ("left for KV", self.kv_bytes),
        )
        sizes = [f"{label}: {size / 1e9:.2f} GB" for label, size in parts]
        return [*sizes, f"blocks of {self.block_size} tokens ({self.block_bytes} B): {self.num_blocks}"]


def plan_memory(
    model: ModelSpec,
    gpu: HardwareProfile,
    *,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    block_size: int = 16,
    gpu_memory_utilization: float = 0.9,
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 8192,
    max_model_len: int | None = None,
    kv_dtype: str | None = None,
    engine: str = DEFAULT_ENGINE_MEMORY,
    data_parallel: int = 1,
    expert_parallel: bool = False,
) -> MemoryPlan:
    """Memory of one GPU of a replica of `model` under a version of an engine (a key of `ENGINE_MEMORY`).

    `data_parallel` ranks share the sequences of a step evenly and keep their blocks; all ranks' blocks are counted.

    Raises `InputError` with the arithmetic when the weights leave no block, or (with `max_model_len`) when one sequence
    of that length does not fit: engines refuse to start then, and so does the simulator.
    """
    _check_settings(gpu_memory_utilization, block_size)
    taken = engine_memory(engine)
    requested = math.ceil(gpu.memory_bytes * gpu_memory_utilization)
    weights = model.weight_bytes(tensor_parallel, pipeline_parallel, data_parallel, expert_parallel)
    weights += unsharded_bytes(model)
    share = (-(-max_num_seqs // data_parallel), -(-max_num_batched_tokens // data_parallel))
    activations = activation_bytes(model, tensor_parallel, *share, taken)
    num_gpus = tensor_parallel * pipeline_parallel * data_parallel
    communication = taken.communication if num_gpus > 1 else 0.0
    kv = math.floor(requested - weights - activations - taken.runtime - communication)
    block_bytes = block_size * model.kv_bytes_per_token(tensor_parallel, pipeline_parallel, kv_dtype)
    plan = MemoryPlan(
        total_bytes=round(gpu.memory_bytes),
        requested_bytes=requested,
        weight_bytes=weights,
        activation_bytes=round(activations),
        runtime_bytes=round(taken.runtime),
        communication_bytes=round(communication),
        kv_bytes=kv,
        block_bytes=block_bytes,
        block_size=block_size,
        num_blocks=max(0, kv // block_bytes) * data_parallel,
    )
    _check_fits(plan, model, gpu, num_gpus)
    if max_model_len is not None:
        check_longest_sequence(plan, max_model_len)
    return plan


def _check_settings(gpu_memory_utilization: float, block_size: int) -> None:
    if not 0 < gpu_memory_utilization <= 1:
        raise InputError(f"gpu_memory_utilization must lie in (0, 1] (got {gpu_memory_utilization})")
    if block_size < 1:
        raise InputError(f"block_size must be at least 1 token (got {block_size})")


def engine_memory(name: str) -> EngineMemory:
    """What engine version `name` takes; `InputError` for an unknown one."""
    if name not in ENGINE_MEMORY:
        raise unknown_name("memory of engine", name, ENGINE_MEMORY)
    return ENGINE_MEMORY[name]


def unsharded_bytes(model: ModelSpec) -> int:
    """Bytes that every GPU of a replica holds whole: sine and cosine of every position that the model allows.

    vLLM builds that table for the model's own maximum, whatever max_model_len is. Models with learned positions or
    none have no such table, but their maximum is so small (2048) that it makes no difference.
    """
    width = model.mla_qk_rope_head_dim if model.is_mla else model.head_dim
    return round((model.max_position or 0) * width * model.dtype_bytes)


def activation_bytes(
    model: ModelSpec,
    tensor_parallel: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    engine: EngineMemory,
) -> float:
    """Peak bytes of activations of one step: the larger of the layers' and the sampler's.

    While the sampler works, the last hidden states and the workspace of the experts' products are still held.
    """
    widths = HIDDEN_BUFFERS * model.hidden_size
    workspace = 0
    if model.is_moe:
        width = -(-model.moe_intermediate_size // tensor_parallel)
        widths += model.experts_per_token * (MLP_BUFFERS * width + model.hidden_size)
        workspace = model.experts_per_token * (max(2 * width, model.hidden_size) + max(width, model.hidden_size))
    else:
        widths += MLP_BUFFERS * -(-model.intermediate_size // tensor_parallel)
    rows = min(max_num_seqs, max_num_batched_tokens)
    held = max_num_batched_tokens * (model.hidden_size + workspace) * model.dtype_bytes
    sampler = rows * model.vocab_size * engine.sampler_per_logit + held
    return max(max_num_batched_tokens * widths * model.dtype_bytes, sampler)


def check_longest_sequence(plan: MemoryPlan, max_model_len: int) -> None:
    """Raise `InputError` unless one sequence of `max_model_len` tokens fits in the usable blocks."""
    needed = -(-max_model_len // plan.block_size)
    if needed > plan.num_blocks - 1:
        raise InputError(
            f"a sequence of max_model_len {max_model_len} needs {needed} blocks of {plan.block_size} tokens, but only "
            f"{plan.num_blocks - 1} are usable; lower max_model_len to {max(0, plan.num_tokens)} or less, use more "
            "GPUs, or raise gpu_memory_utilization"
        )


def _check_fits(plan: MemoryPlan, model: ModelSpec, gpu: HardwareProfile, num_gpus: int) -> None:
    if plan.num_blocks >= 2:
        return
    spent = (plan.weight_bytes, plan.activation_bytes, plan.runtime_bytes + plan.communication_bytes)
    weights, activations, overhead = (f"{size / 1e9:.2f}" for size in spent)
    raise InputError(
        f"model '{model.name}' does not fit on {num_gpus} x {gpu.name}: {plan.requested_bytes / 1e9:.2f} GB allowed - "
        f"{weights} weights - {activations} activations - {overhead} runtime = {plan.kv_bytes / 1e9:.2f} GB for KV, "
        f"less than two blocks of {plan.block_bytes / 1e9:.4f} GB; use more GPUs (tensor_parallel), a larger GPU or "
        "quantised weights"
    )
