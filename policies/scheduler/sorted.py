"""Like fcfs, with the waiting queue in the order of a key: sjf, srpt, edf, least_slack, lpm, priority or fcfs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from policies.scheduler.fcfs import Fcfs
from sim.errors import PolicyError
from sim.interfaces import Traits

if TYPE_CHECKING:
    from sim.batch import BatchBuilder
    from sim.views import SequenceView

Order = Literal["fcfs", "priority", "sjf", "srpt", "edf", "least_slack", "lpm"]
BY_PREDICTION = ("sjf", "srpt", "least_slack")
LPM_QUEUE = 128  # waiting requests beyond which SGLang gives up sorting by prefix


@dataclass
class Sorted(Fcfs):
    """Continuous batching in the order of a key. Running sequences are never preempted to make room for a better key.

    `key`, least first: fcfs; priority; sjf (predicted output tokens); srpt (predicted output tokens still to come,
    which differs from sjf after a preemption); edf (deadline); least_slack (deadline - predicted work, which orders
    like deadline - now - work); lpm (longest cached prefix first, in arrival order beyond 128 waiting, as SGLang
    0.5.23). Without a predictor the declared maximum stands for the predicted length.

    `deadline`: seconds from arrival, by request class in `class_deadlines`. `seconds_per_prompt_token` and
    `seconds_per_output_token`: the predicted work of least_slack. `ageing`: with key priority, seconds of waiting
    that make up for one priority level (null: priority is strict): a request of level p is overtaken only by those of
    level q < p that arrive less than (p - q) x `ageing` after it. `max_wait`: seconds; null: no bound on starvation.
    With it a request that has waited so long goes before all others, earlier arrivals first: nobody who arrived later
    is admitted before it. That is checked at every admission.

    Sources: shortest job first and SRPT (Schrage, 1968); EDF and least slack (Liu and Layland, 1973; Mok, 1983).
    Ignores: deadlines that have passed (EDF collapses under overload), changes of a prediction while a request runs.
    """

    key: Order = "fcfs"
    deadline: float = 10.0
    class_deadlines: Mapping[str, float] = field(default_factory=dict)
    seconds_per_prompt_token: float = 0.0001
    seconds_per_output_token: float = 0.02
    ageing: float | None = None
    max_wait: float | None = None

    def __post_init__(self) -> None:
        if self.ageing is not None and (self.key != "priority" or self.ageing < 0):
            raise ValueError(f"ageing must be at least 0, and null with another key than priority (got {self.ageing})")
        if self.max_wait is not None and (self.key == "lpm" or self.max_wait < 0):
            raise ValueError(f"max_wait must be at least 0, and null with key lpm (got {self.max_wait})")
        self.traits = Traits(sorted_queue=self.key != "lpm")

    @property
    def uses_prediction(self) -> bool:
        """Whether the order depends on predicted output lengths."""
        return self.key in BY_PREDICTION

    def queue_key(self, seq: SequenceView) -> tuple[float, ...] | None:
        if self.key == "priority":
            return (seq.priority,) if self.ageing is None else (seq.arrival_time + self.ageing * seq.priority,)
        if self.key == "sjf":
            return (expected_output(seq),)
        if self.key == "srpt":
            return (expected_output(seq) - (seq.num_known - seq.num_prompt_tokens),)
        if self.key == "edf":
            return (self._deadline(seq),)
        if self.key == "least_slack":
            return (self._deadline(seq) - self._work(seq),)
        return ()

    def _deadline(self, seq: SequenceView) -> float:
        return seq.arrival_time + self.class_deadlines.get(seq.request_class or "", self.deadline)

    def _work(self, seq: SequenceView) -> float:
        left = expected_output(seq) - (seq.num_known - seq.num_prompt_tokens)
        return seq.num_known * self.seconds_per_prompt_token + max(0.0, left) * self.seconds_per_output_token

    def admit_waiting(self, batch: BatchBuilder, cap: int) -> None:
        if self.key == "lpm" and batch.num_waiting > 1:
            self._sort_by_prefix(batch)
        super().admit_waiting(batch, cap)
        if batch.short_of_memory:
            self._watch(batch)

    def admitted(self, seq: SequenceView, batch: BatchBuilder) -> None:
        """Check the bound: nobody may overtake a request that has waited for `max_wait`."""
        eldest = batch.longest_waiting()
        if eldest is None or self.max_wait is None or eldest.arrival_time >= seq.arrival_time:
            return
        waited = batch.now - eldest.arrival_time
        if waited >= self.max_wait:
            raise PolicyError(
                f"sorted: at {batch.now} s request {seq.row} overtook request {eldest.row}, which waited {waited} s"
            )

    def _watch(self, batch: BatchBuilder) -> None:
        """Whoever is first was refused for lack of blocks: say when somebody else might be."""
        eldest = batch.longest_waiting() if self.max_wait is not None else None
        if eldest is not None:
            batch.ask_again_at(eldest.arrival_time + (self.max_wait or 0.0))
        if self.key == "lpm" and batch.num_waiting > 1:
            batch.ask_again()  # what the decodes overwrite may be somebody's prefix

    def _sort_by_prefix(self, batch: BatchBuilder) -> None:
        few = batch.num_waiting <= LPM_QUEUE
        batch.sort_waiting(lambda seq: (-batch.look_up(seq)[0] if few else 0, seq.arrival_time, seq.row))


def expected_output(seq: SequenceView) -> float:
    """Predicted output tokens, or the declared maximum where there is no predictor."""
    predicted = seq.predicted_output_tokens
    return seq.max_output_tokens if predicted is None else predicted
