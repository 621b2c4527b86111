"""The summary of the network: every byte of KV that was moved is on the links that lead there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sim.config import experiment_from_values
from sim.experiment import RunOptions, run

NUM_PROMPT_TOKENS = 500


def summary(split: bool, stepping: bool = False) -> dict[str, Any]:
    pool = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "kv_cache": {"prefix_caching": False}}
    roles = ("prefill", "decode") if split else ("mixed", "mixed")
    pools = [{**pool, "name": "p", "role": roles[0]}, {**pool, "name": "d", "role": roles[1]}]
    values = {
        "workload": {
            "num_requests": 20,
            "arrivals": {"process": "poisson", "rate": 10.0},
            "prompt_tokens": {"distribution": "fixed", "value": NUM_PROMPT_TOKENS},
            "output_tokens": {"distribution": "fixed", "value": 10},
        },
        "cluster": {
            "pools": pools,
            "disaggregation": "always_split" if split else "colocated",
            "network": {"gpus_per_node": 1, "nics_per_node": 1, "link": "ethernet-10"},
        },
    }
    return run(experiment_from_values(values, Path(".")), RunOptions(step_by_step=stepping)).summary


def test_all_kv_crosses_the_adapters_of_both_nodes() -> None:
    """20 prompts of 500 tokens, 131,072 bytes each, over one adapter of 10 Gb/s at 75 % out and one in."""
    found = summary(split=True)
    links = {each["link"]: each for each in found["network"]["links"]}
    assert found["network"]["num_links"] == len(links) == 4
    for name in ("node0.nic0.ethernet-10.out", "node1.nic0.ethernet-10.in"):
        assert links[name]["num_bytes"] == pytest.approx(20 * NUM_PROMPT_TOKENS * 131072)
        assert links[name]["busy_time"] * 0.9375e9 >= links[name]["num_bytes"] * (1 - 1e-9)
        assert 0 < links[name]["utilization"] <= links[name]["busy_share"] <= 1
    assert any("ethernet-10: assumed, not measured" in warning for warning in found["warnings"])
    assert found == summary(split=True, stepping=True)


def test_without_transfers_nothing_is_said() -> None:
    found = summary(split=False)
    assert "network" not in found
    assert not any("ethernet" in warning for warning in found["warnings"])
