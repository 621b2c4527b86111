"""What a step has to do: FLOPs and bytes of every operation of a transformer step on one GPU.

Shared by the cost models that start from physics (roofline, fitted). An operation's work is linear in the number of
tokens, apart from the experts of a mixture-of-experts layer, of which a step reads those that some token chose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sim.hardware import DTYPE_BYTES
from sim.model import Gemm, ModelSpec

if TYPE_CHECKING:
    from sim.interconnect import Interconnect
    from sim.units import FloatArray

ACTIVATION_BYTES = 2.0  # outputs of matrix products are 16 bit whatever the weights are


@dataclass(frozen=True)
class Work:
    """One kind of operation of a step, done `count` times, each time over T tokens (or T sampled rows).

    `kind`: gemm, moe, elementwise, all_reduce or send, the latter two also with `_across_nodes`. FLOPs and bytes are
    those of one of the `count` times.
    """

    name: str
    kind: str
    count: int
    flops_per_token: float = 0.0
    fixed_bytes: float = 0.0
    bytes_per_token: float = 0.0
    num_experts: int = 0
    experts_per_token: int = 0
    expert_bytes: float = 0.0  # of one expert, read when some token chose it
    dtype: str = "bf16"

    def flops(self, tokens: FloatArray) -> FloatArray:
        """FLOPs over `tokens` tokens."""
        return self.flops_per_token * tokens

    def bytes(self, tokens: FloatArray) -> FloatArray:
        """Bytes moved over `tokens` tokens: device memory, or the link for all_reduce and send."""
        total = self.fixed_bytes + self.bytes_per_token * tokens
        if self.num_experts:
            total = total + self.expert_bytes * touched_experts(self.num_experts, self.experts_per_token, tokens)
        return total


@dataclass(frozen=True)
class AttentionWork:
    """Attention of one layer on one GPU: per query-key pair, and per token of context that is read."""

    decode_flops_per_pair: float
    prefill_flops_per_pair: float
    bytes_per_context_token: float


def touched_experts(num_experts: int, experts_per_token: int, tokens: FloatArray) -> FloatArray:
    """Expected number of distinct experts that `tokens` tokens choose, each uniformly without replacement."""
    return num_experts * (1.0 - np.power(1.0 - experts_per_token / num_experts, tokens))


def token_work(
    model: ModelSpec, tensor_parallel: int, pipeline_parallel: int, interconnect: Interconnect | None = None
) -> list[Work]:
    """Work that depends on the number of tokens of a step, all layers and stages.

    `interconnect`: of a replica that spans several nodes.
    """
    work = [_gemm(gemm, model.num_layers, model) for gemm in model.attention_gemms(tensor_parallel)]
    num_dense = model.num_layers - model.num_moe_layers
    if num_dense:
        work += [_gemm(gemm, num_dense, model) for gemm in model.mlp_gemms(tensor_parallel)]
    if model.is_moe:
        work += _moe(model, tensor_parallel)
    work.append(_elementwise(model, tensor_parallel))
    return work + _messages(model, tensor_parallel, pipeline_parallel, interconnect)


def _messages(
    model: ModelSpec, tensor_parallel: int, pipeline_parallel: int, interconnect: Interconnect | None
) -> list[Work]:
    """What GPUs send one another: within nodes, and across them."""
    width = model.hidden_size * model.dtype_bytes
    across = interconnect.num_nodes > 1 if interconnect else False
    crossings = interconnect.num_crossings if interconnect else 0
    within = interconnect.group_gpus if interconnect and across else tensor_parallel
    work = []
    if within > 1:
        work.append(_all_reduce(model, within))
    if across:
        work.append(
            Work("all_reduce_across_nodes", "all_reduce_across_nodes", 2 * model.num_layers, bytes_per_token=width)
        )
    if pipeline_parallel - 1 > crossings:
        work.append(Work("pipeline_send", "send", pipeline_parallel - 1 - crossings, bytes_per_token=width))
    if crossings:
        work.append(Work("pipeline_send_across_nodes", "send_across_nodes", crossings, bytes_per_token=width))
    return work


def row_work(model: ModelSpec, tensor_parallel: int) -> list[Work]:
    """Work that depends on the number of rows that are sampled: the LM head."""
    return [_gemm(model.lm_head_gemm(tensor_parallel), 1, model)]


def attention_work(model: ModelSpec, tensor_parallel: int, kv_dtype: str | None = None) -> AttentionWork:
    """Attention of one layer. Latent attention decodes on the latent itself and prefills on expanded heads."""
    heads = model.heads_per_gpu(tensor_parallel)
    read = model.layer_kv_bytes(tensor_parallel, kv_dtype)
    if model.mla_kv_lora_rank is None:
        flops = 4.0 * heads * model.head_dim
        return AttentionWork(flops, flops, read)
    latent, rope = model.mla_kv_lora_rank, model.mla_qk_rope_head_dim
    expanded = model.mla_qk_nope_head_dim + rope + model.mla_v_head_dim
    return AttentionWork(2.0 * heads * (2 * latent + rope), 2.0 * heads * expanded, read)


def _gemm(gemm: Gemm, count: int, model: ModelSpec) -> Work:
    size = DTYPE_BYTES[gemm.dtype]
    input_bytes = size if gemm.dtype in ("fp8", "int8") else model.dtype_bytes
    return Work(
        gemm.name,
        "gemm",
        count,
        flops_per_token=2.0 * gemm.n * gemm.k,
        fixed_bytes=size * gemm.n * gemm.k,
        bytes_per_token=input_bytes * gemm.k + ACTIVATION_BYTES * gemm.n,
        dtype=gemm.dtype,
    )


def _moe(model: ModelSpec, tensor_parallel: int) -> list[Work]:
    layers, chosen = model.num_moe_layers, model.experts_per_token
    parameters = model.expert_parameters(tensor_parallel)
    width = -(-model.moe_intermediate_size // tensor_parallel)
    experts = Work(
        "experts",
        "moe",
        layers,
        flops_per_token=2.0 * chosen * parameters,
        bytes_per_token=ACTIVATION_BYTES * chosen * (2 * model.hidden_size + 3 * width),
        num_experts=model.num_experts,
        experts_per_token=chosen,
        expert_bytes=parameters * DTYPE_BYTES[model.expert_dtype],
        dtype=model.expert_dtype,
    )
    shared = [_gemm(gemm, layers, model) for gemm in model.shared_expert_gemms(tensor_parallel)]
    return [_gemm(model.router_gemm(), layers, model), experts, *shared]


def _elementwise(model: ModelSpec, tensor_parallel: int) -> Work:
    """Two norms with residuals, rotary embedding with the KV write, the MLP's activation function."""
    heads = model.heads_per_gpu(tensor_parallel) + 2 * model.kv_heads_per_gpu(tensor_parallel)
    width = model.moe_intermediate_size * model.experts_per_token if model.is_moe else model.intermediate_size
    elements = 8 * model.hidden_size + 3 * heads * model.head_dim + 3 * -(-width // tensor_parallel)
    return Work("elementwise", "elementwise", model.num_layers, bytes_per_token=model.dtype_bytes * elements)


def _all_reduce(model: ModelSpec, tensor_parallel: int) -> Work:
    sent = 2.0 * (tensor_parallel - 1) / tensor_parallel * model.hidden_size * model.dtype_bytes
    return Work("all_reduce", "all_reduce", 2 * model.num_layers, bytes_per_token=sent)
