"""What building a simulation has to say to the reader of its summary."""

from __future__ import annotations

from pathlib import Path

import sim


def test_a_length_beyond_the_models_own_is_warned_of(small_experiment: Path) -> None:
    key = "cluster.pools.0.max_model_len"
    for length, warned in ((131072, False), (131073, True)):
        warnings = sim.run(small_experiment, set={key: length, "workload.num_requests": 2}).warnings
        expected = f"max_model_len {length} is above the 131072 tokens that llama-3.1-8b was made for"
        assert (expected in warnings) == warned
