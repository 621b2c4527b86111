"""Disaggregation policies: whether prefill and decode of a request run on different replicas."""

from __future__ import annotations

from collections.abc import Callable

from policies.disaggregation.always_split import AlwaysSplit
from policies.disaggregation.by_predicted_interference import ByPredictedInterference
from policies.disaggregation.by_prompt_length import ByPromptLength
from policies.disaggregation.by_uncached_tokens import ByUncachedTokens
from policies.disaggregation.colocated import AlwaysColocated
from policies.disaggregation.splitwise import Splitwise
from sim.interfaces import DisaggregationPolicy

DISAGGREGATIONS: dict[str, Callable[..., DisaggregationPolicy]] = {
    "colocated": AlwaysColocated,
    "always_split": AlwaysSplit,
    "by_prompt_length": ByPromptLength,
    "by_uncached_tokens": ByUncachedTokens,
    "by_predicted_interference": ByPredictedInterference,
    "splitwise": Splitwise,
}
