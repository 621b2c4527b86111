"""Requests in the order in which a weighted share of the server for each tenant would start them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from policies.scheduler.fcfs import Fcfs
from policies.scheduler.tenants import check_weights, tenant_of
from sim.interfaces import Traits

if TYPE_CHECKING:
    from sim.batch import BatchBuilder
    from sim.views import SequenceView


@dataclass
class Wfq(Fcfs):
    """Weighted fair queueing by start tags (Goyal, Vin and Cheng, 1996) on continuous batching.

    Start tag of a request: the larger of the virtual time at its arrival (the start tag admitted last) and the finish
    tag of its tenant's request before; finish tag: start + cost / the tenant's entry in `weights` (1 where it has
    none). Cost: `prompt_weight` x prompt tokens + `output_weight` x predicted (else declared) output tokens; it is
    not corrected when the true length shows, so who declares too much is served less. Ignores: what a step really
    costs, which grows with context.
    """

    prompt_weight: float = 1.0
    output_weight: float = 2.0
    weights: Mapping[str, float] = field(default_factory=dict)
    traits: ClassVar[Traits] = Traits(sorted_queue=True)
    uses_prediction: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_weights(self.weights, prompt_weight=self.prompt_weight, output_weight=self.output_weight)
        self._virtual_time = 0.0
        self._finish: dict[str, float] = {}  # of the latest request, by tenant
        self._start: dict[int, float] = {}  # by row

    def queue_key(self, seq: SequenceView) -> tuple[float, ...] | None:
        if seq.row not in self._start:
            tenant = tenant_of(seq)
            start = max(self._virtual_time, self._finish.get(tenant, 0.0))
            self._start[seq.row] = start
            self._finish[tenant] = start + self.cost(seq) / self.weights.get(tenant, 1.0)
        return (self._start[seq.row],)

    def cost(self, seq: SequenceView) -> float:
        """Weighted tokens."""
        predicted = seq.predicted_output_tokens
        output = seq.max_output_tokens if predicted is None else predicted
        return self.prompt_weight * seq.num_prompt_tokens + self.output_weight * output

    def left(self, seq: SequenceView, ended: bool) -> None:
        """Called by the replica when a sequence leaves the running list."""
        if ended:
            self._start.pop(seq.row, None)  # absent where it came in without waiting here

    def admitted(self, seq: SequenceView, batch: BatchBuilder) -> None:
        self._virtual_time = max(self._virtual_time, self._start[seq.row])
