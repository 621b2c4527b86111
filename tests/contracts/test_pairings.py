"""Schedulers and memories in pairs that nobody made for each other: every request ends, or is refused with a reason."""

from __future__ import annotations

import pytest
from scenarios import Row, Scenario, make_policy, simulate

from policies.scheduler import SCHEDULERS
from sim.errors import InputError


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_request_that_outgrows_a_slot_ends_with_every_scheduler(scheduler: str) -> None:
    """4 slots of 6 tokens, a prompt of 8: refused or cut off, but no broken bookkeeping."""
    scenario = Scenario(rows=(Row(prompt=8),), num_blocks=7, scheduler=scheduler, allocator="slots", depth=1)
    assert simulate(scenario).replicas[0].num_blocks > 0


def test_slots_without_room_are_refused() -> None:
    """2 tokens of memory for 4 slots: a message, not a division by zero in the middle of a run."""
    with pytest.raises(InputError):
        make_policy("block_allocator", "slots").build(3, 1, True)


@pytest.mark.parametrize("allocator", ["paged", "radix", "contiguous_oracle"])
def test_trtllm_promises_no_more_than_the_model_length(allocator: str) -> None:
    """Declared beyond max_model_len: what must fit to completion is what the model can hold."""
    scenario = Scenario(
        rows=(Row(output=39),), num_blocks=13, max_model_len=30, scheduler="trtllm", allocator=allocator
    )
    assert len(simulate(scenario).requests["status"]) == 1
