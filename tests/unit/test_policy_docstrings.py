"""Every policy states its rule, its source, what it ignores, and what each parameter means."""

from __future__ import annotations

import re
from typing import Any

import pytest

import policies
from sim.cli.policies import describe, documentation, meaning, summary

KINDS = (
    "scheduler",
    "block_allocator",
    "eviction",
    "preemption",
    "admission",
    "length_predictor",
    "placement",
    "autoscaler",
)
ALL = [(kind, name) for kind in policies.KINDS for name in policies.table(kind)]
COMPLETE = [(kind, name) for kind in KINDS for name in policies.table(kind)]
# A source is said to be one, or is a paper with its year or software with its version in parentheses or behind a colon.
SOURCE = re.compile(r"Sources?:|\([^()]*(\b(19|20)\d\d\b|\b\d+\.\d+|[0-9a-f]{7,})[^()]*\)|arXiv \d")


def cls_of(kind: str, name: str) -> Any:
    return policies.table(kind)[name]


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_the_rule_is_one_line(kind: str, name: str) -> None:
    rule = summary(cls_of(kind, name))
    assert 10 < len(rule) <= 160
    assert rule.endswith(".")


@pytest.mark.parametrize(("kind", "name"), COMPLETE)
def test_source_and_what_is_ignored_are_stated(kind: str, name: str) -> None:
    text = documentation(cls_of(kind, name))
    assert SOURCE.search(text), f"{kind} {name} has no source"
    assert re.search(r"Ignores:|not modelled", text), f"{kind} {name} does not say what it ignores"


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_every_parameter_is_explained(kind: str, name: str) -> None:
    cls = cls_of(kind, name)
    silent = [field.name for field in policies.parameters(cls) if not meaning(cls, field.name)]
    assert not silent
    assert describe(kind, name, cls)["rule"] == summary(cls)
