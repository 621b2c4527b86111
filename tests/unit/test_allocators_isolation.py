"""Tenants that share no cached prefixes, the price of that, and memory saved by sharing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_runs import build_rows, run_rows

from sim.config import experiment_from_values
from sim.experiment import run
from sim.isolation import isolated_spans, isolation_price, salted
from sim.memory_shares import cache_details
from sim.workload.base import Ragged, Workload


def workload(ids: list[list[int]], tenants: list[str | None], size: int = 4) -> Workload:
    return Workload(
        arrival_time=np.arange(len(ids), dtype=float),
        num_prompt_tokens=np.array([size * len(row) for row in ids]),
        num_output_tokens=np.ones(len(ids), dtype=np.int64),
        max_output_tokens=np.ones(len(ids), dtype=np.int64),
        hash_ids=Ragged(np.array([x for row in ids for x in row]), np.cumsum([0, *map(len, ids)])),
        hash_block_size=size,
        tenant=np.array(tenants, dtype=object),
    )


def test_price_by_hand() -> None:
    """Four prompts of two blocks that begin alike, two by each tenant: 3 heads are hit shared, 2 apart, of 8 blocks."""
    found = isolation_price(workload([[1, 2], [1, 3], [1, 4], [1, 5]], ["A", "A", "B", "B"]))
    assert found == {"ideal_hit_rate_shared": 3 / 8, "ideal_hit_rate_isolated": 2 / 8, "price": 1 / 8}


def test_salted_ids_are_equal_within_a_tenant_only() -> None:
    apart = salted(workload([[7, 9], [7, 8], [7, 9]], ["A", "A", None])).hash_ids
    assert apart is not None
    rows = [apart.row(i).tolist() for i in range(3)]
    assert rows[0][0] == rows[1][0]
    assert len({*rows[0], *rows[1], *rows[2]}) == 5


def test_isolated_tenants_do_not_hit_each_other() -> None:
    ids, tenants = [1, 2, 3, 1, 2, 4, 1, 2, 5], ["A", "B", "A"]
    rows = [(12, 2)] * 3
    known: dict[str, Any] = {
        "hash_ids": Ragged(np.array(ids), np.array([0, 3, 6, 9])),
        "hash_block_size": 4,
        "block_size": 4,
        "prefix_caching": True,
        "tenant": np.array(tenants, dtype=object),
        "arrivals": [0.0, 10.0, 20.0],
    }
    assert run_rows(rows, **known).requests["num_cached_tokens"].tolist() == [0, 8, 8]
    simulation = build_rows(rows, **known)
    simulation.replicas[0].content_spans = isolated_spans(simulation.columns)
    assert simulation.run().requests["num_cached_tokens"].tolist() == [0, 0, 8]


def test_isolation_through_the_configuration() -> None:
    """The summary states the hits lost; the measured hit rates differ by about the price."""
    rates = {}
    for isolation in ("none", "tenant"):
        values = {
            "workload": {
                "num_requests": 200,
                "arrivals": {"process": "constant", "rate": 5.0},
                "prompt_tokens": {"distribution": "fixed", "value": 512},
                "output_tokens": {"distribution": "fixed", "value": 4},
                "prefix": {"groups": 5, "tokens": 512},
                "tenants": {"a": 1, "b": 1, "c": 1, "d": 1},
            },
            "cluster": {
                "pools": [{"model": "llama-3.1-8b", "gpu": "h100-sxm", "kv_cache": {"isolation": isolation}}],
            },
        }
        summary = run(experiment_from_values(values, Path())).summary
        rates[isolation] = summary["prefix_cache"]
    assert "isolation" not in rates["none"]
    price = rates["tenant"]["isolation"]["price"]
    assert price == pytest.approx(
        15 * 0.5 / 200, rel=0.4
    )  # 15 more first prompts of (tenant, group), half of each shared
    assert rates["none"]["hit_rate"] - rates["tenant"]["hit_rate"] == pytest.approx(price, rel=0.01)
    assert rates["none"]["block_hit_rate"] == pytest.approx(rates["none"]["hit_rate"])


def test_blocks_saved_by_sharing() -> None:
    """Two requests at once with the same three blocks and a fourth of their own: 3 of 8 references are saved."""
    rows = [(13, 3), (13, 3)]
    simulation = build_rows(
        rows,
        hash_ids=Ragged(np.array([1, 2, 3, 4, 1, 2, 3, 5]), np.array([0, 4, 8])),
        hash_block_size=4,
        block_size=4,
        prefix_caching=True,
    )
    result = simulation.run()
    replica = result.replicas[0]
    assert replica.shared_block_seconds == 3 * 3.0
    measured: Any = type("M", (), {"columns": {**result.requests, "num_prompt_tokens": np.array([13, 13])}})
    details = cache_details(result, measured, np.array([True, True]))
    assert details["shared_block_share"] == pytest.approx(3 / 8)
    assert details["block_hit_rate"] == 3 / 6
    assert details["evicted_blocks"] == {"capacity": 0, "preempted": 0, "dead": 0}
