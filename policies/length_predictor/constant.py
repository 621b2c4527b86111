"""The same number of output tokens for everybody, at most what the request declares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.views import RequestView


@dataclass
class Constant:
    """The same number of output tokens for everybody, at most what the request declares.

    `tokens`: that number, such as the mean of yesterday's traffic. Source: textbook baseline. Ignores: who asks and
    what.
    """

    tokens: float = 256.0

    def __post_init__(self) -> None:
        if not self.tokens > 0:
            raise ValueError(f"tokens must be above 0 (got {self.tokens})")

    def predict(self, request: RequestView, true_output_tokens: int | None) -> float | None:
        return min(self.tokens, float(request.max_output_tokens))

    def learn(self, request: RequestView, num_output_tokens: int) -> None:
        pass
