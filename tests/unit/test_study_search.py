"""The search of a plan against exhaustive search, on candidates whose needs are known; and its bounds."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.errors import InputError
from sim.study.bounds import Demand
from sim.study.folder import study_folder
from sim.study.plan import Planner, _candidates
from sim.study.plan_config import load_plan, scaled
from sim.study.search import Candidate, Key, Search, Trial
from sim.study.sweep import Workers


def candidate(index: int, price: float, low: int = 0) -> Candidate:
    def key(replicas: int) -> Key:
        return (replicas * price, float(replicas))

    return Candidate(index, {"gpu": f"g{index}"}, key, low=low)


Needs = list[tuple[int, int]]  # price of a replica, replicas needed


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 40)), min_size=1, max_size=12), st.integers(1, 4))
def test_the_winner_is_the_one_that_asking_everything_would_find(needs: Needs, at_once: int) -> None:
    most, asked = 24, []

    def ask(wave: list[tuple[Candidate, int]]) -> list[Trial]:
        asked.extend((c.index, replicas) for c, replicas in wave)
        return [Trial(replicas, replicas >= needs[c.index][1]) for c, replicas in wave]

    generator = random.Random(str(needs))
    found = [candidate(i, price, generator.randrange(min(need, most))) for i, (price, need) in enumerate(needs)]
    winner = Search(found, most, at_once).run(ask)
    possible = [(price * need, float(need)) for price, need in needs if need <= most]
    if not possible:
        assert winner is None
        return
    assert winner is not None
    assert winner.high == needs[winner.index][1]
    assert winner.key(winner.high) == min(possible)
    assert len(asked) == len(set(asked))  # nothing is simulated twice


def test_once_something_does_each_other_candidate_costs_one_trial() -> None:
    asked: list[int] = []

    def ask(wave: list[tuple[Candidate, int]]) -> list[Trial]:
        asked.extend(c.index for c, _ in wave)
        return [Trial(replicas, c.index == 0 and replicas >= 2) for c, replicas in wave]

    found = [candidate(0, 1.0)] + [candidate(i, 1.5) for i in range(1, 50)]
    assert Search(found, 64, 1).run(ask) is found[0]
    assert len(asked) <= 2 + 1 + 49


def test_a_winner_that_fails_afresh_needs_more_or_loses() -> None:
    needs = {0: 2, 1: 3}

    def ask(wave: list[tuple[Candidate, int]]) -> list[Trial]:
        return [Trial(replicas, replicas >= needs[c.index]) for c, replicas in wave]

    search = Search([candidate(0, 1.0), candidate(1, 0.9)], 8, 1)
    winner = search.run(ask)
    assert winner is not None
    assert (winner.index, winner.high) == (0, 2)
    search.refute(winner)
    needs[0] = 4
    second = search.run(ask)
    assert second is not None
    assert (second.index, second.high) == (1, 3)


# --- files and bounds ---

PLAN = {
    "workload": {
        "num_requests": 200,
        "arrivals": {"process": "poisson", "rate": 20.0},
        "prompt_tokens": {"distribution": "fixed", "value": 500},
        "output_tokens": {"distribution": "fixed", "value": 50},
    },
    "slo": {"ttft": 1.0, "tpot": 0.05, "attainment": 0.99},
    "candidates": {"model": "llama-3.1-8b", "gpu": ["h100-sxm"]},
    "prices": {"h100-sxm": 2.0},
}
Write = Callable[..., Path]


@pytest.fixture
def write_plan(tmp_path: Path) -> Write:
    def write(**changes: Any) -> Path:
        path = tmp_path / "plan.yaml"
        path.write_text(yaml.safe_dump({**PLAN, **changes}, sort_keys=False), encoding="utf-8")
        return path

    return write


def candidates_of(path: Path) -> list[Candidate]:
    return _candidates(load_plan(path))[0]


def test_candidates_are_every_combination(write_plan: Write) -> None:
    choices = {"model": "llama-3.1-8b", "gpu": ["h100-sxm", "l40s"], "scheduler.max_num_seqs": [64, 128, 256]}
    plan = load_plan(write_plan(candidates=choices, exclude=[{"gpu": "l40s", "max_num_seqs": 256}]))
    assert len(plan.combinations) == 5
    pool = plan.experiment(plan.combinations[0], 3, 7)["cluster"]["pools"][0]
    assert pool == {
        "name": "main",
        "replicas": 3,
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "scheduler": {"max_num_seqs": 64},
    }


def test_users_and_growth_are_a_rate(write_plan: Write) -> None:
    lengths = {key: PLAN["workload"][key] for key in ("prompt_tokens", "output_tokens")}  # type: ignore[index]
    workload = {"users": 6000, "requests_per_user_hour": 6, "growth": 1.5, **lengths}
    plan = load_plan(write_plan(workload=workload))
    assert plan.workload["arrivals"] == {"process": "poisson", "rate": 15.0}


def test_load_scales_a_trace_and_a_rate() -> None:
    assert scaled({"trace": "x", "rate_scale": 2.0}, 1.5) == {"trace": "x", "rate_scale": 3.0}
    assert scaled({"arrivals": {"process": "poisson", "rate": 2.0}}, 2.0)["arrivals"]["rate"] == 4.0
    with pytest.raises(InputError, match="without a rate"):
        scaled({"arrivals": {"process": "closed_loop", "concurrency": 4}}, 2.0)


def test_a_model_that_does_not_fit_names_the_parallelism_that_does(write_plan: Write) -> None:
    choices = {"model": "llama-3.1-70b", "gpu": "h100-sxm", "tensor_parallel": [1, 4]}
    small, large = candidates_of(write_plan(candidates=choices))
    assert "does not fit on 1 x h100-sxm" in str(small.problem)
    assert small.change in ("tensor_parallel: 2 fits", "tensor_parallel: 4 fits")
    assert large.problem is None


def test_a_target_below_the_time_of_a_lone_request_is_out_of_reach(write_plan: Write) -> None:
    (slow,) = candidates_of(write_plan(slo={"tpot": 0.001, "attainment": 0.99}))
    assert "TPOT of a request alone" in str(slow.problem)
    assert "slo.tpot" in str(slow.change)
    (late,) = candidates_of(write_plan(slo={"ttft": {"p99": 0.001}}))
    assert "TTFT of a request alone" in str(late.problem)


def test_the_work_asks_for_replicas_in_proportion_to_the_load(write_plan: Write) -> None:
    loads = []
    for rate in (200.0, 400.0):
        workload = {**PLAN["workload"], "num_requests": 4000, "arrivals": {"process": "poisson", "rate": rate}}  # type: ignore[dict-item]
        (found,) = candidates_of(write_plan(workload=workload))
        loads.append(found.load["compute"])
    assert loads[1] == pytest.approx(2 * loads[0], rel=0.05)
    assert loads[1] > 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"candidates": {"model": "llama-3.1-8b", "gpu": "gb300"}, "prices": {}}, "price of gb300"),
        ({"candidates": {"model": "llama-3.1-8b", "gpu": "h100-sxm", "replicas": [1]}}, "replicas: the plan finds it"),
        ({"candidates": {"model": "llama-3.1-8b", "gpu": "h100-sxm", "schedular.policy": ["fcfs"]}}, "schedular"),
        ({"candidates": {"model": "llama-3.1-8b", "gpu": []}}, "none is left"),
        ({"objective": "speed"}, "allowed: cost, gpus, energy"),
        ({"workload": {"users": -5, "requests_per_user_hour": 6}}, "workload.users: must be a number > 0"),
        ({"slo": {"ttft": "fast"}}, "slo.ttft"),
        ({"slos": {}}, "slos: is not a known key"),
    ],
)
def test_a_wrong_plan_is_refused(changes: dict[str, Any], words: str, write_plan: Write) -> None:
    with pytest.raises(InputError, match=words):
        candidates_of(write_plan(**changes))


def test_the_busiest_part_is_where_most_tokens_a_second_arrive() -> None:
    arrival = np.concatenate([np.arange(0, 100, 1.0), np.arange(100, 110, 0.1), np.arange(110, 210, 1.0)])
    demand = Demand(np.full(300, 10.0), np.full(300, 5.0), 209.0, False, arrival)
    assert demand.busiest(80) == pytest.approx(100.0, abs=2.1)
    assert demand.busiest(300) == 0.0


def test_a_screening_run_is_a_part_of_the_trace_that_refutes_only_beyond_what_may_be_late(tmp_path: Path) -> None:
    rows = [f"{0.01 * i:.3f},{200},{20}" for i in range(2500)]
    (tmp_path / "t.csv").write_text("arrival_time,num_prompt_tokens,num_output_tokens\n" + "\n".join(rows) + "\n")
    path = tmp_path / "plan.yaml"
    slo = {"ttft": 0.2, "attainment": 0.9}
    path.write_text(yaml.safe_dump({**PLAN, "workload": {"trace": "t.csv", "rate_scale": 2.0}, "slo": slo}))
    plan = load_plan(path)
    (found,), demand = _candidates(plan)
    with study_folder(tmp_path / "o", "plan.yaml", "plan.json", False) as folder:
        planner = Planner(plan, demand, folder, Workers(1), None)
        assert planner.screen_size() == (500, pytest.approx(250.0))
        config = planner.config(found, 1, 1, limit=500)
        assert (config.workload.limit, config.workload.rate_scale) == (500, 2.0)
        (trial,) = planner.ask([(found, 1)])
        whole = planner.simulate([(found, 1, planner.seeds(), 1.0)])[0]
    assert trial.met == whole.met
