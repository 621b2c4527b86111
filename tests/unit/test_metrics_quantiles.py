"""Exact sums and weighted quantiles."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.quantiles import describe, describe_weighted, exact_sum, jain_index, pack, weighted_quantile

values_and_counts = st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(0, 30)), min_size=1, max_size=60).filter(
    lambda pairs: any(count for _, count in pairs)
)


@given(values_and_counts, st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_weighted_quantiles_have_the_bits_of_numpy_on_the_expanded_values(pairs, q):
    values, counts = np.array([v for v, _ in pairs]), np.array([c for _, c in pairs])
    expected = np.quantile(np.repeat(values, counts), q)
    assert np.array_equal(weighted_quantile(*pack(values, counts), q), expected)


def test_weighted_quantiles_of_many_grid_gaps_are_bit_identical():
    rng = np.random.default_rng(1)
    values = np.rint(rng.lognormal(-4, 1, 5000) * 2**30) / 2**30
    counts = rng.integers(0, 60, 5000)
    q = np.linspace(0, 1, 1001)
    expected = np.quantile(np.repeat(values, counts), q)
    assert weighted_quantile(*pack(values, counts), q).tobytes() == expected.tobytes()


def test_a_quantile_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one value"):
        weighted_quantile(np.empty(0), np.empty(0, dtype=np.int64), [0.5])


def test_negative_multiplicities_are_refused():
    with pytest.raises(ValueError, match=">= 0"):
        pack(np.array([1.0]), np.array([-1]))


def test_a_sum_does_not_depend_on_the_order_of_its_terms():
    rng = np.random.default_rng(2)
    values = rng.lognormal(0, 8, 200_001)
    assert exact_sum(values) == exact_sum(values[::-1]) == math.fsum(values)


def test_packed_statistics_equal_those_of_the_expanded_values():
    rng = np.random.default_rng(3)
    values, counts = rng.exponential(1, 300), rng.integers(0, 9, 300)
    packed, plain = describe_weighted(*pack(values, counts)), describe(np.repeat(values, counts))
    assert packed.keys() == plain.keys()
    assert packed == pytest.approx(plain, rel=1e-13)
    assert [packed[k] for k in ("p50", "p99", "max")] == [plain[k] for k in ("p50", "p99", "max")]


def test_statistics_of_a_hand_worked_sample():
    found = describe(np.array([1.0, 2.0, 3.0, 4.0]))
    assert found["mean"] == 2.5
    assert found["std"] == math.sqrt(1.25)
    assert (found["min"], found["p50"], found["max"]) == (1.0, 2.5, 4.0)
    assert found["p90"] == pytest.approx(3.7)


def test_no_value_has_no_statistics():
    assert set(describe(np.empty(0)).values()) == {None}
    assert set(describe_weighted(np.empty(0), np.empty(0, dtype=np.int64)).values()) == {None}


@pytest.mark.parametrize(("shares", "index"), [([1, 1, 1, 1], 1.0), ([1, 0, 0, 0], 0.25), ([0, 0], None), ([], None)])
def test_jain_index_is_one_for_equal_shares_and_one_nth_for_a_single_taker(shares, index):
    assert jain_index(np.array(shares, dtype=np.float64)) == index
