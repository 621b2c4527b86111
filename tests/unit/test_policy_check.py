"""`servesim policies check`: good policies pass, and each way of breaking the rules fails the check that is for it."""

from __future__ import annotations

import itertools
import random
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from policies import _template
from policies.scheduler.fcfs import Fcfs
from sim import policy_check
from sim.errors import InputError
from sim.policy_check import CHECKS, Subject, check_policy, kind_of


@dataclass
class Valid:
    """Everybody to the first replica."""

    def route(self, request: Any, cluster: Any, now: float) -> int:
        return 0


class BeyondTheEnd(Valid):
    def route(self, request: Any, cluster: Any, now: float) -> int:
        return len(cluster.replicas)


class GlobalGenerator(Valid):
    def route(self, request: Any, cluster: Any, now: float) -> int:
        return random.randrange(len(cluster.replicas))


class Remembers(Valid):
    """Keeps its state in the class, so that a second simulation begins where the first ended."""

    turn = itertools.count()

    def route(self, request: Any, cluster: Any, now: float) -> int:
        return next(self.turn) % 7 % len(cluster.replicas)


class Crashes(Valid):
    def route(self, request: Any, cluster: Any, now: float) -> int:
        return {}["missing"]  # type: ignore[no-any-return]


@dataclass
class Refuses(Valid):
    def schedule(self, batch: Any) -> None:
        """Never does anything."""

    def queue_key(self, seq: Any) -> None:
        return None


@dataclass
class AnswersByTheCall(Fcfs):
    """A scheduler whose answer depends on how often it was asked, which fast-forward changes."""

    def __post_init__(self) -> None:
        self.calls = 0

    def admit_waiting(self, batch: Any, cap: int) -> None:
        self.calls += 1
        if self.calls % 3:
            super().admit_waiting(batch, cap)


def module_of(*classes: type) -> Callable[[], Iterator[str]]:
    def fixture() -> Iterator[str]:
        module = types.ModuleType("policies_under_test")
        for cls in classes:
            setattr(module, cls.__name__, cls)
        sys.modules[module.__name__] = module
        yield module.__name__
        del sys.modules[module.__name__]

    return fixture


policies_under_test = pytest.fixture(
    module_of(Valid, BeyondTheEnd, GlobalGenerator, Remembers, Crashes, Refuses, AnswersByTheCall), name="under_test"
)


def result(kind: str, name: str, title: str) -> policy_check.Check:
    return policy_check._carry_out(title, Subject(kind, name, {}), CHECKS[title])


def test_the_template_is_short_and_passes_every_check() -> None:
    lines = Path(str(_template.__file__)).read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 25
    checks = check_policy("router", "policies._template:LeastKvUsage", {"step": 0.1})
    assert [check.name for check in checks] == list(CHECKS)
    assert all(check.passed for check in checks), checks


@pytest.mark.parametrize(
    ("cls", "title", "says"),
    [
        (BeyondTheEnd, "empty input", "sent request 0"),
        (GlobalGenerator, "deterministic", "of request"),
        (Remembers, "ties", "two runs of equal requests differ"),
        (Crashes, "empty input", "KeyError"),
    ],
)
def test_a_broken_router_fails_the_check_for_its_fault(under_test: str, cls: type, title: str, says: str) -> None:
    check = result("router", f"{under_test}:{cls.__name__}", title)
    assert not check.passed
    assert says in check.detail


def test_a_valid_router_passes_what_the_broken_ones_fail(under_test: str) -> None:
    for title in ("empty input", "ties", "deterministic"):
        assert result("router", f"{under_test}:Valid", title).passed


def test_a_scheduler_that_serves_nobody_fails(under_test: str) -> None:
    assert not result("scheduler", f"{under_test}:Refuses", "empty input").passed


def test_a_scheduler_that_counts_its_calls_fails_against_stepping(under_test: str) -> None:
    check = result("scheduler", f"{under_test}:AnswersByTheCall", "fast-forward equals step by step")
    assert not check.passed
    assert "differ" in check.detail


def test_a_check_that_does_not_end_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(_: Subject) -> str:
        while True:
            pass

    monkeypatch.setattr(policy_check, "MOST_SECONDS", 0.05)
    check = policy_check._carry_out("endless", Subject("router", "random", {}), endless)
    assert check == policy_check.Check("endless", False, "did not end within 0.05 s: nothing makes progress")


@pytest.mark.parametrize("scheduler", ["sglang", "distserve"])
def test_a_prefill_step_between_last_token_and_surplus_step_does_not_stop_the_clock(scheduler: str) -> None:
    """Declared beyond true lengths, prefill-only steps, two batches in flight: once an endless loop."""
    for title in ("valid decisions", "fast-forward equals step by step"):
        check = result("scheduler", scheduler, title)
        assert check.passed, check


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("scheduler", "trtllm"),
        ("preemption", "most_output"),
        ("block_allocator", "radix"),
        ("eviction", "arc"),
        ("eviction", "policies.eviction.lfu:Lfu"),
        ("admission", "estimate_based"),
        ("length_predictor", "quantile"),
    ],
)
def test_policies_of_every_kind_can_be_checked(kind: str, name: str) -> None:
    for title in ("empty input", "no free blocks", "deterministic"):
        check = result(kind, name, title)
        assert check.passed, check


@pytest.mark.parametrize(
    ("name", "params", "roles"),
    [("colocated", {}, 1), ("always_split", {}, 3), ("by_prompt_length", {"threshold": 200}, 3)],
)
def test_a_policy_that_splits_is_given_pools_to_split_between(name: str, params: dict[str, Any], roles: int) -> None:
    subject = policy_check._subject("disaggregation", name, params)
    assert len(subject.roles) == roles
    for title in ("valid decisions", "no free blocks"):
        check = policy_check._carry_out(title, subject, CHECKS[title])
        assert check.passed, check


def test_the_kind_is_told_by_the_question() -> None:
    assert kind_of(Valid) == "router"
    assert kind_of(Refuses) == "scheduler"
    with pytest.raises(InputError, match="give --kind"):
        kind_of(object)


def test_unknown_kinds_and_parameters_are_the_callers_mistake() -> None:
    with pytest.raises(InputError, match="cannot be checked"):
        check_policy("placement", "x")
    with pytest.raises(InputError, match="is not a parameter"):
        check_policy("router", "round_robin", {"speed": 1})
