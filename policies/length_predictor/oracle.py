"""The true output length: an oracle, an upper bound for what prediction can bring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from sim.views import RequestView


@dataclass
class Oracle:
    """The true output length. No engine can know it: compare with it, do not plan with it.

    Source: textbook upper bound. Ignores: nothing.
    """

    is_oracle: ClassVar[bool] = True

    def predict(self, request: RequestView, true_output_tokens: int | None) -> float | None:
        return None if true_output_tokens is None else float(true_output_tokens)

    def learn(self, request: RequestView, num_output_tokens: int) -> None:
        pass
