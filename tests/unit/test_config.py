"""The experiment file: defaults, presets, `--set`, paths, messages, and that it can be written and read back."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sim import yamlfile
from sim.config import ExperimentConfig, dump_yaml, experiment_from_values, load_experiment, parse_duration, resolved
from sim.errors import InputError

Writer = Callable[[str], Path]

GOOD = """\
name: good
workload:
  num_requests: 10
  arrivals: {process: poisson, rate: 2.0}
  prompt_tokens: {distribution: fixed, value: 100}
  output_tokens: {distribution: fixed, value: 10}
cluster:
  pools:
    - model: llama-3.1-8b
      gpu: h100-sxm
"""


def message(path: Path, *sets: str) -> str:
    with pytest.raises(InputError) as caught:
        load_experiment(path, sets)
    return str(caught.value).replace(f"{path.parent}/", "")


def values(**changes: Any) -> dict[str, Any]:
    loaded = yamlfile.parse(GOOD, "good").values
    return {**loaded, **changes}


# --- defaults and presets ---------------------------------------------------------------------------------------------


def test_defaults_are_those_of_the_contract(write_experiment: Writer) -> None:
    config = load_experiment(write_experiment(GOOD))
    (pool,) = config.cluster.pools
    assert (config.seed, config.slo, config.expect) == (1, None, [])
    assert (pool.name, pool.role, pool.replicas, pool.tensor_parallel, pool.pipeline_parallel) == (
        "main",
        "mixed",
        1,
        1,
        1,
    )
    assert (pool.scheduler.policy, pool.scheduler.max_num_seqs, pool.scheduler.max_num_batched_tokens) == (
        "fcfs",
        256,
        8192,
    )
    assert (pool.kv_cache.allocator, pool.kv_cache.block_size, pool.kv_cache.prefix_caching) == ("paged", 16, True)
    assert (pool.preemption.mode, pool.preemption.victim) == ("recompute", "newest")
    assert config.cluster.router.policy == "least_outstanding_requests"
    assert config.cluster.admission.policy == "always"


def test_a_preset_fills_only_what_is_not_given(tmp_path: Path) -> None:
    preset = tmp_path / "my-engine.yaml"
    preset.write_text(
        "version: 1\nscheduler: {policy: fcfs, max_num_seqs: 8, own_field: 3}\nkv_cache: {block_size: 32}\n"
    )
    pool = {"model": "m", "gpu": "g", "engine": "./my-engine.yaml", "scheduler": {"max_num_seqs": 5}}
    config = experiment_from_values(values(cluster={"pools": [pool]}), tmp_path)
    scheduler = config.cluster.pools[0].scheduler
    assert (scheduler.max_num_seqs, scheduler.params) == (5, {"own_field": 3})
    assert config.cluster.pools[0].kv_cache.block_size == 32


def test_another_policy_than_the_presets_gets_none_of_its_fields(tmp_path: Path) -> None:
    preset = tmp_path / "my-engine.yaml"
    preset.write_text("scheduler: {policy: fcfs, max_num_seqs: 8, own_field: 3}\n")
    pool = {"model": "m", "gpu": "g", "engine": "./my-engine.yaml", "scheduler": "priority"}
    scheduler = experiment_from_values(values(cluster={"pools": [pool]}), tmp_path).cluster.pools[0].scheduler
    assert (scheduler.policy, scheduler.max_num_seqs, scheduler.params) == ("priority", 8, {})


def test_a_wrong_key_in_a_preset_is_named(tmp_path: Path) -> None:
    (tmp_path / "my-engine.yaml").write_text("schedular: {}\n")
    pool = {"model": "m", "gpu": "g", "engine": "./my-engine.yaml"}
    with pytest.raises(InputError, match=r"schedular: is not a known key \(did you mean 'scheduler'\?\)"):
        experiment_from_values(values(cluster={"pools": [pool]}), tmp_path)


def test_an_unknown_engine_names_the_nearest(write_experiment: Writer) -> None:
    found = message(write_experiment(GOOD), "cluster.pools.0.engine=vllm-v2")
    assert found.startswith("--set cluster.pools.0.engine=vllm-v2: cluster.pools.0.engine: unknown engine preset")
    assert "did you mean 'vllm-v1'?" in found


def test_a_policy_slot_keeps_the_policys_own_fields(write_experiment: Writer) -> None:
    config = load_experiment(write_experiment(GOOD), ["cluster.router={policy: random, weight: 2}"])
    assert (config.cluster.router.policy, config.cluster.router.params) == ("random", {"weight": 2})


def test_a_name_may_stand_for_a_policy_slot(write_experiment: Writer) -> None:
    config = load_experiment(write_experiment(GOOD), ["cluster.router=round_robin"])
    assert (config.cluster.router.policy, config.cluster.router.params) == ("round_robin", {})


# --- messages ---------------------------------------------------------------------------------------------------------


def test_all_problems_are_reported_at_once_each_with_its_place(write_experiment: Writer) -> None:
    text = GOOD.replace("gpu: h100-sxm", "gpuu: h100-sxm\n      replicas: four") + "seeed: 3\n"
    lines = message(write_experiment(text)).splitlines()
    assert len(lines) == 4
    assert lines[0] == "experiment.yaml:9:7: cluster.pools.0.gpu: is required"
    assert lines[1].startswith("experiment.yaml:10:7: cluster.pools.0.gpuu: is not a known key (got 'h100-sxm')")
    assert lines[1].endswith("(did you mean 'gpu'?)")
    assert lines[2] == "experiment.yaml:11:7: cluster.pools.0.replicas: must be a whole number (got 'four')"
    assert lines[3].startswith("experiment.yaml:12:1: seeed: is not a known key (got 3); known keys: name, seed")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("cluster.pools.0.replcas=3", "cluster.pools.0.replcas: is not a known key (got 3); known keys: name, role"),
        ("cluster.pools.0.replicas=true", "cluster.pools.0.replicas: must be a whole number (got true)"),
        ("cluster.pools.0.replicas=2.5", "cluster.pools.0.replicas: must be a whole number (got 2.5)"),
        ("cluster.pools.0.replicas=-1", "cluster.pools.0.replicas: must be >= 0 (got -1)"),
        ("cluster.pools.0.role=decoder", "is not a known value (got 'decoder'); allowed: mixed, prefill, decode"),
        (
            "cluster.pools.0.role=decode",
            "pools of role decode need a disaggregation policy that splits requests; allowed with policy",
        ),
        ("cluster.pools.0.preemption.mode=swop", "is not a known value (got 'swop'); allowed: recompute, swap, auto"),
        ("cluster.pools.0.kv_cache.gpu_memory_utilization=1.5", "must be <= 1.0 (got 1.5)"),
        ("cluster.pools.0.scheduler.max_num_seqs=9999", "max_num_batched_tokens (8192) must not be below max_num_seqs"),
        ("cluster.pools=[]", "cluster.pools: must not be empty"),
        ("cluster.pools.4.replicas=1", "cluster.pools has 1 item(s), numbered from 0; there is no item 4"),
        ("cluster.pools.replicas=1", "cluster.pools is a list; give the number of an item"),
        ("name.first=x", "name is a single value ('good'), it has no key 'first'"),
        ("name=a/b", "name: does not match"),
        ("slo={ttft: 20 parsecs}", "slo.ttft: is not a duration; allowed: seconds as a number"),
        ("slo={ttft: {p101: 1}}", "slo.ttft: has no statistic 'p101'; allowed: mean, max, and percentiles"),
        ("slo={ttft: -1}", "slo.ttft: must be > 0 (got -1)"),
        ("slo=[{request_class: a}, {request_class: a}]", "slo: has two entries for class 'a'"),
        ("client={base_latency: .nan}", "client.base_latency: must be a finite number"),
        ("expect=['ttft.p99 <']", "expect.0: 'ttft.p99 <' is not an expression"),
        ("workload.arrivals.rat=3", "workload.arrivals.rat: is not a known key (got 3)"),
        ("workload={}", "workload: needs trace, statistics, or arrivals"),
        ("seed=[1", "is not valid YAML"),
        ("seed", "must be key.path=value"),
        ("=3", "must be key.path=value"),
        ("a..b=3", "must be key.path=value"),
    ],
)
def test_a_wrong_set_names_the_flag_and_what_is_allowed(write_experiment: Writer, change: str, expected: str) -> None:
    found = message(write_experiment(GOOD), change)
    assert f"--set {change}" in found
    assert expected in found
    assert "\n" not in found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "experiment.yaml: must be a mapping with the keys workload and cluster (got an empty file)"),
        ("- 1\n", "experiment.yaml: must be a mapping with the keys workload and cluster (got a list)"),
        ("a: [1\n", "experiment.yaml:2:1: is not valid YAML"),
        ("seed: 1\nseed: 2\n", "experiment.yaml:2:1: key 'seed' is given twice (first in line 1)"),
        ("a: !!python/object:os.system x\n", "experiment.yaml:1:4: is not valid YAML"),
        ("a: &a [*a]\n", "the anchors (&, *) of this file expand without end"),
    ],
)
def test_a_file_that_is_not_an_experiment_is_answered_in_a_line(
    write_experiment: Writer, text: str, expected: str
) -> None:
    assert message(write_experiment(text)).startswith(expected) or expected in message(write_experiment(text))


def test_a_missing_file_names_the_nearest(write_experiment: Writer) -> None:
    path = write_experiment(GOOD)
    found = message(path.with_name("experimnt.yaml"))
    assert found == "experimnt.yaml: no such file (did you mean 'experiment.yaml'?)"


def test_two_pools_need_two_names(write_experiment: Writer) -> None:
    pools = "[{model: a, gpu: b}, {model: a, gpu: b}]"
    assert "two pools are named 'main'" in message(write_experiment(GOOD), f"cluster.pools={pools}")


def test_where_points_at_a_key_for_later_errors(write_experiment: Writer) -> None:
    config = load_experiment(write_experiment(GOOD), ["cluster.router=random"])
    assert config.where("cluster.pools.0.gpu").endswith("experiment.yaml:10:7: cluster.pools.0.gpu")
    assert config.where("cluster.router") == "--set cluster.router=random: cluster.router"


# --- values -----------------------------------------------------------------------------------------------------------


def test_yaml_numbers_with_exponents_are_numbers(write_experiment: Writer) -> None:
    config = load_experiment(write_experiment(GOOD + "slo: {ttft: 5e-1}\n"), ["slo.tpot=2E-2"])
    assert config.slo is not None
    assert (config.slo.ttft, config.slo.tpot) == (0.5, 0.02)


@pytest.mark.parametrize(("text", "value"), [("300ms", 0.3), ("2 min", 120.0), ("1.5h", 5400.0), ("7us", 7e-6)])
def test_durations_may_have_a_unit(text: str, value: float) -> None:
    assert parse_duration(text) == pytest.approx(value, rel=1e-15)


def test_slo_forms(write_experiment: Writer) -> None:
    form = "slo=[{request_class: chat, ttft: {p99: 500ms}}, {e2e: 30, attainment: 0.9}]"
    slo = load_experiment(write_experiment(GOOD), [form]).slo
    assert slo is not None
    assert (slo.e2e, slo.attainment, slo.ttft) == (30.0, 0.9, None)
    assert slo.classes["chat"].ttft == {"p99": 0.5}


def test_seed_option_wins(write_experiment: Writer) -> None:
    assert load_experiment(write_experiment(GOOD), ["seed=3"], seed=4).seed == 4


def test_settings_apply_in_order_and_make_sections(write_experiment: Writer) -> None:
    config = load_experiment(write_experiment(GOOD), ["metrics.warmup_requests=3", "metrics.warmup_requests=5"])
    assert config.metrics.warmup_requests == 5


def test_the_name_defaults_to_that_of_the_file(write_experiment: Writer) -> None:
    path = write_experiment(GOOD.replace("name: good\n", ""))
    assert load_experiment(path).name == "experiment"


# --- paths and round trip ---------------------------------------------------------------------------------------------

TRACE = GOOD[: GOOD.index("workload")] + "workload: {trace: data/a.csv}\n" + GOOD[GOOD.index("cluster") :]


def test_paths_in_a_file_are_relative_to_it_and_in_set_to_the_current_directory(
    write_experiment: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_experiment(TRACE)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert load_experiment(path).workload.trace == str(tmp_path / "data/a.csv")
    assert load_experiment(path, ["workload.trace=../b.csv"]).workload.trace == str(tmp_path / "b.csv")
    assert load_experiment(path, ["workload={trace: c.csv}"]).workload.trace == str(elsewhere / "c.csv")


def test_a_model_is_a_path_only_when_it_looks_like_one(write_experiment: Writer, tmp_path: Path) -> None:
    path = write_experiment(GOOD)
    for named, expected in [
        ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("llama-3.1-8b", "llama-3.1-8b"),
    ]:
        assert load_experiment(path, [f"cluster.pools.0.model={named}"]).cluster.pools[0].model == expected
    text = GOOD.replace("llama-3.1-8b", "my/config.json")
    assert load_experiment(write_experiment(text)).cluster.pools[0].model == str(tmp_path / "my/config.json")


def test_the_written_configuration_gives_the_same_bytes_from_anywhere(
    write_experiment: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = ["cluster.router={policy: x, b: 1, a: 1e-7}", "slo={ttft: {p99: 1}, tpot: 30ms}", "workload.rate_scale=1.1"]
    config = load_experiment(write_experiment(TRACE), sets)
    text = dump_yaml(config)
    written = tmp_path / "out" / "deep" / "config.yaml"
    written.parent.mkdir(parents=True)
    written.write_text(text)
    monkeypatch.chdir("/")
    again = load_experiment(written)
    assert dump_yaml(again) == text
    assert resolved(again) == resolved(config)


@pytest.mark.parametrize("label", ["a\x85b", "\u2028", "x\x85\n"])
def test_line_breaks_beyond_ascii_survive_writing_and_reading(label: str) -> None:
    assert yamlfile.parse(yamlfile.dump({"label": label}), "again").values == {"label": label}


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rate=st.floats(1e-6, 1e6),
    latency=st.floats(0, 1e3),
    seed=st.integers(0, 2**63),
    label=st.text(max_size=8),
    flag=st.booleans(),
)
@example(rate=1.0, latency=0.0, seed=0, label="a\x85b'\u2028c\u2029d\re", flag=False)
def test_any_value_survives_writing_and_reading(rate: float, latency: float, seed: int, label: str, flag: bool) -> None:
    changed = values(seed=seed, client={"base_latency": latency})
    changed["workload"] = {**changed["workload"], "arrivals": {"process": "poisson", "rate": rate}}
    changed["cluster"] = {**changed["cluster"], "router": {"policy": "x", "label": label, "flag": flag}}
    config = experiment_from_values(changed, Path("/"))
    text = dump_yaml(config)
    again = experiment_from_values(yamlfile.parse(text, "again").values, Path("/"))
    assert resolved(again) == resolved(config)
    assert dump_yaml(again) == text


def test_given_values_are_not_changed() -> None:
    given_values = values()
    before = repr(given_values)
    experiment_from_values(given_values, Path("/"))
    assert repr(given_values) == before


def test_a_configuration_can_be_sent_to_another_process(write_experiment: Writer) -> None:
    config = load_experiment(write_experiment(GOOD))
    again = pickle.loads(pickle.dumps(config))
    assert resolved(again) == resolved(config)
    assert again.where("seed") == config.where("seed")


def test_the_schema_knows_every_key_of_the_contract() -> None:
    schema = ExperimentConfig.model_json_schema()
    assert set(schema["properties"]) >= {"name", "seed", "workload", "cluster", "slo", "client", "metrics", "expect"}
    pool = schema["$defs"]["PoolConfig"]
    assert pool["required"] == ["model", "gpu"]
    assert pool["additionalProperties"] is False
