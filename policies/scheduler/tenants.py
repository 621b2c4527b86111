"""What the fair schedulers share: whose request it is, what it weighs, and the service that a tenant has had."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.batch import BatchBuilder
    from sim.views import SequenceView


def tenant_of(seq: SequenceView) -> str:
    """Its tenant; requests without one share the tenant ''."""
    return seq.tenant or ""


def check_weights(weights: Mapping[str, float], **numbers: float) -> None:
    """Raise ValueError for a weight or number that is not above 0."""
    named = {**{f"weights.{name}": value for name, value in weights.items()}, **numbers}
    for name, value in named.items():
        if not value > 0:
            raise ValueError(f"{name} must be above 0 (got {value})")


class Service:
    """Prompt and output tokens that each tenant was served: whole numbers, whenever one looks.

    The prompt of a request counts once, when it is first admitted; its output as it is computed, which leaves out the
    first token (the prefill makes it) as VTC-artifact does. Tokens computed again after a preemption do not count
    again.
    """

    def __init__(self) -> None:
        self.prompt: dict[str, int] = {}
        self.output: dict[str, int] = {}
        self._counted: dict[int, int] = {}  # tokens counted, by row

    def admitted(self, seq: SequenceView) -> None:
        """A request joins the batch."""
        if seq.row not in self._counted:
            self._counted[seq.row] = seq.num_prompt_tokens
            tenant = tenant_of(seq)
            self.prompt[tenant] = self.prompt.get(tenant, 0) + seq.num_prompt_tokens

    def catch_up(self, batch: BatchBuilder) -> None:
        """Count the output of the running requests up to now."""
        for row, tenant, num_computed in batch.progress():
            self._count(row, tenant, num_computed)

    def left(self, seq: SequenceView, ended: bool) -> None:
        """A request ended, was cancelled or preempted: count what it was served."""
        self._count(seq.row, tenant_of(seq), seq.num_computed)
        if ended:
            self._counted.pop(seq.row, None)

    def _count(self, row: int, tenant: str, num_computed: int) -> None:
        fresh = num_computed - self._counted.get(row, num_computed)
        if fresh > 0:
            self._counted[row] = num_computed
            self.output[tenant] = self.output.get(tenant, 0) + fresh
