"""Published costs of chunked prefill (Sarathi-Serve, Yi-34B on two A100): tile quantisation and the price of chunks."""

from __future__ import annotations

import numpy as np
import pytest

from sim.cost import ExplainingCostModel, build_cost_model
from sim.cost.base import BatchShape
from sim.cost.kernels import GemmKernel
from sim.hardware import load_gpu
from sim.model import load_model


@pytest.fixture(scope="module")
def yi_34b() -> ExplainingCostModel:
    return build_cost_model("fitted", {}, model=load_model("yi-34b"), gpu=load_gpu("a100-sxm-80gb"), tensor_parallel=2)


def _prompt_time(cost: ExplainingCostModel, prompt: int, chunk: int) -> float:
    total, done = 0.0, 0
    while done < prompt:
        size = min(chunk, prompt - done)
        pairs = size * done + size * (size + 1) // 2
        done += size
        total += cost.step_time(BatchShape(size, 1, pairs, done, max_context=done))
    return total


def test_a_chunk_of_257_tokens_costs_about_a_third_more_than_one_of_256(yi_34b: ExplainingCostModel) -> None:
    """The paper's text: 32 per cent."""
    steps = [yi_34b.step_time(BatchShape(n, 1, n * (n + 1) // 2, n, max_context=n)) for n in (256, 257)]
    assert steps[1] / steps[0] == pytest.approx(1.32, abs=0.06)


def test_chunks_of_512_tokens_cost_at_most_a_quarter_more_than_the_whole_prompt(yi_34b: ExplainingCostModel) -> None:
    """The paper's text: about 25 per cent at most, less for larger chunks."""
    whole = _prompt_time(yi_34b, 4096, 4096)
    overheads = [_prompt_time(yi_34b, 4096, chunk) / whole - 1.0 for chunk in (512, 1024, 2048)]
    assert 0.0 < overheads[2] < overheads[1] < overheads[0] <= 0.25


def test_a_product_computes_whole_tiles_above_half_a_tile() -> None:
    kernel = GemmKernel(0.0, 1e30, 1e12, 4.0, 2.0, 2.0, tile_tokens=128.0)
    tokens = np.array([1.0, 64.0, 65.0, 128.0, 129.0, 256.0, 257.0])
    counted = np.array([1.0, 64.0, 128.0, 128.0, 256.0, 256.0, 384.0])
    assert kernel.seconds(tokens, 100.0, 50.0) == pytest.approx(2.0 * counted * 5000.0 / 1e12)
