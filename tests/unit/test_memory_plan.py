"""Memory plan: measured block counts, the arithmetic of the parts, and refusals that show it."""

from __future__ import annotations

import pytest

from sim.errors import InputError
from sim.hardware import load_gpu
from sim.memory import plan_memory, unsharded_bytes
from sim.model import load_model

# KV blocks of 16 tokens that vLLM 0.15 reported on H100 SXM at gpu_memory_utilization 0.9 and max_num_seqs 128
# (inference-sim/training, sim-to-real-accuracy-validation): model, GPUs, max_num_batched_tokens, blocks.
MEASURED = [
    ("llama-2-7b", 1, 2048, 7463),
    ("llama-2-70b", 4, 2048, 31356),
    ("mixtral-8x7b", 2, 2048, 27510),
    ("codellama-34b", 2, 2048, 26602),
    ("llama-3.1-70b", 4, 8192, 30251),
    ("mistral-nemo-12b", 2, 1024, 48009),
    ("qwen2.5-7b", 1, 2048, 65352),
]


@pytest.mark.parametrize(("model", "gpus", "tokens", "blocks"), MEASURED)
def test_blocks_are_within_one_percent_of_measured_servers(model: str, gpus: int, tokens: int, blocks: int) -> None:
    plan = plan_memory(
        load_model(model), load_gpu("h100-sxm"), tensor_parallel=gpus, max_num_seqs=128, max_num_batched_tokens=tokens
    )
    assert plan.num_blocks == pytest.approx(blocks, rel=0.01)


# GiB left for KV by start-up logs of vLLM on H100 with 1024 sequences and 8192 tokens a step
# (llm-d-benchmark empirical-vllm-memory-results.md; llm-d-planner accuracy_report.md and logs): model, weights, GPUs,
# gpu_memory_utilization, version, GiB. The version is the first with these constants: the logs are of 0.15 to 0.19.
LOGGED = [
    ("llama-3.1-8b", None, 1, 0.9, "vllm-0.15", 51.38),
    ("qwen3-32b", None, 1, 0.9, "vllm-0.15", 4.45),
    ("qwen3-14b", None, 1, 0.95, "vllm-0.15", 41.94),
    ("llama-3.1-70b", "fp8", 2, 0.9, "vllm-0.15", 32.0),
    ("gpt-oss-20b", None, 1, 0.9, "vllm-0.15", 50.28),
    ("llama-3.1-8b", None, 1, 0.95, "vllm-0.19", 58.11),
    ("llama-3.1-8b", None, 2, 0.95, "vllm-0.19", 63.76),
    ("llama-3.1-8b", None, 4, 0.95, "vllm-0.19", 67.44),
    ("qwen2.5-7b", None, 1, 0.95, "vllm-0.19", 58.53),
    ("qwen2.5-7b", None, 4, 0.95, "vllm-0.19", 67.34),
    ("llama-4-scout", None, 4, 0.95, "vllm-0.19", 16.75),
]


@pytest.mark.parametrize(("model", "weights", "gpus", "share", "engine", "gib"), LOGGED)
def test_memory_for_kv_is_within_3_percent_of_start_up_logs(
    model: str, weights: str | None, gpus: int, share: float, engine: str, gib: float
) -> None:
    plan = plan_memory(
        load_model(model, weight_dtype=weights),
        load_gpu("h100-sxm"),
        tensor_parallel=gpus,
        gpu_memory_utilization=share,
        max_num_seqs=1024,
        max_num_batched_tokens=8192,
        engine=engine,
    )
    assert plan.kv_bytes / 2**30 == pytest.approx(gib, rel=0.03)


def test_every_gpu_holds_the_rotary_table_of_all_positions_of_the_model() -> None:
    """Scout allows 10,485,760 positions of 128 values in 16 bit: 2.68 GB, whatever the parallelism."""
    model = load_model("llama-4-scout")
    assert unsharded_bytes(model) == 10485760 * 128 * 2
    halves = [
        plan_memory(model, load_gpu("h200-sxm"), tensor_parallel=n).weight_bytes - unsharded_bytes(model)
        for n in (4, 8)
    ]
    router = model.num_layers * model.num_experts * model.hidden_size * 2
    assert halves[0] - router == pytest.approx(2 * (halves[1] - router), rel=1e-6)


def test_an_unknown_version_of_an_engine_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"vllm-0\.20.*vllm-0\.19"):
        plan_memory(load_model("llama-3.1-8b"), load_gpu("h100-sxm"), engine="vllm-0.20")


def test_the_parts_add_up_to_what_was_requested() -> None:
    plan = plan_memory(load_model("llama-3.1-8b"), load_gpu("h100-sxm"))
    parts = plan.weight_bytes + plan.activation_bytes + plan.runtime_bytes + plan.communication_bytes + plan.kv_bytes
    assert plan.requested_bytes - parts == pytest.approx(0, abs=2)
    assert 0 <= plan.kv_bytes - plan.num_blocks * plan.block_bytes < plan.block_bytes
    assert plan.block_bytes == 16 * 32 * 2 * 8 * 128 * 2
    assert plan.num_tokens == (plan.num_blocks - 1) * 16


def test_more_memory_or_gpus_never_give_fewer_blocks() -> None:
    model, gpu = load_model("llama-3.1-8b"), load_gpu("h100-sxm")
    by_share = [plan_memory(model, gpu, gpu_memory_utilization=u).num_blocks for u in (0.5, 0.7, 0.9, 0.95)]
    by_gpus = [plan_memory(model, gpu, tensor_parallel=n).num_blocks for n in (1, 2, 4, 8)]
    assert by_share == sorted(by_share)
    assert by_gpus == sorted(by_gpus)


def test_an_fp8_cache_holds_twice_the_tokens() -> None:
    model, gpu = load_model("llama-3.1-8b"), load_gpu("h100-sxm")
    plain, small = plan_memory(model, gpu), plan_memory(model, gpu, kv_dtype="fp8")
    assert small.num_blocks == pytest.approx(2 * plain.num_blocks, abs=1)


def test_a_model_that_does_not_fit_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(InputError, match=r"does not fit on 1 x h100-sxm: 76.52 GB allowed - 137.95 weights"):
        plan_memory(load_model("llama-2-70b"), load_gpu("h100-sxm"))


def test_a_context_that_one_sequence_could_never_have_is_refused() -> None:
    with pytest.raises(InputError, match="max_model_len 131072 needs 8192 blocks of 16 tokens"):
        plan_memory(load_model("llama-3.1-8b"), load_gpu("rtx-4090"), max_num_seqs=64, max_model_len=131072)


def test_unknown_memory_is_refused() -> None:
    with pytest.raises(InputError, match="memory_bytes is unknown"):
        plan_memory(load_model("llama-3.1-8b"), load_gpu("cpu"))


@pytest.mark.parametrize("share", [0.0, 1.1])
def test_a_share_of_memory_outside_zero_to_one_is_refused(share: float) -> None:
    with pytest.raises(InputError, match="gpu_memory_utilization must lie in"):
        plan_memory(load_model("llama-3.1-8b"), load_gpu("h100-sxm"), gpu_memory_utilization=share)


def test_the_lines_say_where_memory_went() -> None:
    text = "\n".join(plan_memory(load_model("llama-3.1-8b"), load_gpu("h100-sxm")).lines())
    assert "weights: 16.09 GB" in text
    assert "blocks of 16 tokens (2097152 B)" in text
