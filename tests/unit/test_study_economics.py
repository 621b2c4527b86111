"""Plans: value and cost of cached tokens, power bounds, the error band, the nearest candidate that does."""

from __future__ import annotations

from typing import Any

import pytest

from sim.study.economics import economics_row, error_band, nearest_feasible, power_row
from sim.study.plan_config import Facility, TokenPrices
from sim.study.search import Candidate

SUMMARY: dict[str, Any] = {
    "duration": 1800.0,
    "num_prompt_tokens": 4_000_000,
    "num_output_tokens": 500_000,
    "cost": {"energy_kwh": 1.4},
    "prefix_cache": {"num_hit_tokens": 3_000_000, "saved_prefill_seconds": 90.0},
}
PRICES = TokenPrices(input=1.0, cached_input=0.1, output=4.0)


def test_cached_tokens_have_their_own_price() -> None:
    """By hand: 1 M computed at 1, 3 M cached at 0.1 and 0.5 M of output at 4 USD per million, in half an hour."""
    row = economics_row(SUMMARY, 5.0, 2.5, 2, PRICES)
    assert row["token_value_per_hour"] == pytest.approx(2 * (1.0 + 0.3 + 2.0))
    assert row["cache_discount_per_hour"] == pytest.approx(2 * 3 * 0.9)
    assert row["margin_per_hour"] == pytest.approx(6.6 - 5.0)
    assert row["cached_input_share"] == 0.75
    # 90 s of prefill on two GPUs in 1800 s: 5 % of their price.
    assert row["gpu_cost_saved_by_cache_per_hour"] == pytest.approx(0.05 * 2 * 2.5)


def test_without_a_price_of_its_own_a_cached_token_costs_as_any() -> None:
    plain = economics_row(SUMMARY, 5.0, 2.5, 2, TokenPrices(input=1.0, output=4.0))
    assert plain["cache_discount_per_hour"] == 0.0
    assert plain["token_value_per_hour"] == pytest.approx(2 * (4.0 + 2.0))


def test_what_is_unknown_is_absent_or_null() -> None:
    unhashed = {**SUMMARY, "prefix_cache": {"num_hit_tokens": None, "saved_prefill_seconds": None}}
    row = economics_row(unhashed, 5.0, 2.5, 1, None)
    assert row == {"cached_input_share": None, "gpu_cost_saved_by_cache_per_hour": None}
    assert "max_power_kw" not in power_row(SUMMARY, 4, None, None)
    assert "carbon_kg_per_million_output_tokens" not in power_row(SUMMARY, 4, 700.0, Facility(pue=1.2))
    unknown = {**SUMMARY, "cost": {"energy_kwh": None}}
    assert power_row(unknown, 4, 700.0, None) == {"max_power_kw": 2.8}


def test_power_energy_and_carbon() -> None:
    """4 x 700 W x 1.25 = 3.5 kW at most; 1.4 kWh x 1.25 for half a million tokens: 3.5 kWh, at 0.4 kg 1.4 kg."""
    row = power_row(SUMMARY, 4, 700.0, Facility(pue=1.25, carbon_intensity=0.4))
    assert row["max_power_kw"] == pytest.approx(3.5)
    assert row["energy_kwh_per_million_output_tokens"] == pytest.approx(3.5)
    assert row["carbon_kg_per_million_output_tokens"] == pytest.approx(1.4)


@pytest.mark.parametrize(
    ("replicas", "headroom", "p90", "band"),
    [(4, 0.0, 0.25, [3, 5]), (4, 0.25, 0.25, [3, 4]), (1, 0.5, 0.1, [1, 1]), (10, 0.0, 0.0, [10, 10])],
)
def test_the_band_covers_the_answer(replicas: int, headroom: float, p90: float, band: list[int]) -> None:
    found = error_band(replicas, headroom, {"median": p90 / 2, "p90": p90}, 2.0, spare=1)
    assert found is not None
    assert found["replicas"] == band
    assert found["cost_per_hour"] == [2.0 * (number + 1) for number in band]
    assert error_band(replicas, None, {"p90": p90}, 2.0, 0) is None
    assert error_band(replicas, headroom, None, 2.0, 0) is None


def candidate(index: int, high: int | None, price: float, **values: Any) -> Candidate:
    return Candidate(index, values, lambda replicas: (replicas * price,), high=high)


def test_the_nearest_change_is_the_fewest_then_the_cheapest() -> None:
    wrong = candidate(0, None, 1.0, gpu="l4", tensor_parallel=1)
    others = [
        candidate(1, 1, 9.0, gpu="h100-sxm", tensor_parallel=1),
        candidate(2, 3, 2.0, gpu="l4", tensor_parallel=2),
        candidate(3, 1, 0.1, gpu="l40s", tensor_parallel=2),
        candidate(4, None, 0.1, gpu="l4", tensor_parallel=4),
    ]
    assert nearest_feasible(wrong, [wrong, *others]) == "tensor_parallel: 2: 3 replicas do"
    assert nearest_feasible(wrong, [wrong, others[3]]) is None
