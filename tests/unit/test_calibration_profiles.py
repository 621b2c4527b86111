"""Fitted profiles: those that ship load, meet their goals or are listed, and can be reproduced from the tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sim import yamlfile
from sim.calibration.profile import Tables, emit, fit_profile, kernel_values, write_profile
from sim.calibration.tables import held_out_mask, read_table, rows_of
from sim.cli.calibrate import limit_of
from sim.cost.kernels import GemmKernel
from sim.cost.profile import fitted_names, load_fitted, profile_from_values
from sim.errors import InputError

TABLES = Path(__file__).parents[2] / ".." / "shared" / "data" / "kernels"
needs_tables = pytest.mark.skipif(not TABLES.is_dir(), reason="../shared/data/kernels is not here")

# Goals that are missed, and why.
MISSED = {
    ("a100-sxm-80gb", "moe", "bf16"),  # only measured with skewed routing, nine shapes
    ("l40s", "gemm", "bf16"),  # weights that fit in 96 MB of cache are read from it in the tables
    ("l40s", "moe", "fp8_per_tensor"),  # the same
    ("rtx-pro-6000", "gemm", "bf16"),  # twenty shapes of three models, too few for a correction surface
}


@pytest.mark.parametrize("name", fitted_names())
def test_a_shipped_profile_loads_and_names_its_source(name: str) -> None:
    profile = load_fitted(name)
    assert profile.gpu == name
    assert "bf16" in profile.gemm
    assert "bf16" in profile.decode_attention
    assert "vllm-0.15" in profile.engines
    assert profile.errors


@pytest.mark.parametrize("name", fitted_names())
def test_vllm_kernels_meet_the_limits_on_shapes_held_out_or_are_listed(name: str) -> None:
    missed = set()
    for row in load_fitted(name).errors:
        limit = limit_of(row["operation"], row["dtype"])
        if row["backend"] == "vllm" and limit is not None and row["median"] > limit:
            missed.add((name, row["operation"], row["dtype"]))
    assert missed <= MISSED


@needs_tables
def test_the_stored_error_of_products_follows_from_table_and_profile() -> None:
    rows = rows_of(read_table(TABLES, "gemm"), "h100-sxm", dtype="bfloat16", backend="vllm")
    assert rows is not None
    kernel = load_fitted("h100-sxm").gemm["bf16"].kernel
    held = held_out_mask(rows, ("n", "k"))
    m, n, k, time = (rows[c].to_numpy(dtype=float)[held] for c in ("m", "n", "k", "time_us"))
    error = float(np.median(np.abs(kernel.seconds(m, n, k) * 1e6 / time - 1.0)))
    stored = next(r for r in load_fitted("h100-sxm").errors if (r["operation"], r["dtype"]) == ("gemm", "bf16"))
    assert error == pytest.approx(stored["median"], abs=1e-3)
    assert error <= 0.06


@needs_tables
def test_no_fitted_product_beats_the_peak_of_its_gpu_where_the_table_does_not() -> None:
    kernel = load_fitted("h100-sxm").gemm["bf16"].kernel
    tokens = np.array([1024.0, 4096.0, 16384.0])
    flops = 2 * tokens * 8192 * 8192 / kernel.seconds(tokens, 8192.0, 8192.0)
    assert (flops < 989e12).all()


def small_folder(folder: Path) -> Path:
    """Tables of a made-up fast GPU: enough for a profile without surfaces, experts or collectives."""
    rng = np.random.default_rng(0)
    kernel = GemmKernel(4e-6, 2.5e12, 7e14, 3.0, 2.0, 2.0)
    grid = np.array([(m, n, k) for m in (1, 64, 1024) for n in (1024, 4096, 8192) for k in (1024, 4096)], dtype=float)
    gemm = pd.DataFrame(grid.astype(int), columns=["m", "n", "k"]).assign(time_us=kernel.seconds(*grid.T) * 1e6)
    gemm.assign(gpu="H100-SXM", dtype="bfloat16", backend="vllm", source="made up").to_csv(folder / "gemm.csv")
    shapes = [(b, c, h, 8, 128) for b in (1, 16, 128) for c in (100, 1000, 10000) for h in (8, 16, 32, 64)]
    decode = pd.DataFrame(shapes, columns=["batch", "kv_len", "heads", "kv_heads", "head_dim"])
    decode = decode.assign(time_us=10 + decode.batch * decode.kv_len * 4096 / 3e6, backend="vllm", kv_dtype="bfloat16")
    decode.assign(gpu="H100-SXM").to_csv(folder / "attention_decode.csv")
    ops = [(op, t) for op in ("post_attention_layernorm", "attn_rope", "mlp_act") for t in (1, 64, 512, 4096)]
    small = pd.DataFrame(ops, columns=["op", "num_tokens"]).assign(gpu="H100-SXM", tp=1, n_head=32, n_kv_head=8)
    small = small.assign(n_embd=4096, n_ff=14336, gated=1, time_us=2 + small.num_tokens / 50 * rng.uniform(0.99, 1.01))
    small.to_csv(folder / "vidur_mlp_ops.csv")
    return folder


def test_a_profile_is_fitted_written_and_read_again(tmp_path: Path) -> None:
    values = fit_profile(Tables(small_folder(tmp_path)), "h100-sxm", "2026-11-29", other_backends=False)
    target = tmp_path / "mine.yaml"
    write_profile(values, target)
    profile = load_fitted(str(target))
    assert profile.gemm["bf16"].kernel.bandwidth == pytest.approx(2.5e12, rel=0.05)
    assert kernel_values(profile.gemm["bf16"].kernel).items() <= values["gemm"]["bf16"].items()
    assert profile.gemm["bf16"].region["tokens"] == (1.0, 1024.0)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_nested_values_survive_the_yaml_that_profiles_are_written_in() -> None:
    values = {"a": {"b": [1.0, 2.5e-06, -3.0] * 30, "c": "x: y"}, "list": ["one", "two"], "rows": [{"k": 1, "v": 0.5}]}
    assert yamlfile.parse(emit(values), "text").values == values


def test_a_folder_without_the_gpu_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no gemm or decode attention rows of GPU 'l4'"):
        fit_profile(Tables(small_folder(tmp_path)), "l4", "2026-11-29")


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder of kernel tables"):
        Tables(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu,dtype\nH100-SXM,bf16\n", "missing columns m, n, k, time_us"),
        (
            "gpu,dtype,m,n,k,time_us,backend,source\nH100-SXM,bfloat16,1,2,3,-4,vllm,x\n",
            "row 2: time_us must be a positive",
        ),
    ],
)
def test_a_wrong_table_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "gemm.csv").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_table(tmp_path, "gemm")


def test_a_profile_with_a_wrong_key_names_it() -> None:
    with pytest.raises(InputError, match=r"gemm\.bf16: unknown key 'launc'"):
        profile_from_values({"gpu": "x", "gemm": {"bf16": {"launc": 1.0}}, "small_ops": {}, "engines": {}})
