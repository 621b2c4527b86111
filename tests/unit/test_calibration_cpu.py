"""The cpu backend: a real transformer, a real server, and the simulator that is fitted to them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sim.calibration.cpu.fit import CpuFit, batch_shape
from sim.calibration.cpu.measure import Composition, Samples, random_compositions
from sim.calibration.cpu.pipeline import MAX_CONTEXT, Plan, Requests, make_requests, run_pipeline, simulate
from sim.calibration.cpu.server import Limits, Live, Server
from sim.calibration.cpu.transformer import Chunk, Sizes, Transformer, Watch
from sim.cost.kernels import DecodeKernel, GemmKernel, PrefillKernel

SIZES = Sizes(num_layers=2, hidden=32, heads=4, kv_heads=2, inter=48, vocab=61)
LIMITS = Limits(max_num_seqs=4, max_num_batched_tokens=16)
# What is allowed on a noisy machine; typical are 6 %, 5 % and 3 %. With more noise than MAX_NOISE nothing is concluded.
MAX_STEP_ERROR, MAX_E2E_ERROR, MAX_BUSY_ERROR = 0.20, 0.30, 0.25


def tokens(*ids: int) -> np.ndarray:
    return np.array(ids, dtype=np.int64)


def test_a_prompt_in_chunks_gives_the_logits_of_the_whole() -> None:
    prompt = np.random.default_rng(0).integers(0, SIZES.vocab, 11)
    model = Transformer(SIZES, 2, 16)
    whole = model.forward([], [Chunk(0, prompt, 0)])
    model.forward([], [Chunk(1, prompt[:4], 0)])
    model.forward([], [Chunk(1, prompt[4:10], 4)])
    last = model.forward([Chunk(1, prompt[10:], 10)], [])
    assert np.allclose(whole, last, atol=1e-4)


def test_an_earlier_token_changes_the_logits_and_a_neighbour_does_not() -> None:
    model = Transformer(SIZES, 3, 16)
    alone = model.forward([], [Chunk(0, tokens(1, 2, 3), 0)])
    changed = model.forward([], [Chunk(0, tokens(9, 2, 3), 0)])
    beside = model.forward([], [Chunk(1, tokens(7, 7), 0), Chunk(0, tokens(1, 2, 3), 0)])[1:]
    assert not np.allclose(alone, changed, atol=1e-2)
    assert np.allclose(alone, beside, atol=1e-4)


def test_parts_of_a_step_add_up_to_it() -> None:
    ticks = iter(range(1000))
    watch = Watch(clock=lambda: float(next(ticks)))
    Transformer(SIZES, 2, 16).forward([Chunk(0, tokens(1), 3)], [Chunk(1, tokens(1, 2), 0)], watch)
    names = [name for name, _ in watch.parts]
    layer = ["qkv", "decode_attention", "prefill_attention", "out", "up", "down"]
    assert names == ["other", *layer * SIZES.num_layers, "lm_head"]
    assert sum(seconds for _, seconds in watch.parts) == len(names)


def test_continuous_batching_writes_what_each_request_would_get_alone() -> None:
    requests = make_requests(np.random.default_rng(3), 6, SIZES)
    prompts = [prompt[:20] for prompt in requests.prompts]
    outputs = [min(n, 9) for n in requests.num_output_tokens]
    model = Transformer(SIZES, LIMITS.max_num_seqs, 64)
    together = Server(model, LIMITS).run(np.zeros(6), prompts, outputs)
    for row in range(6):
        alone = Server(model, LIMITS).run(np.zeros(1), [prompts[row]], [outputs[row]])
        assert together.tokens[row] == alone.tokens[0]
        assert len(alone.tokens[0]) == outputs[row]
    assert (together.first_token_time <= together.finish_time).all()


# --- a device whose times are known -----------------------------------------------------------------------------------

TRUE_GEMM = GemmKernel(2e-5, 8e9, 6e10, 2.0, 4.0, 60.0)
TRUE_DECODE = DecodeKernel(1e-15, 3e9, 1.5e-5, 1e-15, 1e-15, 1e7, 1.0, 1e6, 4.0, False)
TRUE_PREFILL = PrefillKernel(1e-15, 9e9, 1.0, 1e-15, 3e-9, 1e-15, 2e-10, 1e-15, 6e-6)
PER_STEP, PER_SEQUENCE = 2e-4, 3e-6


def known_samples(steps: list[Composition], sizes: Sizes) -> Samples:
    """Samples of a device with the times above, without noise."""
    found, layers = Samples(), sizes.num_layers
    shapes = {"qkv": (sizes.qkv, sizes.hidden), "out": (sizes.hidden, sizes.hidden)}
    shapes |= {"up": (2 * sizes.inter, sizes.hidden), "down": (sizes.hidden, sizes.inter)}
    heads, kv_heads, dim = float(sizes.heads), float(sizes.kv_heads), float(sizes.head_dim)
    for step in steps:
        count = np.array([float(step.num_tokens)])
        parts = {name: layers * float(TRUE_GEMM.formula(count, n, k)[0]) for name, (n, k) in shapes.items()}
        rows = np.array([float(step.num_sequences)])
        parts["lm_head"] = float(TRUE_GEMM.formula(rows, sizes.vocab, sizes.hidden)[0])
        reading = sum(step.contexts) * TRUE_DECODE.per_context_token(kv_heads, dim)
        floor = TRUE_DECODE.floor(np.array([float(len(step.contexts))]), heads, kv_heads)[0]
        parts["decode_attention"] = layers * float(reading + floor) if step.contexts else 1e-9
        if step.chunks:
            parts["prefill_attention"] = layers * prefill_seconds(step, sizes)
        for name, seconds in parts.items():
            found.parts[step][name] = [seconds]
        found.steps[step] = [sum(parts.values()) + PER_STEP + PER_SEQUENCE * step.num_sequences]
    return found


def prefill_seconds(step: Composition, sizes: Sizes) -> float:
    heads, kv_heads, dim = float(sizes.heads), float(sizes.kv_heads), float(sizes.head_dim)
    shape = batch_shape(step)
    seconds = shape.prefill_pairs * float(TRUE_PREFILL.per_pair(heads, dim))
    seconds += shape.num_prefill_tokens * float(TRUE_PREFILL.per_new_token(heads, kv_heads, dim))
    seconds += (shape.prefill_context - shape.num_prefill_tokens) * TRUE_PREFILL.per_prefix * kv_heads * dim
    return seconds + len(step.chunks) * heads * TRUE_PREFILL.per_sequence_head


@pytest.fixture(scope="module")
def known() -> tuple[CpuFit, Samples, list[Composition]]:
    sizes, limits = Sizes(), Limits()
    steps = random_compositions(np.random.default_rng(5), 90, limits, MAX_CONTEXT)
    samples = known_samples(steps, sizes)
    return CpuFit(samples, steps[:60], sizes, MAX_CONTEXT), samples, steps[60:]


def test_a_known_device_is_recovered_on_steps_that_no_fit_has_seen(
    known: tuple[CpuFit, Samples, list[Composition]],
) -> None:
    fit, samples, held_out = known
    error = np.array([fit.predict(step) / samples.step(step) - 1.0 for step in held_out])
    assert np.abs(error).max() < 0.01


def test_the_simulator_repeats_the_server_s_schedule_to_the_nanosecond(
    known: tuple[CpuFit, Samples, list[Composition]], tmp_path: Path
) -> None:
    fit, _, _ = known
    rng, limits = np.random.default_rng(6), Limits(max_num_seqs=6, max_num_batched_tokens=64)
    requests = make_requests(rng, 60, fit.sizes)
    prompts = [prompt[: 1 + len(prompt) // 2] for prompt in requests.prompts]
    requests = Requests(prompts, requests.num_output_tokens)
    arrivals = np.cumsum(rng.exponential(0.05, 60))
    arrivals -= arrivals[0]

    def duration(batch: list[tuple[Live, int]]) -> float:
        contexts = tuple(live.num_computed + 1 for live, _ in batch if live.is_decoding)
        chunks = tuple((n, live.num_computed) for live, n in batch if not live.is_decoding)
        return fit.predict(Composition(contexts, chunks))

    small = Sizes(num_layers=1, hidden=16, heads=2, kv_heads=1, inter=16, vocab=fit.sizes.vocab)
    served = Server(Transformer(small, limits.max_num_seqs, MAX_CONTEXT), limits, duration).run(arrivals, *requests)
    simulated = simulate(fit, arrivals, requests, limits, tmp_path)
    assert simulated.result.replicas[0].num_steps == served.num_steps
    finish = simulated.requests["finish_time"].to_numpy(dtype=float)
    assert np.abs(finish - served.finish_time).max() < 1e-5
    first = arrivals + simulated.requests["ttft"].to_numpy(dtype=float)
    assert np.abs(first - served.first_token_time).max() < 1e-5


# --- this machine -----------------------------------------------------------------------------------------------------


def test_measured_fitted_simulated_and_really_served_agree_on_this_machine(tmp_path: Path) -> None:
    said: list[str] = []
    found = run_pipeline(tmp_path, Plan(), said.append)
    if not found.is_conclusive:
        pytest.skip(f"this machine is too noisy just now: p90/p10 of the probe step {found.noise:.2f}; {said[-1]}")
    assert found.step_error <= MAX_STEP_ERROR, said
    assert abs(found.e2e_median_ratio - 1.0) <= MAX_E2E_ERROR, said
    assert abs(found.busy_error) <= MAX_BUSY_ERROR, said
    assert {"raw.csv", "cpu.yaml", "gpu.yaml", "model.yaml", "comparison.csv"} <= {p.name for p in tmp_path.iterdir()}
