"""From the `workload:` mapping to a workload: forms, independent streams, mixes, sessions, prefixes, cancellations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from sim.errors import InputError
from sim.seeds import Seeds
from sim.workload.base import Workload
from sim.workload.config import WorkloadConfig, build_workload
from sim.workload.describe import describe

LENGTHS: dict[str, Any] = {
    "prompt_tokens": {"distribution": "lognormal", "mean": 512, "p99": 4096, "max": 8192},
    "output_tokens": {"distribution": "exponential", "mean": 100},
}
POISSON: dict[str, Any] = {"num_requests": 2000, "arrivals": {"process": "poisson", "rate": 2.0}, **LENGTHS}


def build(base_dir: Path = Path(), seed: int = 1, **given: Any) -> Workload:
    return build_workload(WorkloadConfig.model_validate(given), Seeds(seed), base_dir)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    rows = "\n".join(f"{i},{100 + i},{10 + i}" for i in range(20))
    (tmp_path / "trace.csv").write_text(f"arrived_at,num_prefill_tokens,num_decode_tokens\n{rows}\n")
    return tmp_path


def test_generated_requests_are_valid_and_on_the_time_grid() -> None:
    workload = build(**POISSON)
    assert len(workload) == 2000
    assert np.array_equal(workload.arrival_time * 2**30, np.rint(workload.arrival_time * 2**30))
    assert (np.diff(workload.arrival_time) >= 0).all()
    assert workload.num_prompt_tokens.min() >= 1
    assert np.array_equal(workload.max_output_tokens, workload.num_output_tokens)


def test_the_same_seed_gives_the_same_requests_and_another_seed_others() -> None:
    one, same, other = build(**POISSON), build(**POISSON), build(seed=2, **POISSON)
    assert np.array_equal(one.arrival_time, same.arrival_time)
    assert not np.array_equal(one.num_prompt_tokens, other.num_prompt_tokens)


def test_what_is_drawn_for_one_thing_leaves_all_others_alone() -> None:
    """Common random numbers: another rate, a tenant mix and cancellations change no length."""
    plain = build(**POISSON)
    changed = build(
        **{**POISSON, "arrivals": {"process": "gamma", "rate": 9.0, "cv": 3.0}},
        tenants={"a": 1, "b": 3},
        cancel_after={"fraction": 0.5, "after": 10},
        max_output_tokens={"factor": 2},
    )
    assert np.array_equal(plain.num_prompt_tokens, changed.num_prompt_tokens)
    assert np.array_equal(plain.num_output_tokens, changed.num_output_tokens)


def test_tenants_classes_and_priorities_have_their_weights() -> None:
    workload = build(**POISSON, tenants={"a": 1, "b": 3}, classes={"chat": 1}, priorities={0: 1, 5: 1})
    assert workload.tenant is not None
    assert workload.tenant.count("b") / 2000 == pytest.approx(0.75, abs=0.03)
    assert set(workload.request_class or []) == {"chat"}
    assert workload.priority is not None
    assert np.mean(workload.priority == 5) == pytest.approx(0.5, abs=0.04)


def test_a_mix_gives_each_component_its_lengths() -> None:
    workload = build(
        num_requests=1000,
        arrivals={"process": "constant", "rate": 1},
        output_tokens=7,
        mix=[
            {"weight": 3, "tenant": "chat", "prompt_tokens": 100, "output_tokens": 50},
            {"weight": 1, "tenant": "batch", "prompt_tokens": 4000, "priority": 2},
        ],
    )
    is_chat = np.array(workload.tenant) == "chat"
    assert is_chat.mean() == pytest.approx(0.75, abs=0.05)
    assert set(workload.num_prompt_tokens[is_chat]) == {100}
    assert set(workload.num_output_tokens[~is_chat]) == {7}
    assert set(workload.priority[~is_chat]) == {2}  # type: ignore[index]


def test_shared_prefixes_are_hit_by_all_but_the_first_of_a_group() -> None:
    workload = build(**{**POISSON, "prompt_tokens": 100}, prefix={"groups": 4, "tokens": 1000})
    assert set(workload.num_prompt_tokens) == {1100}
    prefix = describe(workload)["prefix"]
    assert prefix["token_hit_rate"] == pytest.approx((2000 - 4) * 1000 / (2000 * 1100))
    assert prefix["share_of_prompts_with_a_hit"] == pytest.approx(1996 / 2000)


def test_only_whole_hash_blocks_of_a_prefix_are_shared() -> None:
    workload = build(**{**POISSON, "prompt_tokens": 100}, prefix={"tokens": 1000}, hash_block_size=300)
    assert workload.hash_ids is not None
    assert len(workload.hash_ids.row(0)) == 4
    assert np.array_equal(workload.hash_ids.row(0)[:3], workload.hash_ids.row(1)[:3])
    assert workload.hash_ids.row(0)[3] != workload.hash_ids.row(1)[3]


def test_sessions_grow_by_what_was_said_before() -> None:
    workload = build(
        num_requests=50,
        arrivals={"process": "poisson", "rate": 1.0},
        prompt_tokens=40,
        output_tokens=24,
        sessions={"turns": 3, "think_time": {"distribution": "exponential", "mean": 5}},
    )
    assert len(workload) == 150
    assert workload.previous is not None
    assert workload.delay is not None
    later = np.flatnonzero(workload.previous >= 0)
    before = workload.previous[later]
    assert np.array_equal(
        workload.num_prompt_tokens[later], workload.num_prompt_tokens[before] + workload.num_output_tokens[before] + 40
    )
    assert np.array_equal(np.bincount(workload.num_prompt_tokens)[[40, 104, 168]], [50, 50, 50])
    assert (np.diff(workload.arrival_time) >= 0).all()
    assert workload.arrival_time[later] == pytest.approx(workload.arrival_time[before] + workload.delay[later])
    # ideal hits: 64 of 104 tokens, then 128 of 168, in blocks of 16: all whole blocks
    prefix = describe(workload)["prefix"]
    assert prefix["token_hit_rate"] == pytest.approx((64 + 128) / (40 + 104 + 168))


def test_closed_loop_has_think_times_but_none_before_the_first_of_a_user() -> None:
    workload = build(
        num_requests=10,
        arrivals={"process": "closed_loop", "concurrency": 4, "think_time": 2.0},
        prompt_tokens=5,
        output_tokens=5,
    )
    assert workload.closed_loop is not None
    assert workload.closed_loop.concurrency == 4
    assert workload.closed_loop.think_times.tolist() == [0.0] * 4 + [2.0] * 6


def test_declared_maxima() -> None:
    twice = build(**POISSON, max_output_tokens={"factor": 2})
    assert np.array_equal(twice.max_output_tokens, 2 * twice.num_output_tokens)
    capped = build(**POISSON, max_output_tokens=64)
    assert set(capped.max_output_tokens) == {64}
    assert capped.num_output_tokens.max() == 64
    assert "outputs cut to the declared max_output_tokens" in capped.notes[-1]


def test_cancellations_have_their_share() -> None:
    workload = build(
        **POISSON, cancel_after={"fraction": 0.25, "after": {"distribution": "uniform", "min": 1, "max": 2}}
    )
    assert workload.cancel_after is not None
    given_up = np.isfinite(workload.cancel_after)
    assert given_up.mean() == pytest.approx(0.25, abs=0.03)
    assert 1 <= workload.cancel_after[given_up].min() <= workload.cancel_after[given_up].max() <= 2
    assert set(build(**POISSON, cancel_after=3).cancel_after.tolist()) == {3.0}  # type: ignore[union-attr]


def test_a_trace_path_is_relative_to_the_base_folder(trace: Path) -> None:
    workload = build(trace, trace="trace.csv")
    assert workload.num_prompt_tokens.tolist() == list(range(100, 120))


def test_a_trace_with_arrivals_keeps_lengths_and_goes_round_when_more_are_asked_for(trace: Path) -> None:
    workload = build(trace, trace="trace.csv", arrivals={"process": "constant", "rate": 10.0}, num_requests=45)
    assert workload.num_prompt_tokens.tolist() == [100 + i % 20 for i in range(45)]
    assert workload.arrival_time[-1] == pytest.approx(4.4)
    same = build(trace, trace="trace.csv", arrivals={"process": "constant", "rate": 10.0})
    assert len(same) == 20


def test_a_trace_can_be_played_in_a_closed_loop(trace: Path) -> None:
    workload = build(trace, trace="trace.csv", arrivals={"process": "closed_loop", "concurrency": 3})
    assert workload.closed_loop is not None
    assert len(workload.closed_loop.think_times) == 20


def test_a_trace_without_times_asks_for_arrivals(tmp_path: Path) -> None:
    (tmp_path / "lengths.csv").write_text("num_prefill_tokens,num_decode_tokens\n5,6\n")
    with pytest.raises(InputError, match="has no arrival times"):
        build(tmp_path, trace="lengths.csv")
    assert len(build(tmp_path, trace="lengths.csv", arrivals={"process": "poisson", "rate": 1})) == 1


def test_statistics_of_the_repository_make_requests_at_their_rate(repository: Path) -> None:
    workload = build(repository, statistics="traces/statistics/azure_conv_2023.json", num_requests=500)
    faster = build(repository, statistics="traces/statistics/azure_conv_2023.json", num_requests=500, rate_scale=2)
    assert len(workload) == 500
    assert 499 / workload.arrival_time[-1] == pytest.approx(5.53, rel=0.01)
    assert faster.arrival_time[-1] == pytest.approx(workload.arrival_time[-1] / 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "needs trace, statistics, or arrivals"),
        ({"trace": "a", "statistics": "b"}, "not both"),
        ({"arrivals": {"process": "poisson", "rate": 1}, "num_requests": 5}, "need prompt_tokens and output_tokens"),
        ({"arrivals": {"process": "poisson", "rate": 1}, **LENGTHS}, "either num_requests or duration"),
        ({**POISSON, "duration": 3}, "either num_requests or duration"),
        ({**POISSON, "limit": 3}, "limit: only for a trace"),
        ({"trace": "a", "prompt_tokens": 5}, "prompt_tokens: only for generated"),
        ({"trace": "a", "num_requests": 5}, "num_requests: only for generated"),
        ({"trace": "a", "start": 5, "end": 5}, "end 5 must be after start 5"),
        ({"trace": "a", "arrivals": {"process": "poisson", "rate": 1}, "rate_scale": 2}, "arrivals replace the times"),
        ({"trace": "a", "limits": 5}, "limits"),
        ({**POISSON, "max_output_tokens": 0}, "at least 1"),
        ({"trace": "a", "failed_rows": "keep"}, "keep_as_one"),
    ],
)
def test_contradictions_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        WorkloadConfig.model_validate(given)


def test_a_dumped_config_builds_the_same_workload() -> None:
    given = {**POISSON, "tenants": {"a": 1.0}, "cancel_after": 5, "max_output_tokens": 300, "prefix": {"tokens": 64}}
    config = WorkloadConfig.model_validate(given)
    again = WorkloadConfig.model_validate(config.model_dump(mode="json", exclude_unset=True))
    one, two = (build_workload(c, Seeds(4), Path()) for c in (config, again))
    assert np.array_equal(one.num_output_tokens, two.num_output_tokens)
    assert np.array_equal(one.cancel_after, two.cancel_after)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["prompt_tokens", "output_tokens"])
def test_lengths_without_a_token_are_refused(name: str) -> None:
    lengths = {"prompt_tokens": 100, "output_tokens": 100}
    values = {"num_requests": 1, "arrivals": {"process": "constant", "rate": 1.0}}
    with pytest.raises(ValidationError, match="must be at least 1 token"):
        WorkloadConfig.model_validate({**values, **lengths, name: 0})
    with pytest.raises(ValidationError, match="must be at least 1 token"):
        WorkloadConfig.model_validate({**values, **lengths, "mix": [{name: {"distribution": "fixed", "value": 0.4}}]})
    WorkloadConfig.model_validate({**values, **lengths, "cancel_after": 0})
