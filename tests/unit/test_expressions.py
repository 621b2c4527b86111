"""Expressions of `expect` and `columns`: what they mean, what they refuse, what a failure says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import InputError, RunError
from sim.expressions import MissingMetric, check, evaluate, failures

SUMMARY: dict[str, Any] = {
    "ttft": {"p99": 1.5, "mean": 0.5},
    "num_output_tokens": 2_000_000,
    "cost": {"price": 4.0, "carbon_kg": None},
    "replicas": [{"name": "main-0", "utilization": 0.25}, {"name": "main-1", "utilization": 0.75}],
    "classes": {"chat-gold": {"e2e": {"p99": 3.0}}},
    "prefix_cache": None,
    "enabled": True,
}
NAMES = {**SUMMARY, "summary": SUMMARY}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("summary.ttft.p99 < 2.0", True),
        ("ttft.p99", 1.5),
        ("1e6 * cost.price / num_output_tokens", 2.0),
        ("-ttft.p99 + 2 ** 3", 6.5),
        ("0 < ttft.mean < 1 <= ttft.p99", True),
        ("ttft.mean > 1 or ttft.p99 > 1", True),
        ("not ttft.mean > 1 and ttft.p99 == 1.5", True),
        ("abs(1 - 3) + max(1, ttft.p99, 2) - min(1, 5)", 3.0),
        ("replicas[1].utilization - replicas[0].utilization", 0.5),
        ('classes["chat-gold"].e2e.p99', 3.0),
        ("enabled", True),
    ],
)
def test_value_of_an_expression(text: str, value: float | bool) -> None:
    check(text)
    assert evaluate(text, NAMES) == value


def test_flat_names_with_dots_are_found_like_nested_ones() -> None:
    assert evaluate("ttft.p99 + kv_cache.mean_usage", {"ttft.p99": 1.0, "kv_cache": {"mean_usage": 0.5}}) == 1.5


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.floats(0.001, 1e6))
def test_arithmetic_is_that_of_python_floats(a: float, b: float, c: float) -> None:
    assert evaluate("a + b * a - a / c", {"a": a, "b": b, "c": c}) == a + b * a - a / c


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "ttft.p99 if 1 else 2",
        "[x for x in (1,)]",
        "lambda: 1",
        "'text'",
        "True",
        "ttft.p99 <",
        "",
        "ttft[0:1]",
        "f(1)",
        "abs(1, 2)",
        "min()",
        "row(1).ttft",
        "row(x=1)",
        "row(x=f(1)).ttft",
        "row(**a).ttft",
        "a is b",
        "1 % 2",
        "(a := 1)",
        "f'{a}'",
        "1+" * 2000 + "1",
        "2j",
    ],
)
def test_everything_else_is_refused_before_names_are_looked_up(text: str) -> None:
    with pytest.raises(InputError) as caught:
        check(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cost.carbon_kg < 1", "metric 'cost.carbon_kg' is null"),
        ("prefix_cache.hit_rate > 0", "metric 'prefix_cache.hit_rate' is null"),
        ("ttft.p98 < 1", "there is no metric 'ttft.p98' (did you mean 'p99'?)"),
        ("replicas[7].utilization < 1", "there is no metric 'replicas[7].utilization'"),
        ("ttft < 1", "'ttft' is not a number but a group of metrics: p99, mean"),
        ("replicas[0].name < 1", "'replicas[0].name' is not a number but the text 'main-0'"),
    ],
)
def test_a_missing_or_null_metric_is_named(text: str, message: str) -> None:
    with pytest.raises(MissingMetric) as caught:
        evaluate(text, NAMES)
    assert str(caught.value) == message


@pytest.mark.parametrize("text", ["1 / 0", "9 ** 9 ** 9", "(-8) ** 0.5", "1e308 * 10 * 0"])
def test_arithmetic_that_has_no_value_is_an_error_of_the_run(text: str) -> None:
    with pytest.raises(RunError):
        evaluate(text, {})


def test_row_hands_its_arguments_to_the_study() -> None:
    asked: list[dict[str, Any]] = []

    def pick(arguments: dict[str, Any]) -> dict[str, Any]:
        asked.append(arguments)
        return {"itl": {"p99": 0.25}}

    text = "row(max_num_batched_tokens=512, policy=round_robin, caching=true, scale=-1.5).itl.p99 < 1"
    assert evaluate(text, {}, pick) is True
    assert asked == [{"max_num_batched_tokens": 512, "policy": "round_robin", "caching": True, "scale": -1.5}]


def test_row_outside_a_study_is_refused() -> None:
    with pytest.raises(InputError, match="only known in a study"):
        evaluate("row(x=1).itl.p99", {})


def test_failures_name_the_expression_and_its_values() -> None:
    found = failures(
        ["ttft.p99 < 2", "ttft.p99 < 1", "cost.carbon_kg < 1", "ttft.p99 < 1 and cost.carbon_kg < 1"], NAMES
    )
    assert found == [
        "ttft.p99 < 1: does not hold (ttft.p99 = 1.5)",
        "cost.carbon_kg < 1: metric 'cost.carbon_kg' is null",
        "ttft.p99 < 1 and cost.carbon_kg < 1: does not hold (ttft.p99 = 1.5, cost.carbon_kg = null)",
    ]
