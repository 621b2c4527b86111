"""Random streams: reproducible, independent, named."""

from __future__ import annotations

import numpy as np
import pytest

from sim.errors import InputError
from sim.seeds import Seeds


def test_same_seed_and_name_give_the_same_numbers() -> None:
    assert np.array_equal(Seeds(3).generator("router", 1).random(5), Seeds(3).generator("router", 1).random(5))


def test_draws_of_one_subsystem_move_no_other_stream() -> None:
    seeds = Seeds(3)
    alone = seeds.generator("arrivals").random(5)
    seeds.generator("router").random(1000)
    assert np.array_equal(seeds.generator("arrivals").random(5), alone)


def test_names_that_differ_give_different_streams() -> None:
    names: list[tuple[str | int, ...]] = [("a",), ("a", "b"), ("ab",), ("a/b",), ("1",), (1,), ("a", 1), ()]
    first = {Seeds(0).generator(*name).integers(2**63) for name in names}
    assert len(first) == len(names)


def test_seeds_differ_and_are_uncorrelated() -> None:
    draws = np.array([Seeds(seed).generator("x").random(2000) for seed in range(5)])
    off_diagonal = np.corrcoef(draws)[~np.eye(5, dtype=bool)]
    assert np.abs(off_diagonal).max() < 0.1


def test_a_stream_is_the_same_in_every_process_and_version() -> None:
    """The hash is SHA-256, not Python's salted one: this number must never change."""
    assert int(Seeds(1).generator("workload", "arrivals").integers(2**31)) == FIRST_DRAW


@pytest.mark.parametrize("seed", [-1, 1.5, "1", True])
def test_seeds_that_are_no_counts_are_refused(seed: object) -> None:
    with pytest.raises(InputError, match="seed: expected an integer >= 0"):
        Seeds(seed)  # type: ignore[arg-type]


FIRST_DRAW = 1641228879
