"""`policies.make`: names, dotted paths, parameters and what the engine supplies, each with a message that helps."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import policies
from sim.errors import InputError


@dataclass
class Example:
    """A policy with one field of every type that YAML can give."""

    required: int
    share: float = 0.5
    name: str = "x"
    flag: bool = False
    limit: int | None = None
    weights: tuple[float, ...] = (1.0,)
    table: dict[str, int] = field(default_factory=dict)
    rng: np.random.Generator | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"share must be from 0 to 1 (got {self.share})")


@pytest.fixture
def example() -> Iterator[str]:
    """The dotted path of `Example` in a module of the user's."""
    module = types.ModuleType("my_policies")
    module.__dict__["Example"] = Example
    sys.modules["my_policies"] = module
    yield "my_policies:Example"
    del sys.modules["my_policies"]


def make(path: str, **supplied: Any) -> Any:
    params = supplied.pop("params", {"required": 1})
    return policies.make("router", path, params, "e.yaml:3:1: cluster.router", **supplied)


def test_parameters_are_the_fields_of_the_dataclass(example: str) -> None:
    params = {"required": 3, "share": 1, "weights": [1, 2.5], "table": {"a": 1}, "limit": None, "flag": True}
    made = make(example, params=params)
    assert (made.required, made.share, made.weights, made.table, made.limit, made.flag) == (
        3,
        1.0,
        (1.0, 2.5),
        {"a": 1},
        None,
        True,
    )
    assert isinstance(made.share, float)


def test_what_the_engine_supplies_reaches_a_field_of_that_name_only(example: str) -> None:
    rng = np.random.default_rng(0)
    assert make(example, rng=rng, unheard_of=1).rng is rng


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "e.yaml:3:1: cluster.router.required: is required by"),
        ({"required": 1, "shar": 1}, ".shar: is not a parameter of 'my_policies:Example' (did you mean 'share'?)"),
        ({"required": 1, "rng": 1}, ".rng: is not a parameter"),
        ({"required": "1"}, ".required: must be a valid integer (got '1')"),
        ({"required": True}, ".required: must be a valid integer (got True)"),
        ({"required": 1, "weights": "abc"}, ".weights: must be a valid array (got 'abc')"),
        ({"required": 1, "share": 2}, "cluster.router: my_policies:Example: share must be from 0 to 1 (got 2.0)"),
    ],
)
def test_a_wrong_parameter_is_named(example: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        make(example, params=params)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("round_robbin", "unknown router 'round_robbin' (did you mean 'round_robin'?); known: "),
        ("no_such_module:X", "module 'no_such_module' cannot be imported"),
        ("my_policies:Exampel", "'my_policies' has no class 'Exampel' (did you mean 'Example'?)"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(example: str, path: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        make(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith("e.yaml:3:1: cluster.router: ")


def test_every_policy_that_ships_has_a_rule_and_typed_parameters() -> None:
    for kind in policies.KINDS:
        for name, cls in policies.table(kind).items():
            assert cls.__doc__, f"{kind} {name}"
            for parameter in policies.parameters(cls):
                assert policies.annotation(cls, parameter.name) is not Any, f"{kind} {name}.{parameter.name}"
