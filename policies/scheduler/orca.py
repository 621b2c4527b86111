"""Iteration-level scheduling: every step runs all decodes and the whole prompts that get in; memory is reserved."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from policies.scheduler.reservation import Reservation, beyond_budget, reserved_tokens
from sim.interfaces import Traits

if TYPE_CHECKING:
    from sim.batch import BatchBuilder
    from sim.views import SequenceView

NO_CAP = 2**62


@dataclass
class Orca:
    """Orca (OSDI 2022) as the PagedAttention paper and Sarathi-Serve (96f9911) re-implemented it: FCFS, no chunks.

    `reservation` of KV for a sequence, from its admission to its end: `max` the model's maximum length; `pow2` its
    prompt and its output rounded up to a power of two; `oracle` its prompt and its output; `allocator` what the
    allocator reserves by itself (contiguous_max, contiguous_pow2, contiguous_oracle: real placement; such an allocator
    overrules any other value). The output length is what the length predictor says, else what the client declared: use
    the oracle predictor for the paper's figures. A sequence that outgrows a prediction takes blocks one by one.
    `extra_tokens`: tokens by which a sequence may outgrow max_model_len (1 in Sarathi's tree, else 0). A step's
    prompts and decodes share `max_num_batched_tokens`, which the paper does not have: set it high. Ignores: prefix
    caching, selective batching's cost (a cost model's matter), contiguous placement (an allocator's).
    """

    reservation: Literal["max", "pow2", "oracle", "allocator"] = "max"
    extra_tokens: int = 0
    traits: Traits = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.traits = Traits(extra_tokens=self.extra_tokens, drops_unservable=True)

    def queue_key(self, seq: SequenceView) -> tuple[float, ...] | None:
        return None

    def schedule(self, batch: BatchBuilder) -> None:
        batch.add_running(NO_CAP)
        if not batch.num_preempted:
            admit_whole(batch, self.reservation)


def admit_whole(batch: BatchBuilder, reservation: Reservation) -> None:
    """Admit whole prompts in order, each with its reservation, until the first that does not fit."""
    for seq in batch.waiting():
        hold = reserved_tokens(seq, reservation, batch.limits.max_model_len)
        reason = beyond_budget(batch, seq, hold)
        if reason is not None:
            batch.drop(seq, reason)
        elif not batch.admit(
            seq, NO_CAP if seq.num_known <= batch.tokens_left else 0, hold_tokens=hold, spare_blocks=0
        ):
            break
