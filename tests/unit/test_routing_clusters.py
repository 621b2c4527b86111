"""Routers on whole clusters: unequal replicas, real prompts, the log of decisions and the settings of the picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim.config import experiment_from_values
from sim.errors import InputError
from sim.experiment import RunOptions, prepare, run, write
from sim.prefix_index import PrefixIndex
from sim.result import RunResult
from sim.seeds import Seeds
from sim.workload.config import WorkloadConfig
from sim.workload.prefix import ideal_hits
from sim.workload.trace import load_trace

H100 = {"replicas": 2, "model": "llama-3.1-8b", "gpu": "h100-sxm", "cost_model": {"kind": "roofline"}}


def pool(name: str, **changes: Any) -> dict[str, Any]:
    return {"name": name, **H100, **changes}


def generated(num_requests: int, rate: float, **more: Any) -> dict[str, Any]:
    return {
        "num_requests": num_requests,
        "arrivals": {"process": "poisson", "rate": rate},
        "prompt_tokens": {"distribution": "uniform", "min": 100, "max": 3000},
        "output_tokens": {"distribution": "uniform", "min": 10, "max": 300},
        **more,
    }


def experiment(workload: dict[str, Any], pools: list[dict[str, Any]], **router: Any) -> Any:
    values = {"workload": workload, "cluster": {"pools": pools, "router": router}}
    return experiment_from_values(values, Path.cwd())


# --- unequal replicas -------------------------------------------------------------------------------------------------


def test_predicted_work_is_sent_in_proportion_to_speed() -> None:
    """Two H100s and two L4s under a burst: the work that each was sent, in its own seconds, is the same."""
    pools = [pool("fast"), pool("slow", gpu="l4")]
    config = experiment(generated(400, 200.0), pools, policy="least_predicted_work")
    simulation = prepare(config, RunOptions())
    fast, slow = simulation.replicas[0], simulation.replicas[2]
    assert fast.prefill_speed > 4 * slow.prefill_speed
    assert fast.decode_speed > 4 * slow.decode_speed
    result = simulation.run()
    at, load = result.requests["prefill_replica"], simulation.workload
    seconds = [
        load.num_prompt_tokens[at == i].sum() / replica.prefill_speed
        + load.max_output_tokens[at == i].sum() / replica.decode_speed
        for i, replica in enumerate(simulation.replicas)
    ]
    assert max(seconds) < 1.25 * min(seconds)
    counts = np.bincount(at, minlength=4)
    assert counts[:2].sum() > 4 * counts[2:].sum()


def test_counting_requests_makes_slow_replicas_the_last_to_finish() -> None:
    """The same cluster and requests: what does not know of speed ends later."""
    pools, work = [pool("fast"), pool("slow", gpu="l4")], generated(200, 40.0)
    ends = [
        run(experiment(work, pools, policy=policy)).result.end_time
        for policy in ("least_predicted_work", "least_outstanding_requests", "round_robin")
    ]
    assert ends[0] < ends[1] < ends[2]


# --- real prompts -----------------------------------------------------------------------------------------------------

MOONCAKE = [("conversation", 0.3664), ("synthetic", 0.6396)]


@pytest.mark.parametrize(("name", "by_block"), MOONCAKE)
@pytest.mark.shared_data
def test_an_endless_index_hits_what_the_published_traces_can_hit(name: str, by_block: float, shared_data: Path) -> None:
    """All requests in turn against one index that forgets nothing: 36.64 and 63.96 % of the blocks."""
    path = shared_data / "traces" / "mooncake_fast25" / f"{name}_trace.jsonl.gz"
    workload = load_trace(path, WorkloadConfig(trace=str(path)), Seeds(1)).workload
    index, hits, total = PrefixIndex(1), 0, 0
    assert workload.hash_ids is not None
    for row in range(len(workload)):
        ids = workload.hash_ids.row(row).tolist()
        hits += int(index.leading(ids)[0])
        total += len(ids)
        index.add(ids, 0)
    assert hits / total == pytest.approx(by_block, abs=5e-5)
    assert hits == ideal_hits(workload).blocks.sum()


def hit_rate(result: RunResult) -> float:
    lookups = sum(replica.num_lookup_tokens for replica in result.replicas)
    return sum(replica.num_hit_tokens for replica in result.replicas) / lookups


@pytest.mark.shared_data
def test_the_better_a_router_knows_the_caches_the_more_it_hits(shared_data: Path) -> None:
    """1,000 real requests on 8 replicas whose caches hold a part of them, then all of them."""
    trace = str(shared_data / "traces" / "mooncake_fast25" / "conversation_trace.jsonl.gz")
    found: dict[tuple[str, int], float] = {}
    for blocks in (28_000, 200_000):
        cache = {"num_blocks": blocks}
        eight = [pool("main", replicas=8, max_model_len=131072, kv_cache=cache)]
        for name in ("round_robin", "prefix_approximate", "prefix_precise"):
            threshold = {} if name == "round_robin" else {"cache_threshold": 0.0}
            config = experiment({"trace": trace, "limit": 1000}, eight, policy=name, **threshold)
            simulation = prepare(config, RunOptions())
            found[name, blocks] = hit_rate(simulation.run())
    load = simulation.workload
    ideal = ideal_hits(load).tokens.sum() / load.num_prompt_tokens.sum()
    for blocks in (28_000, 200_000):
        blind, sent, told = (found[name, blocks] for name in ("round_robin", "prefix_approximate", "prefix_precise"))
        assert 1.3 * blind < sent < told <= ideal
    assert found["prefix_precise", 200_000] > 0.99 * ideal


def test_isolated_tenants_do_not_hit_each_other_in_the_index_either() -> None:
    """One prefix, two tenants: whoever comes first in a tenant finds nothing, later ones find it."""
    work = generated(30, 10.0, prefix={"groups": 1, "tokens": 512}, tenants={"a": 1, "b": 1})
    isolated = pool("main", replicas=1, kv_cache={"isolation": "tenant"})
    simulation = prepare(experiment(work, [isolated], policy="prefix_precise", log=True), RunOptions())
    log, tenants = simulation.run().routing, simulation.workload.tenant
    assert log is not None
    assert tenants is not None
    for tenant in ("a", "b"):
        found = [scores[0] for row, scores in zip(log["row"], log["scores"], strict=True) if tenants[row] == tenant]
        assert found[0] == 0
        assert set(found[3:]) == {512}


def test_speculating_replicas_tell_what_they_cache_and_when_prompts_are_done() -> None:
    work = generated(30, 10.0, prefix={"groups": 1, "tokens": 512})
    drafting = pool("main", speculation={"method": "ngram", "num_speculative_tokens": 2, "acceptance": 0.5})
    simulation = prepare(experiment(work, [drafting], policy="dynamo", log=True), RunOptions())
    simulation.run()
    signals: Any = simulation.cluster.routing.signals
    assert signals.prefill_tokens.tolist() == [0, 0]
    assert signals.cached_tokens(simulation.columns.sequence(0, 0.0)).max() >= 512


# --- settings and log -------------------------------------------------------------------------------------------------


def test_the_log_holds_every_decision_with_what_was_compared(tmp_path: Path) -> None:
    import pandas as pd

    config = experiment(
        generated(30, 20.0, prefix={"groups": 2, "tokens": 512}), [pool("main")], policy="prefix_precise", log=True
    )
    outcome = run(config)
    write(outcome, tmp_path / "out")
    log = pd.read_parquet(tmp_path / "out" / "routing.parquet")
    requests = pd.read_parquet(tmp_path / "out" / "requests.parquet")
    assert list(log) == ["request_id", "time", "replica", "candidates", "scores"]
    assert log["request_id"].tolist() == requests["request_id"].tolist()
    assert log["replica"].tolist() == requests["prefill_replica"].tolist()
    assert all(each.tolist() == [0, 1] for each in log["candidates"])
    assert {score for each in log["scores"] for score in each} == {0.0, 512.0}


def test_without_asking_there_is_no_log(tmp_path: Path) -> None:
    write(run(experiment(generated(5, 20.0), [pool("main")])), tmp_path / "out")
    assert not (tmp_path / "out" / "routing.parquet").exists()


@pytest.mark.parametrize(
    ("router", "words"),
    [
        ({"policy": "random", "snapshot_interval": "50us"}, ["snapshot_interval", "0.001"]),
        ({"policy": "random", "snapshot_interval": -1}, ["snapshot_interval"]),
        ({"policy": "random", "event_delay": "soon"}, ["event_delay", "duration"]),
        ({"policy": "prefix_presice"}, ["did you mean 'prefix_precise'?"]),
        ({"policy": "weighted", "quue": 1}, ["quue", "did you mean 'queue'?"]),
        ({"policy": "weighted", "prefix_source": "guess"}, ["prefix_source", "approximate"]),
        ({"policy": "consistent_hash", "bound": 0.5}, ["bound must be at least 1"]),
    ],
)
def test_bad_settings_are_named(router: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        prepare(experiment(generated(5, 20.0), [pool("main")], **router), RunOptions())
    assert all(word in str(caught.value) for word in words)


def test_settings_survive_the_written_configuration(write_experiment: Callable[[str], Path]) -> None:
    from sim.config import dump_yaml, load_experiment

    config = experiment(
        generated(5, 20.0), [pool("main")], policy="llm_d", snapshot_interval="50ms", event_delay=0.2, prefix=4.0
    )
    again = load_experiment(write_experiment(dump_yaml(config)))
    assert again.cluster.router.snapshot_interval == 0.05
    assert again.cluster.router.event_delay == 0.2
    assert again.cluster.router.params == {"prefix": 4.0}
    assert dump_yaml(again) == dump_yaml(config)
