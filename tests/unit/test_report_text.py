"""Numbers as the report prints them."""

from __future__ import annotations

import pytest

from sim.report.text import count, digits, percent, rate, seconds


def plain(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (0.0, "0 s"),
        (4.2e-4, "420 µs"),
        (0.0123, "12.3 ms"),
        (0.99996, "1 s"),
        (1.2345, "1.23 s"),
        (59.9, "59.9 s"),
        (740.0, "12.3 min"),
        (9000.0, "2.5 h"),
        (None, "n/a"),
        (float("nan"), "n/a"),
    ],
)
def test_durations_have_three_digits_and_the_unit_that_fits(value, printed):
    assert plain(seconds(value)) == printed


@pytest.mark.parametrize(("value", "printed"), [(12345.6, "12,346"), (1.5, "1.5"), (0.00123, "0.00123"), (0, "0")])
def test_numbers_have_three_digits_and_separated_thousands(value, printed):
    assert digits(value) == printed


@pytest.mark.parametrize(
    ("value", "printed"),
    [(1.0, "100 %"), (0.999999, "99.99 %"), (0.5, "50 %"), (0.00001, "0.01 %"), (0.0, "0 %"), (None, "n/a")],
)
def test_a_share_is_never_rounded_to_all_or_nothing(value, printed):
    assert plain(percent(value)) == printed


def test_rates_and_counts():
    assert plain(rate(12.34, "req/s")) == "12.3 req/s"
    assert rate(None, "req/s") == count(None) == "n/a"
    assert count(1234567) == "1,234,567"
