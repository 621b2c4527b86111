"""Tenants take turns; each turn pays for a quantum of tokens, and what a tenant was served too much it waits out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from policies.scheduler.fcfs import Fcfs
from policies.scheduler.tenants import Service, check_weights, tenant_of

if TYPE_CHECKING:
    from sim.batch import BatchBuilder
    from sim.views import SequenceView


@dataclass
class Drr(Fcfs):
    """Deficit round robin over tenants (Shreedhar and Varghese, 1995; token form as in VTC-artifact 192c2e2).

    At its turn a tenant whose deficit is not above 0 gets `quantum` tokens x its entry in `weights` (1 where it has
    none); while its deficit is above 0 its oldest requests are admitted, each at `prompt_weight` x prompt tokens.
    Output is paid while it is made, `output_weight` a token, so deficits go below 0. Where a request does not fit the
    turn stays, and nobody is admitted. While a request is refused for lack of blocks every step is decided one by
    one. Ignores: predicted lengths.
    """

    quantum: int = 2048
    prompt_weight: float = 1.0
    output_weight: float = 2.0
    weights: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        numbers = {"prompt_weight": self.prompt_weight, "output_weight": self.output_weight}
        check_weights(self.weights, quantum=self.quantum, **numbers)
        self.service = Service()
        self._quanta: dict[str, int] = {}  # granted so far
        self._turn = ""
        self._round: list[str] = []  # tenants that waited when the queue was last looked at

    def deficit(self, tenant: str) -> float:
        """Tokens that the tenant may still be served in its turn."""
        service = self.service
        spent = self.prompt_weight * service.prompt.get(tenant, 0) + self.output_weight * service.output.get(tenant, 0)
        return self._quanta.get(tenant, 0) * self.quantum * self.weights.get(tenant, 1.0) - spent

    def next_tenant(self, tenants: list[str]) -> str:
        """The one whose turn it is: the turn goes round until somebody can pay."""
        self._round = tenants
        at = tenants.index(self._turn) if self._turn in tenants else 0
        while self.deficit(tenants[at]) <= 0:
            self._quanta[tenants[at]] = self._quanta.get(tenants[at], 0) + 1
            if self.deficit(tenants[at]) <= 0:
                at = (at + 1) % len(tenants)
        self._turn = tenants[at]
        return self._turn

    def left(self, seq: SequenceView, ended: bool) -> None:
        """Called by the replica when a sequence leaves the running list."""
        self.service.left(seq, ended)

    def admit_waiting(self, batch: BatchBuilder, cap: int) -> None:
        if not (batch.num_waiting or batch.num_swapped):
            return
        if batch.num_running >= batch.max_num_seqs or not batch.tokens_left:
            batch.stay_refused()  # without a look at the queue: looking can move the turn on
            return
        self.service.catch_up(batch)
        super().admit_waiting(batch, cap)
        if batch.short_of_memory:
            batch.ask_again()

    def admitted(self, seq: SequenceView, batch: BatchBuilder) -> None:
        """Charge it; who cannot pay for another request, or has none, hands the turn to the next one that waits."""
        self.service.admitted(seq)
        tenant, waiting = tenant_of(seq), batch.waiting_tenants()
        if tenant in waiting and self.deficit(tenant) > 0:
            return
        at = self._round.index(tenant)
        followers = [other for other in self._round[at + 1 :] + self._round[:at] if other in waiting]
        self._turn = followers[0] if followers else tenant
