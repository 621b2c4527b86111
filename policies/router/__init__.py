"""Routers: which replica serves a request."""

from __future__ import annotations

from collections.abc import Callable

from policies.router.least_outstanding_requests import LeastOutstandingRequests
from policies.router.least_outstanding_tokens import LeastOutstandingTokens
from policies.router.random import Random
from policies.router.round_robin import RoundRobin
from sim.interfaces import Router

ROUTERS: dict[str, Callable[..., Router]] = {
    "round_robin": RoundRobin,
    "random": Random,
    "least_outstanding_requests": LeastOutstandingRequests,
    "least_outstanding_tokens": LeastOutstandingTokens,
}
