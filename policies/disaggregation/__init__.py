"""Disaggregation policies: whether prefill and decode of a request run on different replicas."""

from __future__ import annotations

from collections.abc import Callable

from policies.disaggregation.colocated import Colocated

DISAGGREGATIONS: dict[str, Callable[..., object]] = {"colocated": Colocated}
