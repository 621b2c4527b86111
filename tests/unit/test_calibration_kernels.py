"""Calibration: known kernels are recovered, held-out shapes stay out, surfaces and tables mean what they say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from sim.calibration.fit import fit_collective, fit_decode, fit_gemm, fit_moe, fit_prefill, moe_shape
from sim.calibration.solve import fit_surface, significant
from sim.calibration.tables import held_out_keys, held_out_mask
from sim.cost.kernels import Collective, DecodeKernel, GemmKernel, MoeKernel, PrefillKernel, SmallKernel, soft_maximum
from sim.cost.surface import Surface
from sim.hardware import load_gpu

H100 = load_gpu("h100-sxm")
GEMM = GemmKernel(4e-6, 2.8e12, 8e14, 3.0, 2.0, 2.0)
DECODE = DecodeKernel(1e-5, 3e12, 2e-8, 4e-10, 1e-9, 5000.0, 0.6, 4e7, 2.0, True)
PREFILL = PrefillKernel(1.2e-5, 6e14, 0.8, 100.0, 2e-12, 4e-12, 1.3e-12, 3e-9, 1e-9)
MOE = MoeKernel(3e-5, 1e-8, 1e-10, 1e-9, 2.8e12, 2e12, 6e14, 16.0, 3.0, 2.0)


def gemm_rows(noise: float = 0.0) -> pd.DataFrame:
    sides = [256, 1024, 2048, 4096, 8192, 16384]
    grid = np.array([(m, n, k) for m in (1, 16, 128, 512, 2048, 8192) for n in sides for k in sides], dtype=float)
    factor = np.exp(noise * np.random.default_rng(0).standard_normal(len(grid)))
    frame = pd.DataFrame(grid.astype(int), columns=["m", "n", "k"])
    return frame.assign(time_us=GEMM.seconds(*grid.T) * 1e6 * factor)


def decode_rows() -> pd.DataFrame:
    heads = [(32, 8, 128), (32, 32, 128), (16, 2, 128), (64, 8, 64), (8, 1, 128), (40, 8, 128)]
    shapes = [(b, c, *h) for b in (1, 8, 64, 512) for c in (128, 1024, 8192, 65536) for h in heads]
    grid = np.array(shapes, dtype=float)
    frame = pd.DataFrame(grid.astype(int), columns=["batch", "kv_len", "heads", "kv_heads", "head_dim"])
    return frame.assign(time_us=DECODE.seconds(*grid.T, warm=True) * 1e6)


def test_a_gemm_kernel_is_recovered_from_its_own_noisy_times() -> None:
    outcome = fit_gemm(gemm_rows(noise=0.02), H100, "bfloat16")
    assert outcome.kernel.bandwidth == pytest.approx(GEMM.bandwidth, rel=0.03)
    assert outcome.kernel.flops == pytest.approx(GEMM.flops, rel=0.03)
    assert outcome.kernel.launch == pytest.approx(GEMM.launch, rel=0.1)
    assert outcome.score is not None
    assert outcome.score.median < 0.03


def test_a_decode_kernel_is_recovered_with_its_form() -> None:
    outcome = fit_decode(decode_rows(), H100, "bfloat16")
    assert outcome.kernel.root
    assert outcome.kernel.bandwidth == pytest.approx(DECODE.bandwidth, rel=0.02)
    assert outcome.kernel.per_block == pytest.approx(DECODE.per_block, rel=0.1)
    assert outcome.score is not None
    assert outcome.score.median < 0.01


def test_a_clearly_additive_decode_kernel_is_fitted_as_a_sum() -> None:
    rows = decode_rows()
    columns = (rows[c].to_numpy(dtype=float) for c in ("batch", "kv_len", "heads", "kv_heads", "head_dim"))
    slow = replace(DECODE, root=False, per_block=2e-7)
    rows = rows.assign(time_us=slow.seconds(*columns, warm=True) * 1e6)
    assert not fit_decode(rows, H100, "bfloat16").kernel.root


def test_a_prefill_kernel_predicts_shapes_that_it_has_not_seen() -> None:
    heads = [(32, 8, 128), (32, 32, 128), (16, 2, 64), (64, 8, 64), (8, 1, 128)]
    shapes = [(b, q, 0, *h) for b in (1, 8, 64) for q in (16, 128, 1024, 8192) for h in heads]
    grid = np.array(shapes, dtype=float)
    names = ["batch", "q_len", "prefix_len", "heads", "kv_heads", "head_dim"]
    rows = pd.DataFrame(grid.astype(int), columns=names).assign(time_us=PREFILL.seconds(*grid.T) * 1e6)
    outcome = fit_prefill(rows, H100, "bfloat16", DECODE)
    assert outcome.score is not None
    assert outcome.score.median < 0.02
    assert outcome.kernel.flops == pytest.approx(PREFILL.flops, rel=0.05)
    assert outcome.kernel.per_prefix == pytest.approx(2 * 2.0 / DECODE.bandwidth, rel=1e-3)


def test_experts_are_recovered_and_touch_what_even_routing_touches() -> None:
    shapes = [(4096, 14336, 2, 8), (2048, 768, 8, 128), (4096, 1536, 8, 128), (6144, 2048, 8, 256), (5120, 8192, 1, 16)]
    grid = [(t, *s, tp, 1) for t in (1, 4, 16, 64, 256, 1024, 4096) for s in shapes for tp in (1, 2, 4)]
    names = ["num_tokens", "hidden", "inter", "topk", "num_experts", "moe_tp", "moe_ep"]
    rows = pd.DataFrame(grid, columns=names).assign(kernel="triton", time_us=1.0)
    tokens, routed, touched, *_ = moe_shape(rows)
    assert (touched == np.minimum(rows.num_experts, routed)).all()
    assert (routed == tokens * rows.topk).all()
    rows = rows.assign(time_us=MOE.seconds(*moe_shape(rows)) * 1e6)
    outcome = fit_moe(rows, H100, "bfloat16")
    assert outcome.score is not None
    assert outcome.score.median < 0.03


def test_times_of_held_out_shapes_change_no_coefficient() -> None:
    rows = gemm_rows()
    held = held_out_mask(rows, ("n", "k"))
    assert 0 < held.sum() < len(rows)
    spoiled = rows.assign(time_us=np.where(held, 1e6, rows.time_us))
    assert fit_gemm(spoiled, H100, "bfloat16").kernel == fit_gemm(rows, H100, "bfloat16").kernel


def test_a_fifth_of_the_keys_is_held_out_whatever_their_order() -> None:
    keys = [(n, k) for n in range(20) for k in range(20)]
    held = held_out_keys(keys)
    assert len(held) == 80
    assert held == held_out_keys(reversed(keys)) == held_out_keys(keys + keys)


def test_few_keys_hold_out_one_and_two_none() -> None:
    assert len(held_out_keys([(1,), (2,), (3,)])) == 1
    assert held_out_keys([(1,), (2,)]) == set()


def test_a_surface_goes_through_its_knots_and_holds_its_boundary() -> None:
    surface = Surface(((0.0, 2.0), (0.0, 1.0)), (0.0, 1.0, 2.0, 3.0))
    at = surface.factor(np.array([1.0, 4.0, 2.0, 1024.0]), np.array([1.0, 2.0, 1.0, 0.25]))
    assert np.log(at).tolist() == pytest.approx([0.0, 3.0, 1.0, 2.0])


def test_a_surface_is_recovered_from_points_on_it() -> None:
    true = Surface(((0.0, 4.0, 8.0), (0.0, 4.0)), (0.1, -0.2, 0.3, 0.0, -0.1, 0.2))
    rng = np.random.default_rng(1)
    x, y = np.exp2(rng.uniform(0, 8, 2000)), np.exp2(rng.uniform(0, 4, 2000))
    found = fit_surface(true.knots, (x, y), np.log(true.factor(x, y)), damping=1e-3)
    assert found.values == pytest.approx(true.values, abs=2e-3)


def test_a_collective_follows_its_table_and_grows_with_size_beyond_it() -> None:
    sizes = 2.0 ** np.arange(8, 28)
    rows = pd.DataFrame({"bytes": sizes.astype(int), "time_us": 5.0 + sizes / 4e5})
    outcome = fit_collective(rows)
    assert outcome.score is not None
    assert outcome.score.median < 0.1
    last = outcome.kernel.seconds(np.array([2.0**27, 2.0**29]))
    assert last[1] / last[0] == pytest.approx(4.0, rel=0.1)
    assert Collective((0.0, 1.0), (0.0, 1.0)).seconds(np.array([2.0]))[0] == 2.0


def test_kernels_are_never_faster_than_their_own_parts() -> None:
    a, b = np.array([0.0, 1.0, 3e-7]), np.array([2.0, 1.0, 3e-7])
    joined = soft_maximum(a, b, 3.0)
    assert (joined >= np.maximum(a, b)).all()
    assert (joined <= a + b).all()
    assert SmallKernel(1e-6, 1e-10, 1e12).seconds(1000.0, np.array([1.0, 1e9])).tolist() == pytest.approx(
        [1.1e-6, 1e-3]
    )


def test_numbers_are_stored_with_four_digits() -> None:
    assert significant(123456.0) == 123500.0
    assert significant(1.23456e-7) == 1.235e-7
