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

    The prompt of a request counts once, when it is first admitted; the first output token, which the prefill makes,
    never; tokens that are computed again after a preemption do not count again (VTC-artifact counts so).
    """

    def __init__(self) -> None:
        self.prompt: dict[str, int] = {}
        self.output: dict[str, int] = {}
        self._counted: dict[int, int] = {}  # output tokens counted, by row

    def admitted(self, seq: SequenceView) -> None:
        """A request joins the batch."""
        if seq.row not in self._counted:
            self._counted[seq.row] = 0
            tenant = tenant_of(seq)
            self.prompt[tenant] = self.prompt.get(tenant, 0) + seq.num_prompt_tokens

    def catch_up(self, batch: BatchBuilder) -> None:
        """Count the output of the running requests up to now."""
        tenants = batch.running_tenants()
        for seq in batch.decoding():
            self._count(seq.row, tenants[seq.order], seq.num_emitted)

    def left(self, seq: SequenceView, ended: bool) -> None:
        """A request ended, was cancelled or preempted: count what it was served."""
        self._count(seq.row, tenant_of(seq), seq.num_emitted)
        if ended:
            self._counted.pop(seq.row, None)

    def _count(self, row: int, tenant: str, num_emitted: int) -> None:
        fresh = num_emitted - 1 - self._counted.get(row, 0)
        if fresh > 0:
            self._counted[row] = num_emitted - 1
            self.output[tenant] = self.output.get(tenant, 0) + fresh
