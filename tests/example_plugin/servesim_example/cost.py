"""A cost model: so many seconds a step and a prompt token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.cost import CostContext, ExplainingCostModel, checked_parameters
from sim.cost.constant import ConstantCost


def build(context: CostContext, params: Mapping[str, Any]) -> ExplainingCostModel:
    """A step of a larger model takes longer: `step_duration` is for 10^10 parameters."""
    given = checked_parameters(ConstantCost, params)
    return ConstantCost(given.step_duration * context.model.num_parameters / 1e10, given.per_prefill_token)
