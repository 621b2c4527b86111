"""Routers: which replica serves a request."""

from __future__ import annotations

from collections.abc import Callable

from policies.router.consistent_hash import ConsistentHash
from policies.router.dynamo import Dynamo
from policies.router.least_kv_usage import LeastKvUsage
from policies.router.least_outstanding_requests import LeastOutstandingRequests
from policies.router.least_outstanding_tokens import LeastOutstandingTokens
from policies.router.least_predicted_work import LeastPredictedWork
from policies.router.llm_d import LlmD
from policies.router.mooncake import Mooncake
from policies.router.power_of_two_choices import PowerOfTwoChoices
from policies.router.prefix_approximate import PrefixApproximate
from policies.router.prefix_precise import PrefixPrecise
from policies.router.production_stack import ProductionStack
from policies.router.random import Random
from policies.router.round_robin import RoundRobin
from policies.router.session_affinity import SessionAffinity
from policies.router.sglang_router import SglangRouter
from policies.router.slo_aware import SloAware
from policies.router.vllm_dp import VllmDp
from policies.router.weighted import Weighted
from sim.interfaces import Router

ROUTERS: dict[str, Callable[..., Router]] = {
    "round_robin": RoundRobin,
    "random": Random,
    "least_outstanding_requests": LeastOutstandingRequests,
    "least_outstanding_tokens": LeastOutstandingTokens,
    "least_kv_usage": LeastKvUsage,
    "least_predicted_work": LeastPredictedWork,
    "power_of_two_choices": PowerOfTwoChoices,
    "session_affinity": SessionAffinity,
    "consistent_hash": ConsistentHash,
    "prefix_approximate": PrefixApproximate,
    "prefix_precise": PrefixPrecise,
    "weighted": Weighted,
    "slo_aware": SloAware,
    "llm_d": LlmD,
    "mooncake": Mooncake,
    "sglang_router": SglangRouter,
    "production_stack": ProductionStack,
    "dynamo": Dynamo,
    "vllm_dp": VllmDp,
}
