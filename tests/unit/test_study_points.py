"""From a study file to its points: grids, zips, samples, conditions, seeds, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from sim.config import resolved
from sim.errors import InputError
from sim.study.config import SampleConfig, load_study, written
from sim.study.points import points_of, sampled, short_names

EXPERIMENT = {
    "seed": 7,
    "workload": {
        "num_requests": 10,
        "arrivals": {"process": "poisson", "rate": 20.0},
        "prompt_tokens": {"distribution": "fixed", "value": 50},
        "output_tokens": {"distribution": "fixed", "value": 5},
    },
    "cluster": {"pools": [{"model": "llama-3.1-8b", "gpu": "h100-sxm"}]},
}
REPLICAS = "cluster.pools.0.replicas"
TOKENS = "cluster.pools.0.scheduler.max_num_batched_tokens"
SEQS = "cluster.pools.0.scheduler.max_num_seqs"
ROUTER = "cluster.router.policy"

Write = Callable[..., Path]


@pytest.fixture
def write_study(tmp_path: Path) -> Write:
    def write(**study: Any) -> Path:
        path = tmp_path / "study.yaml"
        path.write_text(yaml.safe_dump({"experiment": EXPERIMENT, **study}, sort_keys=False), encoding="utf-8")
        return path

    return write


def values_of(path: Path) -> list[dict[str, Any]]:
    return [point.values for point in points_of(load_study(path))]


def test_a_grid_has_every_combination_and_the_last_key_varies_fastest(write_study: Write) -> None:
    path = write_study(vary={REPLICAS: [1, 2], ROUTER: ["random", "round_robin"]})
    assert values_of(path) == [
        {REPLICAS: 1, ROUTER: "random"},
        {REPLICAS: 1, ROUTER: "round_robin"},
        {REPLICAS: 2, ROUTER: "random"},
        {REPLICAS: 2, ROUTER: "round_robin"},
    ]


def test_values_reach_the_configurations(write_study: Write) -> None:
    points = points_of(load_study(write_study(vary={REPLICAS: [1, 3], TOKENS: [512]})))
    assert [point.configs[0].cluster.pools[0].replicas for point in points] == [1, 3]
    assert {point.configs[0].cluster.pools[0].scheduler.max_num_batched_tokens for point in points} == {512}


def test_zips_go_together_and_multiply_with_the_grid_and_each_other(write_study: Write) -> None:
    path = write_study(
        vary={ROUTER: ["random", "round_robin"]},
        zip=[{REPLICAS: [1, 2, 3], TOKENS: [512, 1024, 2048]}, {SEQS: [8, 16]}],
    )
    found = values_of(path)
    assert len(found) == 2 * 3 * 2
    assert {(v[REPLICAS], v[TOKENS]) for v in found} == {(1, 512), (2, 1024), (3, 2048)}


def test_replications_have_successive_seeds_that_are_the_same_for_every_point(write_study: Write) -> None:
    points = points_of(load_study(write_study(vary={REPLICAS: [1, 2]}, replications=3)))
    assert [[config.seed for config in point.configs] for point in points] == [[7, 8, 9], [7, 8, 9]]


def test_conditions_and_exclude_leave_points_out(write_study: Write) -> None:
    path = write_study(
        vary={TOKENS: [64, 256], SEQS: [64, 256], ROUTER: ["random", "round_robin"]},
        conditions=["max_num_batched_tokens >= max_num_seqs"],
        exclude=[{"policy": "random", "max_num_seqs": 256}],
    )
    assert [(v[TOKENS], v[SEQS], v[ROUTER]) for v in values_of(path)] == [
        (64, 64, "random"),
        (64, 64, "round_robin"),
        (256, 64, "random"),
        (256, 64, "round_robin"),
        (256, 256, "round_robin"),
    ]


@pytest.mark.parametrize("method", ["random", "lhs", "sobol"])
def test_samples_keep_their_ranges_and_are_reproducible(method: Any) -> None:
    sample = SampleConfig.model_validate(
        {
            "method": method,
            "n": 16,
            "seed": 3,
            "keys": {
                "rate": {"min": 0.5, "max": 2.0},
                "size": {"min": 1, "max": 1024, "scale": "log", "integer": True},
                "kind": ["a", "b", "c"],
            },
        }
    )
    rows = sampled(sample)
    assert rows == sampled(sample)
    assert len(rows) == 16
    assert all(0.5 <= row["rate"] < 2.0 for row in rows)
    assert all(isinstance(row["size"], int) and 1 <= row["size"] <= 1024 for row in rows)
    assert {row["kind"] for row in rows} == {"a", "b", "c"}
    if method != "random":  # one in every sixteenth of the range, which is what these designs are for
        assert sorted(int((row["rate"] - 0.5) / 1.5 * 16) for row in rows) == list(range(16))


def test_a_log_range_is_even_in_the_logarithm() -> None:
    keys = {"x": {"min": 1.0, "max": 10_000.0, "scale": "log"}}
    rows = sampled(SampleConfig.model_validate({"method": "lhs", "n": 400, "keys": keys}))
    assert [sum(row["x"] < limit for row in rows) for limit in (10, 100, 1000)] == [100, 200, 300]


def test_short_names_are_as_short_as_they_can_be() -> None:
    assert short_names([TOKENS, REPLICAS]) == {TOKENS: "max_num_batched_tokens", REPLICAS: "replicas"}
    both = ["cluster.router.policy", "cluster.pools.0.scheduler.policy"]
    assert list(short_names(both).values()) == ["router_policy", "scheduler_policy"]


def test_the_written_study_gives_the_same_points_from_anywhere(write_study: Write, tmp_path: Path) -> None:
    model = "cluster.pools.0.model"
    path = write_study(vary={REPLICAS: [1, 2], model: ["./mine.yaml"]}, replications=2)
    study = load_study(path, ["workload.num_requests=12"])
    copy = tmp_path / "elsewhere" / "copy.yaml"
    copy.parent.mkdir()
    copy.write_text(yaml.safe_dump(written(study)), encoding="utf-8")
    first, second = points_of(study), points_of(load_study(copy))
    first_values, second_values = ([resolved(c) for p in points for c in p.configs] for points in (first, second))
    assert first_values == second_values
    assert first[0].configs[0].cluster.pools[0].model == str(tmp_path / "mine.yaml")
    assert first[0].configs[0].workload.num_requests == 12


def test_a_base_file_is_relative_to_the_study_and_values_to_it_too(tmp_path: Path) -> None:
    (tmp_path / "studies").mkdir()
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(EXPERIMENT), encoding="utf-8")
    path = tmp_path / "studies" / "one.yaml"
    path.write_text(
        yaml.safe_dump({"base": "../base.yaml", "vary": {"workload": [{"trace": "t.csv"}]}}), encoding="utf-8"
    )
    (point,) = points_of(load_study(path))
    assert point.configs[0].workload.trace == str(tmp_path / "studies" / "t.csv")


def test_set_changes_the_base_or_the_study_but_not_what_is_varied(write_study: Write) -> None:
    path = write_study(vary={REPLICAS: [1, 2]})
    points = points_of(load_study(path, ["replications=2", "seed=3"]))
    assert [config.seed for config in points[0].configs] == [3, 4]
    with pytest.raises(InputError, match=r"--set cluster\.pools\.0\.replicas=4: .* is varied by this study"):
        load_study(path, [f"{REPLICAS}=4"])


@pytest.mark.parametrize(
    ("study", "words"),
    [
        ({"vary": {"cluster.pools.0.replica": [1]}}, "study.yaml:.*replica: is not a known key.*'replicas'"),
        ({"vary": {REPLICAS: [1, -1]}}, r"study.yaml:\d+:\d+: cluster.pools.0.replicas=-1: .*must be >= 0"),
        ({"vary": {"cluster.pools.3.replicas": [1]}}, "there is no item 3"),
        ({"vary": {REPLICAS: []}}, "vary.cluster.pools.0.replicas: must not be empty"),
        ({"vary": {REPLICAS: 4}}, "must be a list"),
        ({"varied": {}}, "varied: is not a known key; known keys: .*did you mean 'vary'"),
        ({"zip": {REPLICAS: [1, 2], TOKENS: [512]}}, "equally long"),
        ({"vary": {REPLICAS: [1]}, "zip": {REPLICAS: [2]}}, "is varied twice"),
        ({"vary": {REPLICAS: [1]}, "conditions": ["replicas > 1"]}, "no point is left"),
        ({"vary": {ROUTER: ["random"]}, "conditions": ["policy > 1"]}, "leave out texts with exclude"),
        ({"vary": {ROUTER: ["random"]}, "exclude": [{"polcy": "random"}]}, "unknown varied key 'polcy'.*'policy'"),
        ({"vary": {"seed": [1, 2]}, "replications": 2}, "seeds are varied already"),
        ({"vary": {REPLICAS: [1]}, "replications": 0}, "replications: must be >= 1"),
        ({"base": "nowhere.yaml"}, "either base"),
        ({"base": "nowhere.yaml", "experiment": None}, "study.yaml:.*base: .*nowhere.yaml: no such file"),
        ({"sample": {"n": 4, "keys": {"x": {"min": 2, "max": 1}}}}, "max .1. must not be below min"),
        ({"sample": {"n": 4, "method": "grid", "keys": {"x": [1]}}}, "allowed: random, lhs, sobol"),
    ],
)
def test_a_wrong_study_is_refused_with_its_place(study: dict[str, Any], words: str, write_study: Write) -> None:
    with pytest.raises(InputError, match=words):
        points_of(load_study(write_study(**study)))
