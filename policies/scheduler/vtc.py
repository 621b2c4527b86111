"""The tenant with the least service so far is next; its oldest request is admitted, or nobody's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from policies.scheduler.fcfs import Fcfs
from policies.scheduler.tenants import Service, check_weights

if TYPE_CHECKING:
    from sim.batch import BatchBuilder
    from sim.views import SequenceView


@dataclass
class Vtc(Fcfs):
    """Virtual token counter (OSDI 2024; rules as in VTC-artifact 192c2e2) on continuous batching with chunked prefill.

    Counter of a tenant: (`prompt_weight` x prompt tokens admitted + `output_weight` x output tokens after the first) /
    its entry in `weights` (1 where it has none). A tenant that begins to wait is lifted to the least counter of those
    that wait already. No bypass: where the first request of the next tenant does not fit, nobody is admitted.

    Bound between two tenants that always have requests waiting: the weighted services of any interval differ by at most
    2 x max(prompt_weight x longest prompt, output_weight x tokens that fit in memory), as the paper proves. Differs
    from the artifact: requests are considered in every step, not every ten; memory is admitted as in vLLM V1 (0.33).
    While a request is refused for lack of blocks every step is decided one by one. Ignores: predicted lengths (the
    paper's variant with predictions).
    """

    prompt_weight: float = 1.0
    output_weight: float = 2.0
    weights: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_weights(self.weights, prompt_weight=self.prompt_weight, output_weight=self.output_weight)
        self.service = Service()
        self._lift: dict[str, float] = {}
        self._seen: dict[str, int] = {}  # number of the latest beginning to wait that was seen, by tenant

    def counter(self, tenant: str) -> float:
        """Weighted service, lifts included."""
        service = self.service
        tokens = self.prompt_weight * service.prompt.get(tenant, 0) + self.output_weight * service.output.get(tenant, 0)
        return self._lift.get(tenant, 0.0) + tokens / self.weights.get(tenant, 1.0)

    def next_tenant(self, tenants: list[str]) -> str:
        """The one with the least counter; among equals the one that has been waiting longest."""
        return min(tenants, key=self.counter)

    def left(self, seq: SequenceView, ended: bool) -> None:
        """Called by the replica when a sequence leaves the running list."""
        self.service.left(seq, ended)

    def admit_waiting(self, batch: BatchBuilder, cap: int) -> None:
        if not (batch.num_waiting or batch.num_swapped):
            return
        self.service.catch_up(batch)
        self._lift_newcomers(batch.waiting_tenants())
        super().admit_waiting(batch, cap)
        if batch.short_of_memory:
            batch.ask_again()  # decoding moves the counters, and another tenant's request may be smaller

    def admitted(self, seq: SequenceView, batch: BatchBuilder) -> None:
        self.service.admitted(seq)

    def _lift_newcomers(self, tenants: Mapping[str, int]) -> None:
        present = [tenant for tenant, number in tenants.items() if self._seen.get(tenant) == number]
        for tenant, number in tenants.items():
            if self._seen.get(tenant) == number:
                continue
            if present:
                least = min(self.counter(other) for other in present)
                self._lift[tenant] = self._lift.get(tenant, 0.0) + max(0.0, least - self.counter(tenant))
            self._seen[tenant] = number
            present.append(tenant)
