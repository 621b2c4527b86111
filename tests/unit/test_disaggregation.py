"""Pools by role from a configuration: what fits together, what is written, and that a policy that never splits changes
nothing.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import policies
from policies.disaggregation import DISAGGREGATIONS
from sim.cli.summary import topics
from sim.config import experiment_from_values
from sim.decisions import Colocated, Split
from sim.disaggregation import losses
from sim.errors import InputError, PolicyError
from sim.experiment import Outcome, RunOptions, run, write

POOL = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "kv_cache": {"num_blocks": 2000}}
SPLIT: dict[str, Any] = {
    "seed": 3,
    "workload": {
        "num_requests": 40,
        "arrivals": {"process": "poisson", "rate": 20.0},
        "prompt_tokens": {"distribution": "uniform", "min": 100, "max": 3000},
        "output_tokens": {"distribution": "uniform", "min": 2, "max": 40},
    },
    "cluster": {
        "pools": [{**POOL, "name": "p", "role": "prefill"}, {**POOL, "name": "d", "role": "decode"}],
        "network": {"bandwidth": 25.0e9, "latency": "10us"},
        "disaggregation": {"policy": "always_split"},
    },
}
MIXED: dict[str, Any] = {**SPLIT, "cluster": {"pools": [{**POOL, "name": "m", "replicas": 2}]}}


def changed(values: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Values with other entries at paths such as `cluster__pools__0__role`."""
    values = copy.deepcopy(values)
    for path, value in changes.items():
        *parents, last = [int(part) if part.isdigit() else part for part in path.split("__")]
        target: Any = values
        for part in parents:
            target = target[part]
        target[last] = value
    return values


def simulate(values: dict[str, Any], step_by_step: bool = False) -> Outcome:
    config = experiment_from_values(copy.deepcopy(values), Path())
    return run(config, RunOptions(step_by_step=step_by_step))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cluster__pools__1__role": "mixed"}, "splits requests, but no pool of role decode has any replicas"),
        ({"cluster__pools__0__replicas": 0}, "splits requests, but no pool of role prefill has any replicas"),
        ({"cluster__disaggregation": "colocated"}, "pools of role decode and prefill need a disaggregation policy"),
        ({"cluster__pools__1__model": "llama-3-8b"}, "llama-3-8b differs from llama-3.1-8b: split requests need one"),
        (
            {"cluster__pools__1__scheduler": {"policy": "static"}},
            "pools.1.scheduler.policy: padded batches with split requests are",
        ),
        ({"cluster__pools__0__kv_cache__allocator": "contiguous_max"}, "contiguous_max with split requests is not"),
        ({"cluster__disaggregation__policy": "always_spilt"}, "(did you mean 'always_split'?)"),
        ({"cluster__disaggregation__threshold": 3}, "threshold: is not a parameter of 'always_split'"),
        ({"cluster__disaggregation__policy": "by_prompt_length"}, "threshold: is required by 'by_prompt_length'"),
        ({"cluster__disaggregation__kv_transfer": {"granularity": "layer"}}, "granularity layer needs mode push"),
        ({"cluster__disaggregation__kv_transfer": {"mode": "push", "blocking": True}}, "blocking needs mode pull"),
        ({"cluster__disaggregation__kv_transfer": {"dtype": "fp9"}}, "unknown data type 'fp9' (did you mean"),
        ({"cluster__network": {"bandwidth": 0}}, "cluster.network.bandwidth: must be > 0.0 (got 0)"),
        ({"cluster__disaggregation__first_token": "both"}, "first_token: is not a known value (got 'both')"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        simulate(changed(SPLIT, **changes))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_speculation_is_refused() -> None:
    speculation = {"method": "ngram", "num_speculative_tokens": 2, "acceptance": 0.5}
    with pytest.raises(InputError, match=r"cluster\.pools\.1\.speculation: with split requests is not modelled"):
        simulate(changed(SPLIT, cluster__pools__1__speculation=speculation))


def test_summary_and_requests_of_a_split_run(tmp_path: Path) -> None:
    """Every byte of every prompt is counted, both replicas stand in the table, and the pools are listed."""
    outcome = simulate(SPLIT)
    summary, requests = outcome.summary, outcome.requests
    assert summary["num_finished"] == 40
    assert summary["kv_transfer"]["num_transfers"] == 40
    assert summary["kv_transfer"]["num_bytes"] == 131_072 * summary["num_prompt_tokens"]  # 32 layers x 2 x 8 x 128 x 2
    assert summary["kv_transfer"]["duration"]["mean"] > 1e-5 + 131_072 * requests["num_prompt_tokens"].mean() / 25e9
    assert 0 < summary["kv_transfer"]["share_of_e2e"] < 1
    assert [(pool["name"], pool["role"]) for pool in summary["pools"]] == [("p", "prefill"), ("d", "decode")]
    assert set(requests["prefill_replica"]) == {0}
    assert set(requests["decode_replica"]) == {1}
    write(outcome, tmp_path / "run")
    assert "always_split" in (tmp_path / "run" / "config.yaml").read_text(encoding="utf-8")


LONG_ANSWERS = {"distribution": "fixed", "value": 200}


@pytest.mark.parametrize("network", [None, {"bandwidth": 50.0e9, "latency": "10us"}])
def test_on_a_fast_link_transfers_are_about_one_per_cent_of_the_latency(network: dict[str, Any] | None) -> None:
    """Splitwise and DistServe say so of InfiniBand and NVLink: bytes on their way take less than 1 % of e2e."""
    values = changed(SPLIT, cluster__network=network, workload__output_tokens=LONG_ANSWERS)
    summary = simulate(values).summary
    assert 0 < summary["kv_transfer"]["duration"]["mean"] < 0.01 * summary["e2e"]["mean"]


def test_the_second_token_pays_for_a_transfer_that_is_serialised() -> None:
    """2,048 tokens, 0.27 GB: at 1 GB/s the second token comes 0.24 s later than at 10 GB/s, the first does not."""
    one = {"num_requests": 1, "prompt_tokens": {"distribution": "fixed", "value": 2048}, "output_tokens": LONG_ANSWERS}
    tables = [
        simulate(
            changed(SPLIT, cluster__network={"bandwidth": speed}, workload={**SPLIT["workload"], **one})
        ).requests.iloc[0]
        for speed in (1.0e9, 10.0e9)
    ]
    slow, fast = tables
    num_bytes = 131_072 * 2048
    assert slow["ttft"] == fast["ttft"]
    assert slow["max_itl"] - fast["max_itl"] == pytest.approx(num_bytes / 1.0e9 - num_bytes / 10.0e9, abs=1e-8)


def test_the_terminal_shows_transfers_and_pools() -> None:
    lossy = {"failure_rate": 0.3, "retries": 5}
    outcome = simulate(changed(SPLIT, cluster__disaggregation__kv_transfer=lossy))
    lines, moved = dict(topics(outcome)), outcome.summary["kv_transfer"]
    assert lines["KV transfers"].startswith(f"40 of {moved['num_bytes'] / 1e9:.3g} GB in all")
    assert lines["KV transfers"].endswith(f"; {moved['num_failed']} attempts lost")
    assert lines["pools"].startswith("p (prefill) busy ")
    assert not {"pools", "KV transfers"}.intersection(dict(topics(simulate(MIXED))))


def test_fewer_bytes_where_the_transfer_has_another_data_type() -> None:
    narrow = simulate(changed(SPLIT, cluster__disaggregation__kv_transfer={"dtype": "fp8"})).summary["kv_transfer"]
    assert narrow["num_bytes"] == simulate(SPLIT).summary["kv_transfer"]["num_bytes"] / 2


def test_no_split_is_null_and_no_pools_is_nothing() -> None:
    """Never split: kv_transfer is null. Cannot be split: the summary does not know the key."""
    never = changed(SPLIT, cluster__disaggregation={"policy": "by_prompt_length", "threshold": 10**6})
    assert simulate(never).summary["kv_transfer"] is None
    assert not {"kv_transfer", "pools"}.intersection(simulate(MIXED).summary)


@pytest.mark.parametrize("router", ["random", "round_robin", "least_outstanding_tokens"])
def test_a_policy_that_never_splits_changes_nothing(router: str) -> None:
    """Mixed replicas beside idle ones of other roles: the same requests to the last bit as without those."""
    alone = changed(MIXED, cluster__router={"policy": router})
    beside = changed(
        alone,
        cluster__pools=[*alone["cluster"]["pools"], *SPLIT["cluster"]["pools"]],
        cluster__network=SPLIT["cluster"]["network"],
        cluster__disaggregation={"policy": "by_prompt_length", "threshold": 10**6},
    )
    found, wanted = simulate(beside), simulate(alone)
    assert found.requests.equals(wanted.requests)
    for name in ("ttft", "itl", "e2e", "duration", "num_steps", "stability_details"):
        assert found.summary[name] == wanted.summary[name]


def test_short_prompts_go_to_the_decode_pool_where_no_pool_is_mixed() -> None:
    outcome = simulate(changed(SPLIT, cluster__disaggregation={"policy": "by_prompt_length", "threshold": 1500}))
    long = outcome.requests["num_prompt_tokens"] > 1500
    assert 5 < long.sum() < 35
    assert (outcome.requests["prefill_replica"] == np.where(long, 0, 1)).all()
    assert (outcome.requests["decode_replica"] == 1).all()
    assert outcome.summary["kv_transfer"]["num_transfers"] == long.sum()


def test_files_are_the_same_bytes_with_and_without_step_by_step(tmp_path: Path) -> None:
    values = changed(SPLIT, cluster__disaggregation__kv_transfer={"mode": "push", "granularity": "layer"})
    for name, stepped in (("fast", False), ("stepped", True)):
        write(simulate(values, stepped), tmp_path / name)
    for file in ("summary.json", "requests.parquet", "config.yaml"):
        assert (tmp_path / "fast" / file).read_bytes() == (tmp_path / "stepped" / file).read_bytes()


def test_a_blocking_pull_stops_the_decodes() -> None:
    """One request decodes (39 steps of 10 ms) when the KV of another one takes 30 ms: it ends as much later."""
    steps = {"kind": "constant", "step_duration": 0.01}
    prefill = {**POOL, "name": "p", "role": "prefill", "cost_model": steps, "scheduler": {"async_scheduling": False}}
    token = 131072  # bytes of KV
    values = {
        "workload": {
            "num_requests": 2,
            "arrivals": {"process": "constant", "rate": 5.0},
            "prompt_tokens": {"distribution": "fixed", "value": 300},
            "output_tokens": {"distribution": "fixed", "value": 40},
        },
        "cluster": {
            "pools": [prefill, {**prefill, "name": "d", "role": "decode"}],
            "network": {"bandwidth": 300 * token / 0.03},
            "disaggregation": {"policy": "always_split"},
        },
    }
    for blocking, e2e in ((False, 0.01 + 0.03 + 39 * 0.01), (True, 0.01 + 0.03 + 39 * 0.01 + 0.03)):
        for step_by_step in (False, True):
            moves = {"blocking": blocking}
            outcome = simulate(changed(values, cluster__disaggregation__kv_transfer=moves), step_by_step)
            assert outcome.requests["e2e"][0] == pytest.approx(e2e, abs=1e-6)


AS_IN_THE_ENGINE: dict[str, dict[str, Any]] = {
    "vllm-v1": {"first_token": "decode"},
    "sglang": {"kv_transfer": {"mode": "push", "granularity": "chunk", "reserved_tokens_per_sequence": 512}},
    "distserve": {"kv_transfer": {"max_inflight_tokens": 400, "blocking": True}},
}


@pytest.mark.parametrize("engine", AS_IN_THE_ENGINE)
@pytest.mark.parametrize(("num_prefill", "num_decode"), [(1, 1), (2, 1), (1, 2)])
def test_presets_fast_forward_exactly_in_little_memory(engine: str, num_prefill: int, num_decode: int) -> None:
    """Memory for two or three requests on each replica, a fifth of the clients give up, sides of two engines."""
    memory = {"num_blocks": 8001 if engine == "sglang" else 501}
    values = changed(
        SPLIT,
        workload__cancel_after={"fraction": 0.2, "after": {"distribution": "uniform", "min": 0.01, "max": 1.0}},
        cluster__network={"bandwidth": 2.0e9},
        cluster__disaggregation={"policy": "always_split", **AS_IN_THE_ENGINE[engine]},
        cluster__pools__0__replicas=num_prefill,
        cluster__pools__1__replicas=num_decode,
        cluster__pools__1__engine=engine,
        cluster__pools__1__kv_cache=memory,
        cluster__pools__0__kv_cache={"num_blocks": 501},
    )
    found, wanted = simulate(values), simulate(values, step_by_step=True)
    assert found.requests.equals(wanted.requests)
    assert found.summary == wanted.summary
    assert found.summary["num_cancelled"] > 0
    assert found.summary["num_finished"] + found.summary["num_cancelled"] == 40
    assert found.summary["pools"][1]["peak_kv_usage"] > 0.7


def test_losses_are_drawn_by_row_and_attempt() -> None:
    """The share of lost attempts is the rate, and a draw does not depend on what was asked before."""
    is_lost = losses(7, 0.25)
    found = [is_lost(row, attempt) for row in range(1000) for attempt in range(3)]
    assert np.mean(found) == pytest.approx(0.25, abs=4 * np.sqrt(0.25 * 0.75 / 3000))
    assert [is_lost(row, 2) for row in (5, 3)] == [found[17], found[11]]
    assert not any(losses(7, 0.0)(row, 0) for row in range(100))


# --- policies ---------------------------------------------------------------------------------------------------------


class FakeReplica:
    num_kv_blocks, kv_block_size = 10, 1000

    def __init__(self, num_running: int) -> None:
        self.num_running = num_running


class FakePool:
    """10 us a prompt token to compute, 1 us to transfer; 100 tokens of every prompt are cached."""

    def __init__(self, role: str, loads: list[int], num_running: int = 0) -> None:
        self.role = role
        self.replicas = [FakeReplica(num_running) for _ in loads]
        self.outstanding_tokens = np.array(loads)

    def num_cached_tokens(self, request: Any) -> int:
        return 100

    def prefill_duration(self, num_tokens: int) -> float:
        return 1e-5 * num_tokens

    def transfer_duration(self, num_tokens: int) -> float:
        return 1e-6 * num_tokens


class FakeRequest:
    predicted_output_tokens = None

    def __init__(self, num_prompt_tokens: int, max_output_tokens: int = 1) -> None:
        self.num_prompt_tokens = num_prompt_tokens
        self.max_output_tokens = max_output_tokens


def place(name: str, prompt: int, pools: list[FakePool], **params: Any) -> Any:
    policy = policies.make("disaggregation", name, params, "test")
    return policy.place(FakeRequest(prompt), pools, 0.0)


def test_the_least_loaded_pool_of_a_role_is_taken() -> None:
    pools = [FakePool("decode", [5, 7]), FakePool("prefill", [9]), FakePool("decode", [6]), FakePool("prefill", [8, 9])]
    assert place("always_split", 10, pools) == Split(3, 0)
    assert place("by_prompt_length", 10, pools, threshold=10) == Colocated(0)
    assert place("by_prompt_length", 11, pools, threshold=10) == Split(3, 0)


def test_mixed_pools_take_what_stays_together() -> None:
    pools = [FakePool("prefill", [0]), FakePool("decode", [0]), FakePool("mixed", [0])]
    assert place("by_prompt_length", 10, pools, threshold=10) == Colocated(None)
    assert place("colocated", 10, pools) == Colocated(None)


def test_cached_tokens_count_as_computed() -> None:
    pools = [FakePool("prefill", [0]), FakePool("decode", [0])]
    assert place("by_uncached_tokens", 600, pools, threshold=500) == Colocated(1)
    assert place("by_uncached_tokens", 601, pools, threshold=500) == Split(0, 1)


@pytest.mark.parametrize(("running", "weight", "splits"), [(0, 1.0, False), (1, 1.0, True), (1, 10.0, False)])
def test_interference_is_weighed_against_the_transfer(running: int, weight: float, splits: bool) -> None:
    """1,000 tokens: 9 ms for each running request (900 are not cached) against 1 ms of transfer."""
    pools = [FakePool("prefill", [0]), FakePool("decode", [0], running)]
    found = place("by_predicted_interference", 1000, pools, weight=weight)
    assert found == (Split(0, 1) if splits else Colocated(1))


@pytest.mark.parametrize("name", sorted(set(DISAGGREGATIONS) - {"colocated"}))
def test_every_policy_serves_a_run(name: str) -> None:
    params = {"threshold": 1000} if name.startswith(("by_prompt", "by_uncached")) else {}
    outcome = simulate(changed(SPLIT, cluster__disaggregation={"policy": name, **params}))
    assert outcome.summary["num_finished"] == 40


def test_splitwise_overflows_into_the_mixed_pool() -> None:
    """Prompts beyond 8,192 pending tokens, and outputs beyond 10 blocks of 1,000 tokens; both: one replica."""
    request = FakeRequest(1000, max_output_tokens=500)

    def found(prefill: list[int], decode: list[int], mixed: list[int]) -> Any:
        pools = [FakePool("mixed", mixed), FakePool("prefill", prefill), FakePool("decode", decode)]
        return policies.make("disaggregation", "splitwise", {}, "test").place(request, pools, 0.0)

    assert found([7192], [8500], [0]) == Split(1, 2)
    assert found([7193], [8500], [0]) == Split(0, 2)
    assert found([7193, 0], [8500], [0]) == Split(1, 2)
    assert found([0], [8501, 9000], [0]) == Split(1, 0)
    assert found([7193], [8501], [0]) == Colocated(0)
    assert found([0], [8501], [8501]) == Colocated(None)


class SplitWithItself:
    def place(self, request: Any, pools: Any, now: float) -> Split:
        return Split(1, 1)


class DecodeFirst:
    def place(self, request: Any, pools: Any, now: float) -> Split:
        return Split(1, 0)


@pytest.mark.parametrize(
    ("name", "message"),
    [("SplitWithItself", "gave the prefill part to pool d of role decode"), ("DecodeFirst", "gave the prefill part")],
)
def test_a_wrong_answer_of_a_policy_is_named(name: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        simulate(changed(SPLIT, cluster__disaggregation__policy=f"{__name__}:{name}"))
