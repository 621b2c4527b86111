"""Autoscalers: how many replicas each pool should have."""

from __future__ import annotations

from collections.abc import Callable

from policies.autoscaler.fixed import Fixed

AUTOSCALERS: dict[str, Callable[..., object]] = {"fixed": Fixed}
