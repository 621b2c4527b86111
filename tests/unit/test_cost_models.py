"""Cost models: closed forms, physical ceilings, monotony, and vectors equal to stepping bit for bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cost import COST_MODELS, ExplainingCostModel, build_cost_model
from sim.cost.base import BatchShape
from sim.cost.work import touched_experts
from sim.errors import InputError
from sim.hardware import load_gpu
from sim.model import load_model

H100 = load_gpu("h100-sxm")


def _roofline(name: str = "llama-3.1-8b", gpu: str = "h100-sxm", tp: int = 1, **params: object) -> ExplainingCostModel:
    return build_cost_model("roofline", params, model=load_model(name), gpu=load_gpu(gpu), tensor_parallel=tp)


def _constant(**params: float) -> ExplainingCostModel:
    return build_cost_model("constant", params, model=load_model("llama-3.1-8b"), gpu=H100)


MODELS = {
    "constant": _constant(step_duration=0.01, per_sequence=1e-4, per_context_token=1e-8),
    "dense": _roofline(),
    "windows": _roofline("gpt-oss-20b"),
    "latent": _roofline("deepseek-v3", "h200-sxm", 8),
    "experts": _roofline("mixtral-8x7b", tp=2),
}


def prefill(chunk: int, prefix: int = 0) -> BatchShape:
    pairs = chunk * prefix + chunk * (chunk + 1) // 2
    return BatchShape(chunk, 1, pairs, chunk + prefix, max_context=chunk + prefix)


def decode(num: int, context: int) -> BatchShape:
    return BatchShape(num_decode_sequences=num, decode_context=num * context, max_context=context)


@pytest.mark.parametrize("name", MODELS)
@given(num=st.integers(1, 1024), mean=st.integers(1, 20000), more=st.integers(0, 100000), steps=st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_a_vector_of_steps_has_the_bits_of_single_steps(name: str, num: int, mean: int, more: int, steps: int) -> None:
    cost, context, longest = MODELS[name], num * mean, mean + more
    times = cost.decode_times(num, context, longest, steps)
    single = [
        cost.step_time(BatchShape(num_decode_sequences=num, decode_context=context + i * num, max_context=longest + i))
        for i in range(steps)
    ]
    assert times.dtype == np.float64
    assert times.tolist() == single


@pytest.mark.parametrize("name", MODELS)
def test_one_token_more_never_makes_a_step_shorter(name: str) -> None:
    cost = MODELS[name]
    by_batch = [cost.step_time(decode(num, 500)) for num in (1, 2, 8, 64, 256, 1024)]
    by_context = [cost.step_time(decode(16, context)) for context in (1, 10, 1000, 100_000)]
    by_chunk = [cost.step_time(prefill(chunk)) for chunk in (1, 16, 512, 8192)]
    for times in (by_batch, by_context, by_chunk):
        assert times == sorted(times)
        assert times[0] > 0


@pytest.mark.parametrize(
    ("name", "gpu", "tp"),
    [
        ("llama-3.1-8b", "h100-sxm", 1),
        ("mixtral-8x7b", "a100-sxm-80gb", 2),
        ("deepseek-v3", "b200-sxm", 8),
        ("opt-13b", "l40s", 1),
    ],
)
@pytest.mark.parametrize("shape", [decode(1, 10), decode(200, 3000), prefill(4096), prefill(512, 16384)])
def test_no_step_beats_the_peaks_of_the_hardware(name: str, gpu: str, tp: int, shape: BatchShape) -> None:
    cost, profile, model = _roofline(name, gpu, tp), load_gpu(gpu), load_model(name)
    parts = [part for op, part in cost.breakdown(shape).items() if op not in ("all_reduce",)]
    flops, moved = sum(float(p["flops"]) for p in parts), sum(float(p["bytes"]) for p in parts)
    seconds = cost.step_time(shape)
    assert seconds >= flops / profile.peak_flops(model.weight_dtype)
    assert seconds >= moved / profile.memory_bandwidth
    if not model.is_moe:
        assert moved >= model.weight_bytes(tp) - 2 * model.vocab_size * model.hidden_size


@pytest.mark.parametrize("name", [n for n in MODELS if n != "constant"])
@pytest.mark.parametrize("shape", [decode(32, 1000), prefill(700, 300), BatchShape(64, 1, 2080, 64, 8, 800, 100)])
def test_the_breakdown_adds_up_to_the_step(name: str, shape: BatchShape) -> None:
    parts = MODELS[name].breakdown(shape)
    assert sum(float(p["seconds"]) for p in parts.values()) == pytest.approx(MODELS[name].step_time(shape), rel=1e-12)


def test_a_hand_worked_roofline_decode_step() -> None:
    """One sequence of 1,000 tokens, Llama-3.1-8B: weights and KV at full bandwidth, no overheads."""
    ones = {
        "gemm_memory": 1.0,
        "gemm_compute": 1.0,
        "attention_memory": 1.0,
        "attention_compute": 1.0,
        "elementwise_memory": 1.0,
    }
    cost = _roofline(kernel_overhead=0.0, efficiencies=ones)
    model = load_model("llama-3.1-8b")
    weights = model.weight_bytes() - 2 * model.vocab_size * model.hidden_size  # the input embedding is not read
    expected = (weights + 1000 * model.kv_bytes_per_token()) / 3.35e12
    assert cost.step_time(decode(1, 1000)) == pytest.approx(expected, rel=2e-3)


def test_a_long_prefill_is_bound_by_compute() -> None:
    model = load_model("llama-3.1-8b")
    seconds = _roofline().step_time(prefill(8192))
    matmul = 2 * 8192 * (model.num_parameters - 2 * model.vocab_size * model.hidden_size)
    attention = 4 * 32 * 32 * 128 * 8192 * 8193 / 2
    matrix_products = matmul / (989e12 * 0.77) + attention / (989e12 * 0.54)
    assert matrix_products < seconds < 1.15 * matrix_products  # norms, activations and launches are the rest


def test_attention_of_a_chunk_counts_its_prefix() -> None:
    assert _roofline().step_time(prefill(512, 32768)) > 1.5 * _roofline().step_time(prefill(512))


def test_windows_bound_what_a_long_context_costs() -> None:
    windowed = load_model("gpt-oss-20b")
    full = replace(windowed, num_sliding_layers=0)
    slow = build_cost_model("roofline", {}, model=full, gpu=H100).step_time(decode(64, 8000))
    fast = build_cost_model("roofline", {}, model=windowed, gpu=H100).step_time(decode(64, 8000))
    kv = 12 * 64 * (8000 - 128) * windowed.layer_kv_bytes() / (3.35e12 * 0.898)
    assert slow - fast == pytest.approx(kv, rel=1e-9)


def test_tensor_parallel_helps_large_steps_and_pays_for_all_reduce() -> None:
    one, four = _roofline("llama-2-13b"), _roofline("llama-2-13b", tp=4)
    assert four.step_time(prefill(4096)) < one.step_time(prefill(4096)) / 2
    assert four.breakdown(prefill(4096))["all_reduce"]["bound"] == "link"
    assert "all_reduce" not in one.breakdown(prefill(4096))


def test_pipeline_stages_send_activations_and_do_the_same_work() -> None:
    model = load_model("llama-2-13b")
    one = build_cost_model("roofline", {}, model=model, gpu=H100)
    two = build_cost_model("roofline", {}, model=model, gpu=H100, pipeline_parallel=2)
    assert one.step_time(prefill(2048)) < two.step_time(prefill(2048)) < 1.02 * one.step_time(prefill(2048))


def test_experts_touched_between_one_token_and_all() -> None:
    tokens = np.array([0.0, 1.0, 10_000.0])
    assert touched_experts(8, 2, tokens).tolist() == pytest.approx([0.0, 2.0, 8.0])


def test_tables_grow_with_a_batch_larger_than_planned() -> None:
    small = build_cost_model(
        "roofline", {}, model=load_model("llama-3.1-8b"), gpu=H100, max_num_seqs=4, max_num_batched_tokens=16
    )
    assert small.step_time(prefill(5000)) == _roofline().step_time(prefill(5000))
    assert small.decode_times(900, 9000, 10, 3).tolist() == _roofline().decode_times(900, 9000, 10, 3).tolist()


def test_the_constant_model_is_its_closed_form() -> None:
    cost = _constant(step_duration=0.5, per_prefill_token=0.25, per_sequence=2.0, per_context_token=0.125)
    assert cost.step_time(BatchShape(4, 1, 10, 4, 2, 6, 4)) == 0.5 + 4 * 0.25 + 3 * 2.0 + 10 * 0.125
    assert _constant(step_duration=0.02).decode_times(7, 70, 10, 3).tolist() == [0.02] * 3


@pytest.mark.parametrize(
    ("kind", "params", "message"),
    [
        ("rofline", {}, r"unknown cost model 'rofline' \(did you mean 'roofline'\?\)"),
        ("constant", {"step_duraton": 1.0}, r"unknown key 'step_duraton' \(did you mean 'step_duration'\?\)"),
        ("constant", {"step_duration": "fast"}, "cost_model.step_duration must be a number"),
        ("constant", {"step_duration": -1.0}, "must be a number of seconds >= 0"),
        ("constant", {"step_duration": 0.0}, "a step would take no time"),
        ("roofline", {"efficiencies": {"gemm_memory": 2.0}}, r"must lie in \(0, 1\]"),
    ],
)
def test_wrong_parameters_are_refused_by_name(kind: str, params: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_cost_model(kind, params, model=load_model("llama-3.1-8b"), gpu=H100)


def test_hardware_without_facts_has_no_roofline() -> None:
    with pytest.raises(InputError, match="is unknown"):
        build_cost_model("roofline", {}, model=load_model("llama-3.1-8b"), gpu=load_gpu("cpu"))


def test_the_kinds_of_the_contract_exist() -> None:
    assert {"constant", "roofline", "fitted"} <= set(COST_MODELS)
