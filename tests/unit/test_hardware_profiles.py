"""GPU profiles: every contract name loads, facts have units and sources, unknown facts are refused where needed."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from sim.errors import InputError
from sim.hardware import EFFICIENCY_DEFAULTS, gpu_names, load_gpu

CONTRACT = [
    "a100-sxm-40gb",
    "a100-sxm-80gb",
    "h100-sxm",
    "h100-pcie",
    "h100-nvl",
    "h200-sxm",
    "b200-sxm",
    "b300-sxm",
    "gb200",
    "gb300",
    "h20",
    "h800",
    "l40s",
    "l4",
    "a40",
    "a10",
    "a10g",
    "rtx-4090",
    "rtx-pro-6000",
    "mi300x",
    "mi325x",
    "cpu",
]
TABLE = Path(__file__).parents[2] / ".." / "shared" / "data" / "hardware" / "gpus.csv"
# The columns of the shared table that keep their meaning, with the factor to base units.
COLUMNS = {
    "bf16_flops": ("bf16_fp16_dense_tflops", 1e12),
    "fp8_flops": ("fp8_dense_tflops", 1e12),
    "memory_bytes": ("mem_bytes", 1),
    "memory_bandwidth": ("mem_bw_GBs", 1e9),
    "scaleup_bandwidth": ("scaleup_unidir_GBs", 1e9),
    "tdp": ("tdp_w", 1),
}


def test_every_contract_name_loads() -> None:
    assert set(CONTRACT) <= set(gpu_names())
    for name in CONTRACT:
        assert load_gpu(name).name == name


@pytest.mark.parametrize("name", gpu_names())
def test_every_known_number_has_a_unit_and_a_source(name: str) -> None:
    gpu = load_gpu(name)
    for key, fact in gpu.facts.items():
        assert fact.unit, key
        if fact.value is not None:
            assert fact.source in gpu.sources, key
    assert set(gpu.efficiencies) <= set(EFFICIENCY_DEFAULTS)


@pytest.mark.skipif(not TABLE.exists(), reason="../shared/data/hardware/gpus.csv is not here")
@pytest.mark.parametrize(
    ("row_name", "name"),
    [
        ("H100-SXM", "h100-sxm"),
        ("A100-80GB-SXM", "a100-sxm-80gb"),
        ("B200-SXM", "b200-sxm"),
        ("L40S", "l40s"),
        ("H20", "h20"),
    ],
)
def test_facts_agree_with_the_shared_table(row_name: str, name: str) -> None:
    with TABLE.open(encoding="utf-8") as file:
        row = next(row for row in csv.DictReader(file) if row["gpu"] == row_name)
    gpu = load_gpu(name)
    for fact, (column, factor) in COLUMNS.items():
        expected = float(row[column]) * factor if row[column] else None
        assert gpu.get(fact) == (None if expected is None else pytest.approx(expected, rel=1e-9)), fact


def test_known_conflicts_are_resolved_to_dense_numbers() -> None:
    assert load_gpu("l40s").require("fp8_flops") == pytest.approx(733e12)
    assert load_gpu("mi300x").require("bf16_flops") == pytest.approx(1307.4e12)
    assert load_gpu("a10").require("memory_bytes") == pytest.approx(24e9)


def test_an_alias_in_any_case_finds_the_profile() -> None:
    assert load_gpu("H100-SXM-80GB").name == load_gpu("h100").name == "h100-sxm"


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"unknown GPU 'h100-sx' \(did you mean 'h100-sxm'\?\); known: a10, "):
        load_gpu("h100-sx")


def test_an_unknown_fact_is_none_and_refused_when_required() -> None:
    cpu = load_gpu("cpu")
    assert cpu.get("memory_bandwidth") is None
    with pytest.raises(InputError, match="GPU 'cpu': memory_bandwidth is unknown"):
        _ = cpu.memory_bandwidth


def test_weights_without_a_matching_unit_run_at_the_16_bit_peak() -> None:
    assert load_gpu("a100-sxm-80gb").peak_flops("fp8") == pytest.approx(312e12)
    assert load_gpu("h100-sxm").peak_flops("fp8") == pytest.approx(1978e12)
    assert load_gpu("h100-sxm").peak_flops("mxfp4") == pytest.approx(989e12)


def test_links_fall_back_to_pcie_without_a_scale_up_link() -> None:
    assert load_gpu("l40s").link_bandwidth == pytest.approx(32e9)
    assert load_gpu("h100-sxm").link_bandwidth == pytest.approx(450e9)


def test_a_profile_of_ones_own_is_read_from_a_path(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "name: mine\nfacts:\n  memory_bandwidth: {value: 2e12, unit: B/s, source: null}\n", encoding="utf-8"
    )
    assert load_gpu(str(file)).memory_bandwidth == 2e12


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: x\n", "key 'facts' must be a mapping"),
        ("name: x\nfacts: {tdp: 3}\n", "facts.tdp must be"),
        ("name: x\nfacts: {tdp: {value: -1, unit: W, source: null}}\n", "positive number or null"),
        ("name: x\nfacts: {}\nefficiencies: {gem: 0.5}\n", "unknown efficiency 'gem'"),
        ("name: x\nfacts: {}\nefficiencies: {gemm_memory: 1.5}\n", "must lie in"),
    ],
)
def test_a_wrong_profile_is_refused_with_its_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        load_gpu(str(file))
