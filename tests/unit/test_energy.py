"""Energy: the fitted power against measured averages, a hand-worked run, and carbon from the grid's intensity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sim.build import build
from sim.config import experiment_from_values
from sim.energy import BUSY_SHARE, IDLE_SHARE, busy_watts
from sim.hardware import load_gpu
from sim.metrics import summarize
from sim.model import load_model

# Average power as a share of tdp, one prompt of 512 tokens and 128 output tokens: splitwise-sim's perf_model.csv.
MEASURED = [
    ("llama-2-70b", 2, 0.1969, 0.05486, 0.736),
    ("llama-2-70b", 4, 0.1270, 0.04499, 0.599),
    ("llama-2-70b", 8, 0.0870, 0.04290, 0.435),
    ("bloom-176b", 8, 0.1738, 0.04876, 0.635),
]


@pytest.mark.parametrize(("model", "gpus", "prompt_time", "token_time", "share"), MEASURED)
def test_power_of_measured_batches_is_within_10_percent(
    model: str, gpus: int, prompt_time: float, token_time: float, share: float
) -> None:
    gpu, spec = load_gpu("a100-sxm-80gb"), load_model(model)
    seconds = prompt_time + 127 * token_time
    bandwidth = 128 * spec.weight_bytes(gpus) / seconds / gpu.memory_bandwidth
    compute = 2 * spec.num_active_parameters / gpus * (512 + 127) / seconds / gpu.peak_flops("bf16")
    assert busy_watts(gpu, bandwidth, compute) == pytest.approx(share * 400, rel=0.10)


def test_power_never_exceeds_the_rated_power() -> None:
    gpu = load_gpu("h100-sxm")
    assert busy_watts(gpu, 0.0, 0.0) == pytest.approx(BUSY_SHARE * 700)
    assert busy_watts(gpu, 1.0, 1.0) == 700.0


def _summary(gpu: str, **more: Any) -> dict[str, Any]:
    values = {
        "workload": {"arrivals": {"process": "poisson", "rate": 1.0}, "num_requests": 5, **LENGTHS},
        "cluster": {"pools": [{"model": "llama-3.1-8b", "gpu": gpu, "replicas": 2}]},
        **more,
    }
    simulation = build(config := experiment_from_values(values, Path()))
    return summarize(simulation.run(), simulation.workload, config)


LENGTHS = {
    "prompt_tokens": {"distribution": "lognormal", "mean": 100, "p99": 300},
    "output_tokens": {"distribution": "lognormal", "mean": 20, "p99": 60},
}


def test_a_run_takes_between_idle_and_rated_power_and_carbon_is_energy_times_intensity() -> None:
    summary = _summary("h100-sxm", cost={"carbon_intensity": 0.4})
    cost = summary["cost"]
    rated = 0.7 * cost["gpu_hours"]  # kWh
    assert IDLE_SHARE * rated < cost["energy_kwh"] < rated
    assert cost["carbon_kg"] == pytest.approx(0.4 * cost["energy_kwh"])
    assert not [line for line in summary["warnings"] if line.startswith("cost.")]


def test_without_an_intensity_carbon_is_null_and_says_why() -> None:
    summary = _summary("h100-sxm")
    assert summary["cost"]["carbon_kg"] is None
    assert any("cost.carbon_intensity" in line for line in summary["warnings"])
