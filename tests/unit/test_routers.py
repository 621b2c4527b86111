"""Single decisions of routers, worked by hand, most of them from the behaviour of the gateways they model."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from router_views import FakeCluster, FakeReplica, Request, begun, equal

from policies.router import ROUTERS
from policies.router.consistent_hash import ConsistentHash
from policies.router.dynamo import Dynamo, softmax
from policies.router.least_kv_usage import LeastKvUsage
from policies.router.least_predicted_work import LeastPredictedWork
from policies.router.llm_d import LlmD
from policies.router.mooncake import Mooncake
from policies.router.power_of_two_choices import PowerOfTwoChoices
from policies.router.prefix_approximate import PrefixApproximate
from policies.router.prefix_precise import PrefixPrecise
from policies.router.production_stack import ProductionStack
from policies.router.session_affinity import SessionAffinity
from policies.router.sglang_router import SglangRouter
from policies.router.slo_aware import SloAware
from policies.router.vllm_dp import VllmDp
from policies.router.weighted import Weighted


def chain(name: str, count: int) -> tuple[str, ...]:
    return tuple(f"{name}{i}" for i in range(count))


@pytest.mark.parametrize("name", ROUTERS)
def test_every_router_serves_a_single_candidate_that_is_not_the_first_replica(name: str) -> None:
    """Positions are those of the candidates, state is kept by index."""
    replicas = equal(3)
    router = begun(ROUTERS[name](), replicas)
    for row in range(3):
        request = Request(row=row, session="s", tenant="t", ids=chain("a", 10))
        assert router.route(request, FakeCluster([replicas[2]]), float(row)) == 0
        if hasattr(router, "ended"):
            router.ended(request, 2)


@pytest.mark.parametrize("name", ROUTERS)
def test_every_router_takes_a_prompt_without_ids(name: str) -> None:
    replicas = equal(4)
    router = begun(ROUTERS[name](), replicas)
    assert all(0 <= router.route(Request(row=i), FakeCluster(replicas), 0.0) < 4 for i in range(6))


# --- loads ------------------------------------------------------------------------------------------------------------


def test_least_kv_usage_breaks_ties_by_requests() -> None:
    replicas = [FakeReplica(0, kv_usage=0.5), FakeReplica(1, kv_usage=0.2), FakeReplica(2, kv_usage=0.2)]
    assert LeastKvUsage().route(Request(), FakeCluster(replicas, [0, 4, 3]), 0.0) == 2


def test_power_of_two_never_takes_the_most_loaded() -> None:
    """Two distinct ones are drawn, so the worst of all loses every comparison; the best wins 2 / n of the time."""
    router, replicas = PowerOfTwoChoices(rng=np.random.default_rng(5)), equal(8)
    loads = [7, 6, 5, 4, 3, 2, 1, 9]
    taken = Counter(router.route(Request(), FakeCluster(replicas, loads), 0.0) for _ in range(4000))
    assert taken[7] == 0
    assert taken[6] / 4000 == pytest.approx(2 / 8, abs=0.03)


def test_predicted_work_goes_to_the_one_that_is_done_first() -> None:
    """A prompt of 1,000 and 100 outputs: 2 s on the slow replica, 0.5 s on the fast one, which gets four of five."""
    replicas = [FakeReplica(0), FakeReplica(1, prefill_speed=4000.0, decode_speed=400.0)]
    router, cluster = begun(LeastPredictedWork(), replicas), FakeCluster(replicas)
    rows = [Request(row=i, num_prompt_tokens=1000, max_output_tokens=100) for i in range(5)]
    assert [router.route(request, cluster, 0.0) for request in rows] == [1, 1, 1, 0, 1]
    for request, replica in zip(rows, [1, 1, 1, 0, 1], strict=True):
        router.ended(request, replica)
    assert router._work.tolist() == [0, 0]


def test_mooncake_weighs_the_queue_against_the_cached_prefix() -> None:
    """A prompt of 1,000 at 10,000 tokens a second: 800 cached behind 0.30 s of prompts give 0.32 s, 100 cached and no
    queue 0.09 s. Behind 0.05 s of prompts the first replica is the better one.
    """
    replicas = [FakeReplica(0, prefill_speed=1e4), FakeReplica(1, prefill_speed=1e4)]
    request, cached = Request(num_prompt_tokens=1000), [800, 100]
    for queued, position, scores in ((3000, 1, [0.32, 0.09]), (500, 0, [0.07, 0.09])):
        router = begun(Mooncake(), replicas, cached=cached, prefills=[queued, 0])
        assert router.route(request, FakeCluster(replicas), 0.0) == position
        assert router.scores == pytest.approx(scores)


def test_vllm_dp_weighs_waiting_by_memory_pressure() -> None:
    """In flight 10 and 12; 2 wait with a KV usage of 0.9: 10 + 2 * 6 * 0.4 = 14.8."""
    replicas = [FakeReplica(0, num_waiting=2, kv_usage=0.9), FakeReplica(1, num_waiting=2, kv_usage=0.4)]
    router = begun(VllmDp(), replicas)
    assert router.route(Request(), FakeCluster(replicas, [10, 12]), 0.0) == 1
    assert router.scores == pytest.approx([14.8, 12.0])


def test_vllm_dp_takes_turns_where_scores_are_equal() -> None:
    router, replicas = begun(VllmDp(), equal(3)), equal(3)
    assert [router.route(Request(), FakeCluster(replicas), 0.0) for _ in range(4)] == [0, 1, 2, 0]


# --- sessions and keys ------------------------------------------------------------------------------------------------


def test_a_session_stays_until_it_is_forgotten_or_its_replica_is_gone() -> None:
    router, replicas = SessionAffinity(idle_timeout=100.0), equal(3)
    turn = Request(session="s")
    assert router.route(turn, FakeCluster(replicas, [2, 1, 3]), 0.0) == 1
    assert router.route(turn, FakeCluster(replicas, [0, 9, 0]), 100.0) == 1
    assert router.route(turn, FakeCluster(replicas[1:], [9, 0]), 150.0) == 0  # the same replica, elsewhere in the list
    assert router.route(turn, FakeCluster(replicas[::2], [1, 0]), 160.0) == 1  # it is gone
    assert router.route(turn, FakeCluster(replicas, [0, 1, 1]), 261.0) == 0  # 101 s later


def test_a_key_stays_when_another_replica_leaves() -> None:
    """Consistent: only keys of the replica that left move."""
    replicas, sessions = equal(8), [Request(session=f"s{i}") for i in range(400)]
    router = ConsistentHash(bound=None)
    before = [router.route(request, FakeCluster(replicas), 0.0) for request in sessions]
    after = [router.route(request, FakeCluster(replicas[:7]), 0.0) for request in sessions]
    moved = [old for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {7}
    shares = Counter(before)
    assert set(shares) == set(range(8))
    assert max(shares.values()) < 2 * 400 / 8


@pytest.mark.parametrize("overflow", ["clockwise", "least_loaded"])
def test_no_replica_gets_more_than_its_bound(overflow: str) -> None:
    """One key for everything: 4 replicas, at most ceil(1.25 * mean) each."""
    router: Any = ConsistentHash(overflow=overflow)  # type: ignore[arg-type]
    replicas, loads = equal(4), [0, 0, 0, 0]
    for row in range(40):
        loads[router.route(Request(row=row, session="hot"), FakeCluster(replicas, loads), 0.0)] += 1
        assert max(loads) <= -(-1.25 * sum(loads) // 4)
    assert max(loads) == 13


def test_a_prefix_key_looks_at_the_first_ids_only() -> None:
    replicas = equal(8)
    router = begun(ConsistentHash(key="prefix", prefix_tokens=25, bound=None), replicas)
    one, two = chain("a", 3) + chain("x", 3), chain("a", 3) + chain("y", 5)
    found = {router.route(Request(ids=ids), FakeCluster(replicas), 0.0) for ids in (one, two)}
    assert len(found) == 1


# --- prefixes ---------------------------------------------------------------------------------------------------------


def test_unequal_loads_override_the_cache() -> None:
    """70 and 3 are too unequal (67 > 64 and 70 > 4.5); 130 and 90 are not (40 apart)."""
    replicas = equal(2)
    router = begun(PrefixPrecise(), replicas, cached=[80, 0])
    assert router.route(Request(), FakeCluster(replicas, [70, 3]), 0.0) == 1
    assert router.route(Request(), FakeCluster(replicas, [130, 90]), 0.0) == 0


def test_a_match_must_exceed_the_threshold() -> None:
    """300 of 1,000 tokens are not more than 0.3."""
    replicas = equal(2)
    request = Request(num_prompt_tokens=1000)
    for cached, chosen in ((300, 1), (310, 0)):
        router = begun(PrefixPrecise(cache_threshold=0.3), replicas, cached=[cached, 0])
        assert router.route(request, FakeCluster(replicas, [5, 4]), 0.0) == chosen


def test_the_approximate_index_remembers_what_was_sent_and_forgets_the_oldest_end() -> None:
    """Room for 4 ids of 10 tokens: after prompts a (3 ids) and b (2 ids) the last of a is forgotten."""
    replicas = equal(2)
    router = begun(PrefixApproximate(capacity_tokens=40, cache_threshold=0.0), replicas)
    a, b = Request(num_prompt_tokens=30, ids=chain("a", 3)), Request(num_prompt_tokens=20, ids=chain("b", 2))
    assert router.route(a, FakeCluster(replicas, [0, 1]), 0.0) == 0
    assert router.cached_tokens(a).tolist() == [30, 0]
    router.route(b, FakeCluster(replicas, [0, 1]), 0.0)
    assert router.cached_tokens(a).tolist() == [20, 0]
    assert router.cached_tokens(b).tolist() == [20, 0]


def test_sglang_goes_to_the_latest_owner_and_others_to_the_least_loaded() -> None:
    replicas = equal(2)
    prompt = Request(num_prompt_tokens=30, ids=chain("a", 3))
    for router, wanted in ((SglangRouter(), 1), (PrefixApproximate(), 0)):
        begun(router, replicas)
        router.route(prompt, FakeCluster(replicas, [0, 1]), 0.0)
        router.route(prompt, FakeCluster(replicas, [99, 1]), 0.0)  # too unequal: the other one becomes an owner
        assert router.route(prompt, FakeCluster(replicas, [2, 5]), 0.0) == wanted


def test_production_stack_takes_the_lowest_rate_without_a_match() -> None:
    replicas = equal(3)
    router = begun(ProductionStack(window=60.0), replicas)
    rows = [Request(row=i, ids=chain(f"p{i}-", 2)) for i in range(4)]
    assert [router.route(rows[i], FakeCluster(replicas, [9, 0, 0]), 0.0) for i in range(3)] == [0, 1, 2]
    assert router.route(rows[1], FakeCluster(replicas, [0, 99, 0]), 1.0) == 1  # a match, whatever the load
    assert router.route(rows[3], FakeCluster(replicas), 59.0) == 0
    assert router.route(Request(), FakeCluster(replicas), 61.0) == 2  # those of second 0 are out of the window


def test_llm_d_adds_up_its_scorers() -> None:
    """2 * queue + 2 * memory + 3 * prefix: 3.6, 3.2, 2.0; with a full match 3.8 for the second."""
    replicas = [FakeReplica(0, 0, 0, 0.2), FakeReplica(1, 2, 0, 0.6), FakeReplica(2, 1, 0, 0.5)]
    for cached, chosen, scores in ((80, 0, [3.6, 3.2, 2.0]), (100, 1, [3.6, 3.8, 2.0])):
        router = begun(LlmD(prefix_source="precise"), replicas, cached=[0, cached, 0])
        assert router.route(Request(), FakeCluster(replicas), 0.0) == chosen
        assert router.scores == pytest.approx(scores)


def test_weighted_scores_load_and_session() -> None:
    replicas = equal(3)
    router = begun(Weighted(queue=0, kv=0, prefix=0, load=1.0, session=0.5), replicas)
    turn = Request(session="s")
    assert router.route(turn, FakeCluster(replicas, [4, 0, 2]), 0.0) == 1
    assert router.route(turn, FakeCluster(replicas, [0, 1, 4]), 0.0) == 1
    assert router.scores == pytest.approx([1.0, 0.75 + 0.5, 0.0])


def test_equal_scores_are_drawn_evenly() -> None:
    replicas = equal(4)
    router = begun(LlmD(rng=np.random.default_rng(2)), replicas)
    taken = Counter(router.route(Request(row=i), FakeCluster(replicas), 0.0) for i in range(2000))
    assert all(count / 2000 == pytest.approx(0.25, abs=0.04) for count in taken.values())


def test_dynamo_cost_in_blocks() -> None:
    """Blocks of 64, a prompt of 512: 256 tokens in prefill and 4 blocks of overlap make 8, plus 20 in decode: 28.

    Without either 8 + 22 = 30. (Decode blocks count the request itself.)
    """
    replicas = equal(2)
    router = begun(Dynamo(block_size=64), replicas, block_size=64, cached=[256, 0], prefills=[256, 0])
    for row, (replica, blocks) in enumerate([(0, 12), (1, 14)]):
        router._active.sent(Request(row=100 + row, num_prompt_tokens=64 * blocks), replica)
    request = Request(num_prompt_tokens=512)
    assert router.route(request, FakeCluster(replicas), 0.0) == 0
    assert router.scores == pytest.approx([28, 30])
    assert softmax(-np.array([0.0, 2.0])) == pytest.approx([0.881, 0.119], abs=5e-4)


def test_dynamo_draws_in_proportion_at_a_temperature() -> None:
    """Costs 28 and 30 at 0.5: weights 1 and e^-2."""
    router = Dynamo(temperature=0.5, rng=np.random.default_rng(1))
    taken = Counter(router._draw(np.array([28.0, 30.0])) for _ in range(4000))
    assert taken[0] / 4000 == pytest.approx(0.881, abs=0.02)


def test_dynamo_counts_shared_blocks_once_and_forgets_what_ended() -> None:
    replicas = equal(2)
    router = begun(Dynamo(block_size=10), replicas)
    first, second = Request(row=0, ids=chain("a", 10)), Request(row=1, ids=chain("a", 8) + chain("b", 2))
    router._active.sent(first, 0)
    assert router._active.tokens_with(second).tolist() == [120, 100]
    router._active.sent(second, 0)
    router._active.ended(first, 0)
    assert router._active.tokens_with(first).tolist() == [120, 100]
    router._active.ended(second, 0)
    assert router._active.tokens_with(first).tolist() == [100, 100]


def test_slo_aware_follows_the_cache_as_far_as_the_target_allows() -> None:
    """1,000 tokens a second. Cached: 80 of 100, but 2,000 tokens queue there: 2.02 s; elsewhere 0.1 s."""
    replicas = equal(2)
    for target, chosen in ((3.0, 0), (1.0, 1)):
        router = begun(SloAware(ttft=target, prefix_source="precise"), replicas, cached=[80, 0], prefills=[2000, 0])
        assert router.route(Request(), FakeCluster(replicas), 0.0) == chosen
        assert router.scores == pytest.approx([2.02, 0.1])


def test_slo_aware_takes_the_soonest_when_nobody_is_in_time() -> None:
    replicas = equal(2)
    router = begun(SloAware(ttft=0.05, prefix_source="precise"), replicas, cached=[90, 0], prefills=[500, 100])
    assert router.route(Request(), FakeCluster(replicas), 0.0) == 1


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("consistent_hash", {"bound": 0.5}),
        ("session_affinity", {"idle_timeout": 0.0}),
        ("power_of_two_choices", {"choices": 0}),
        ("prefix_approximate", {"capacity_tokens": 0}),
        ("prefix_precise", {"cache_threshold": 2.0}),
        ("weighted", {"queue": 0, "kv": 0, "prefix": 0}),
        ("dynamo", {"temperature": -1.0}),
        ("slo_aware", {"ttft": 0.0}),
        ("production_stack", {"window": 0.0}),
    ],
)
def test_impossible_parameters_are_refused(name: str, params: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must|above"):
        ROUTERS[name](**params)
