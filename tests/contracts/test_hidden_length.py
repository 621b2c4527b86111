"""No policy knows what it may not know: decisions made before the first token do not depend on true output lengths."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scenarios import ENGINES, Row, Scenario, make_simulation

from policies.router import ROUTERS
from policies.scheduler import SCHEDULERS

DECLARED = 30
LENGTHS = [(1, 30, 12, 5, 28, 2), (30, 2, 3, 29, 1, 17)]


def rows(lengths: tuple[int, ...]) -> tuple[Row, ...]:
    """Prompts of 3 to 18 tokens at one instant; all declare the same maximum."""
    return tuple(Row(prompt=3 * (i + 1), output=n, surplus=DECLARED - n, tenant=i % 2) for i, n in enumerate(lengths))


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_the_first_batch_is_the_same_whatever_the_true_lengths(scheduler: str) -> None:
    found = []
    for lengths in LENGTHS:
        plain = Scenario(
            rows=rows(lengths), max_num_seqs=3, max_num_batched_tokens=64, max_model_len=100, num_blocks=200
        )
        scenario = replace(plain, **{"scheduler": scheduler, **ENGINES.get(scheduler, {})})
        simulation = make_simulation(scenario, step_by_step=True)
        batches: list[list[tuple[int, int]]] = []
        simulation.replicas[0].observer = lambda builder, batches=batches: batches.append(
            [(seq.row, tokens) for seq, tokens in builder.chunks]
        )
        simulation.run()
        found.append(batches[0])
    assert found[0] == found[1]
    assert found[0]


@pytest.mark.parametrize("router", ROUTERS)
def test_placement_at_one_instant_is_the_same_whatever_the_true_lengths(router: str) -> None:
    found = [
        make_simulation(Scenario(rows=rows(lengths), router=router, num_replicas=3)).run().requests["prefill_replica"]
        for lengths in LENGTHS
    ]
    assert found[0].tolist() == found[1].tolist()
