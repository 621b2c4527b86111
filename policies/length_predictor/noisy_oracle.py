"""The true output length times a random factor of stated spread: a predictor of known quality."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING, ClassVar

import numpy as np

if TYPE_CHECKING:
    from sim.views import RequestView

_STANDARD = NormalDist()
_MASK = 2**64 - 1


@dataclass
class NoisyOracle:
    """The true output length times a lognormal factor with median 1: a predictor of known quality.

    `error`: standard deviation of its logarithm (0.5: two of three predictions are right within a factor of 1.65). At
    least 1 token, at most what the request declares. The draw depends on the seed and the row only, so that other
    policies see the same predictions. Source: own, for sensitivity studies. Ignores: that real errors depend on the
    prompt.
    """

    error: float = 0.5
    is_oracle: ClassVar[bool] = True
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0), repr=False)

    def __post_init__(self) -> None:
        if self.error < 0:
            raise ValueError(f"error must be at least 0 (got {self.error})")
        self._key = int(self.rng.integers(2**63))

    def predict(self, request: RequestView, true_output_tokens: int | None) -> float | None:
        if true_output_tokens is None:
            return None
        factor = math.exp(self.error * _STANDARD.inv_cdf(uniform(self._key, request.row)))
        return min(max(1.0, true_output_tokens * factor), float(request.max_output_tokens))

    def learn(self, request: RequestView, num_output_tokens: int) -> None:
        pass


def uniform(key: int, row: int) -> float:
    """A number in (0, 1) that a key and a row determine (the SplitMix64 finalizer: Steele, Lea and Flood, 2014)."""
    x = (key + (row + 1) * 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((x ^ (x >> 31)) >> 11) * 2.0**-53 + 2.0**-54
