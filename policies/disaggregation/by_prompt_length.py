"""Prompts longer than a threshold are split, shorter ones computed where they are decoded."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import TYPE_CHECKING

from policies.disaggregation.candidates import split, together

if TYPE_CHECKING:
    from sim.decisions import Placement
    from sim.views import PoolView, RequestView


@dataclass
class ByPromptLength:
    """`threshold`: tokens. Short prompts go to the mixed pools, or to a decode pool where there is no mixed one."""

    threshold: int

    def __post_init__(self) -> None:
        if self.threshold < 0:
            raise ValueError(f"threshold must not be negative (got {self.threshold})")

    def place(self, request: RequestView, pools: Ordered[PoolView], now: float) -> Placement:
        return split(pools) if request.num_prompt_tokens > self.threshold else together(pools)
