"""Electric power and energy of replicas, from what their steps did: bytes read and FLOPs computed while busy.

    watts of a busy GPU = tdp * min(1, 0.289 + 0.718 * share of memory bandwidth + 1.168 * share of peak FLOP/s)

The three numbers are a least-squares fit to the average power of 36 batches on A100 80 GB (Llama-2-70B on 2, 4, 8 GPUs,
BLOOM-176B on 8; splitwise-sim's measured table, prompts of up to 2048 tokens): mean absolute error 2.1 %, largest
7.7 %. For other GPUs they are an assumption. An idle GPU takes `IDLE_SHARE` of tdp. Not counted: hosts, network,
cooling, drafters of speculation. Over a run, weights are read once a step and the blocks in use once a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sim.cost.work import touched_experts
from sim.hardware import DTYPE_BYTES, HardwareProfile, load_gpu
from sim.model import ModelSpec, load_model

if TYPE_CHECKING:
    from sim.config import PoolConfig
    from sim.result import ReplicaResult

BUSY_SHARE = 0.289  # of tdp, with kernels running that move and compute nothing
BANDWIDTH_SHARE = 0.718
COMPUTE_SHARE = 1.168
IDLE_SHARE = 0.15  # general knowledge: idle boards read 50 to 100 W
JOULES_PER_KWH = 3.6e6


def busy_watts(gpu: HardwareProfile, bandwidth_share: float, compute_share: float) -> float:
    """Watts of a GPU that uses these shares of its memory bandwidth and its 16-bit FLOP/s."""
    load = BUSY_SHARE + BANDWIDTH_SHARE * min(bandwidth_share, 1.0) + COMPUTE_SHARE * min(compute_share, 1.0)
    return gpu.require("tdp") * min(1.0, load)


def replica_kwh(replica: ReplicaResult, pool: PoolConfig, end_time: float) -> float | None:
    """kWh of all GPUs of a replica until `end_time` (seconds); None where its GPU's power or rates are unknown."""
    gpu = load_gpu(pool.gpu)
    if any(gpu.get(fact) is None for fact in ("tdp", "memory_bandwidth", "bf16_flops")):
        return None
    busy = float(replica.busy_time)
    joules = IDLE_SHARE * gpu.require("tdp") * (end_time - busy)
    if busy > 0:
        moved, computed = _work(replica, pool, load_model(pool.model))
        rate = busy * gpu.memory_bandwidth
        joules += busy * busy_watts(gpu, moved / rate, computed / (busy * gpu.peak_flops("bf16")))
    return replica.num_gpus * joules / JOULES_PER_KWH


def _work(replica: ReplicaResult, pool: PoolConfig, model: ModelSpec) -> tuple[float, float]:
    """Bytes read and FLOPs computed by one GPU over the run."""
    stages, tensor, ranks = pool.pipeline_parallel, pool.tensor_parallel, pool.data_parallel
    weights = model.weight_bytes(tensor, stages, ranks, pool.expert_parallel)
    weights_read = weights - _idle_expert_bytes(replica, model, replica.num_gpus)
    block = replica.block_size * model.kv_bytes_per_token(tensor, stages, pool.kv_cache.dtype)
    mean_blocks = replica.used_block_seconds / replica.busy_time / ranks
    moved = replica.num_steps * (weights_read + mean_blocks * block)
    return moved, 2.0 * model.num_active_parameters / replica.num_gpus * replica.num_tokens


def _idle_expert_bytes(replica: ReplicaResult, model: ModelSpec, num_gpus: int) -> float:
    """Bytes of the experts that a step of mean size does not choose."""
    if not model.is_moe:
        return 0.0
    tokens = np.array([replica.num_tokens / max(replica.num_steps, 1)])
    touched = float(touched_experts(model.num_experts, model.experts_per_token, tokens)[0])
    expert = model.expert_parameters() * DTYPE_BYTES[model.expert_dtype] / num_gpus
    return (model.num_experts - touched) * expert * model.num_moe_layers
