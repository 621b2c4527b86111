"""SLOs: the forms, who meets them, percentile verdicts with misses."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from sim.errors import InputError
from sim.slo import meets, read_slo, verdicts

NAN = float("nan")
COLUMNS = {
    "ttft": np.array([0.1, 0.2, 0.9, 2.0, NAN]),
    "tpot": np.array([0.01, NAN, 0.04, 0.01, NAN]),
    "max_itl": np.array([0.02, NAN, 0.30, 0.01, NAN]),
    "e2e": np.array([1.0, 0.2, 3.0, 4.0, NAN]),
    "request_class": np.array(["chat", "chat", "batch", "batch", None], dtype=object),
}
FINISHED = np.array([True, True, True, True, False])
MEASURED = SimpleNamespace(columns=COLUMNS, finished=FINISHED, offered=np.ones(5, dtype=bool))


def good(slo):
    return meets(read_slo(slo), COLUMNS, FINISHED).tolist()


def rows(slo):
    return verdicts(read_slo(slo), MEASURED, lambda mask: (np.array([0.01, 0.3]), np.array([98, 2])))


def test_a_request_meets_when_it_finishes_within_every_limit():
    assert good({"ttft": 1.0, "tpot": 0.03}) == [True, True, False, False, False]


def test_a_limit_is_met_by_equality():
    assert good({"ttft": 0.9})[2]


def test_one_output_token_cannot_miss_tpot_or_itl():
    assert good({"tpot": 1e-9, "itl": 1e-9}) == [False, True, False, False, False]


def test_an_itl_limit_holds_for_every_gap_of_a_request():
    assert good({"itl": 0.1}) == [True, True, False, True, False]


@pytest.mark.parametrize(
    "slo",
    [
        [{"request_class": "chat", "ttft": 0.15}, {"ttft": 1.0}],
        {"ttft": 1.0, "classes": {"chat": {"ttft": 0.15}}},
    ],
)
def test_a_class_has_its_own_limits_and_the_others_the_general_ones(slo):
    assert good(slo) == [True, False, True, False, False]


def test_a_percentile_form_holds_requests_to_the_highest_percentile():
    assert good({"ttft": {"p99": 1.0, "p50": 0.15}}) == [True, True, True, False, False]


def test_a_mean_holds_no_single_request():
    assert good({"ttft": {"mean": 0.1}}) == [True, True, True, True, False]


def test_an_attainment_is_judged_over_all_offered_requests():
    (limit, attainment) = rows({"ttft": 1.0, "attainment": 0.6})
    assert (limit["share"], limit["met"]) == (3 / 5, None)
    assert (attainment["value"], attainment["met"]) == (3 / 5, True)


def test_a_percentile_counts_misses_as_infinitely_late():
    half, high = rows({"ttft": {"p50": 1.0, "p99": 10.0}})
    assert (half["value"], half["met"]) == (0.9, True)
    assert (high["value"], high["met"]) == (None, False)


def test_a_mean_is_infinite_as_soon_as_one_request_is_missed():
    assert [row["met"] for row in rows({"ttft": {"mean": 1e9}})] == [False]


def test_a_percentile_of_itl_is_that_of_the_pooled_gaps():
    low, high = rows({"itl": {"p90": 0.02, "p99": 0.02}})
    assert (low["value"], low["met"]) == (0.01, True)
    assert (high["value"], high["met"]) == (0.3, False)


def test_a_class_inherits_the_general_attainment():
    objectives = read_slo({"attainment": 0.9, "classes": {"chat": {"ttft": 1.0}}})
    assert [o.attainment for o in objectives] == [0.9, 0.9]


def test_no_slo_has_no_objective():
    assert read_slo(None) == []


@pytest.mark.parametrize(
    ("slo", "message"),
    [
        ({"tfft": 1.0}, "unknown metric 'tfft' (did you mean 'ttft'?)"),
        ({"ttft": {"q99": 1.0}}, "slo.ttft: unknown statistic 'q99'; allowed"),
        ({"ttft": {"p101": 1.0}}, "slo.ttft: unknown statistic 'p101'"),
        ("fast", "expected a mapping"),
    ],
)
def test_a_wrong_slo_names_what_is_wrong(slo, message):
    with pytest.raises(InputError) as error:
        read_slo(slo)
    assert message in str(error.value)
