"""Where the memory of a GPU goes, and how many KV blocks are left.

    kv bytes = ceil(total * gpu_memory_utilization) - weights - activations - runtime - communication

The last three are not facts of a data sheet. Their constants reproduce the KV block counts that vLLM 0.15 reported on
H100 servers (Llama-2-7B/70B, Llama-3.1-70B, CodeLlama-34B, Mixtral 8x7B, Mistral-Nemo, Qwen2.5-7B, 1 to 4 GPUs;
inference-sim/training and sim-to-real-accuracy-validation) within 1 %; vLLM 0.19 on an
RTX 4090 had 0.9 GB (20 % of its blocks) more, because newer samplers need less. Not modelled: vision encoders (their
profiling run takes several GB more), CUDA graphs of other engines, LoRA slots, window groups of hybrid models.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sim.errors import InputError
from sim.hardware import HardwareProfile
from sim.model import ModelSpec

RUNTIME_BYTES = 0.65e9  # CUDA context, kernels, captured graphs, workspace
COMMUNICATION_BYTES = 0.5e9  # buffers of collectives, with more than one GPU
SAMPLER_BYTES_PER_LOGIT = 45.0  # logits in float32, their sorted copy with indices, probabilities
HIDDEN_BUFFERS = 4  # activations of hidden size alive at the peak, per token
MLP_BUFFERS = 3  # activations of MLP width alive at the peak, per token


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
    num_blocks: int  # the engine's count, its reserved null block included

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
) -> MemoryPlan:
    """Memory of one GPU of a replica of `model`.

    Raises `InputError` with the arithmetic when the weights leave no block, or (with `max_model_len`) when one sequence
    of that length does not fit: engines refuse to start then, and so does the simulator.
    """
    if not 0 < gpu_memory_utilization <= 1:
        raise InputError(f"gpu_memory_utilization must lie in (0, 1] (got {gpu_memory_utilization})")
    if block_size < 1:
        raise InputError(f"block_size must be at least 1 token (got {block_size})")
    requested = math.ceil(gpu.memory_bytes * gpu_memory_utilization)
    weights = model.weight_bytes(tensor_parallel, pipeline_parallel)
    activations = activation_bytes(model, tensor_parallel, max_num_seqs, max_num_batched_tokens)
    communication = COMMUNICATION_BYTES if tensor_parallel * pipeline_parallel > 1 else 0.0
    kv = math.floor(requested - weights - activations - RUNTIME_BYTES - communication)
    block_bytes = block_size * model.kv_bytes_per_token(tensor_parallel, pipeline_parallel, kv_dtype)
    plan = MemoryPlan(
        total_bytes=round(gpu.memory_bytes),
        requested_bytes=requested,
        weight_bytes=weights,
        activation_bytes=round(activations),
        runtime_bytes=round(RUNTIME_BYTES),
        communication_bytes=round(communication),
        kv_bytes=kv,
        block_bytes=block_bytes,
        block_size=block_size,
        num_blocks=max(0, kv // block_bytes),
    )
    _check_fits(plan, model, gpu, tensor_parallel * pipeline_parallel)
    if max_model_len is not None:
        check_longest_sequence(plan, max_model_len)
    return plan


def activation_bytes(model: ModelSpec, tensor_parallel: int, max_num_seqs: int, max_num_batched_tokens: int) -> float:
    """Peak bytes of activations of one step: the larger of the layers' and the sampler's."""
    widths = HIDDEN_BUFFERS * model.hidden_size
    if model.is_moe:
        copies = model.experts_per_token
        widths += copies * (MLP_BUFFERS * -(-model.moe_intermediate_size // tensor_parallel) + model.hidden_size)
    else:
        widths += MLP_BUFFERS * -(-model.intermediate_size // tensor_parallel)
    rows = min(max_num_seqs, max_num_batched_tokens)
    sampler = rows * model.vocab_size * SAMPLER_BYTES_PER_LOGIT
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
