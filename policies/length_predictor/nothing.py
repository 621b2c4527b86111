"""No prediction: whoever needs one takes the declared maximum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.views import RequestView


@dataclass
class Nothing:
    """No prediction. Source: engines, which know nothing but max_output_tokens. Ignores: all that could be learned."""

    def predict(self, request: RequestView, true_output_tokens: int | None) -> float | None:
        return None

    def learn(self, request: RequestView, num_output_tokens: int) -> None:
        pass
