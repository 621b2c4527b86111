"""Several answers to one prompt: what they share and what that saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_runs import run_rows

from sim.config import experiment_from_values
from sim.errors import InputError
from sim.experiment import run
from sim.workload.base import ClosedLoop, Ragged, Workload
from sim.workload.samples import with_samples


def workload(**columns: Any) -> Workload:
    known: dict[str, Any] = {
        "arrival_time": np.array([0.0, 1.0]),
        "num_prompt_tokens": np.array([100, 64]),
        "num_output_tokens": np.array([5, 6]),
        "max_output_tokens": np.array([5, 9]),
    }
    return Workload(**{**known, **columns})


def test_samples_are_rows_with_one_prompt() -> None:
    three = with_samples(workload(tenant=["A", "B"]), 3)
    assert three.arrival_time.tolist() == [0.0] * 3 + [1.0] * 3
    assert three.max_output_tokens.tolist() == [5] * 3 + [9] * 3
    assert three.request_id == ["0.0", "0.1", "0.2", "1.0", "1.1", "1.2"]
    assert three.tenant == ["A"] * 3 + ["B"] * 3
    assert three.hash_ids is not None
    ids = [three.hash_ids.row(i).tolist() for i in range(6)]
    assert ids[0] == ids[1] == ids[2]
    assert [len(row) for row in ids] == [2, 2, 2, 1, 1, 1]
    assert not set(ids[0]) & set(ids[3])


def test_answers_of_later_samples_are_nobodys_prefix() -> None:
    ids = Ragged(np.array([7, 8]), np.array([0, 1, 2]))
    answers = Ragged(np.array([70, 71, 80]), np.array([0, 2, 3]))
    two = with_samples(workload(hash_ids=ids, output_hash_ids=answers), 2)
    assert two.output_hash_ids is not None
    rows = [two.output_hash_ids.row(i).tolist() for i in range(4)]
    assert rows[0] == [70, 71]
    assert rows[2] == [80]
    others = rows[1] + rows[3]
    assert len(set(others)) == len(others) == 3
    assert max(others) < 0


def test_one_sample_changes_nothing() -> None:
    plain = workload()
    assert with_samples(plain, 1) is plain


def test_samples_do_not_go_with_users_that_wait_for_an_answer() -> None:
    with pytest.raises(InputError, match="not possible with closed_loop arrivals or sessions"):
        with_samples(workload(closed_loop=ClosedLoop(1, np.zeros(2))), 2)


def test_blocks_saved_by_four_samples_by_hand() -> None:
    """Prompt 33 in blocks of 16, 3 outputs: 2 shared blocks, one of its own; 4 samples save 6 of 12 references."""
    four = with_samples(workload(num_prompt_tokens=np.array([33, 33]), arrival_time=np.array([0.0, 50.0])), 4)
    assert four.hash_ids is not None
    result = run_rows(
        [(33, 3)] * 8,
        arrivals=four.arrival_time.tolist(),
        hash_ids=four.hash_ids,
        hash_block_size=four.hash_block_size,
        prefix_caching=True,
        num_seqs=16,
        budget=256,
    )
    replica = result.replicas[0]
    share = replica.shared_block_seconds / (replica.shared_block_seconds + replica.used_block_seconds)
    assert share == pytest.approx(6 / 12)
    assert result.requests["num_cached_tokens"].tolist() == [0, 32, 32, 32] * 2


def test_more_samples_save_more_through_the_configuration() -> None:
    saved = []
    for samples in (1, 2, 4, 6):
        values = {
            "workload": {
                "num_requests": 20,
                "arrivals": {"process": "constant", "rate": 2.0},
                "prompt_tokens": {"distribution": "fixed", "value": 100},
                "output_tokens": {"distribution": "fixed", "value": 100},
                "samples": samples,
            },
            "cluster": {"pools": [{"model": "opt-13b", "gpu": "a100-sxm-40gb", "cost_model": {"kind": "roofline"}}]},
        }
        summary = run(experiment_from_values(values, Path())).summary
        assert summary["num_finished"] == 20 * samples
        saved.append(summary["prefix_cache"].get("shared_block_share", 0.0))
    assert saved == sorted(saved)
    # Each holds 6 shared full blocks and 1 to 7 of its own: (n - 1) * 6 references are saved of n * 10 or so.
    assert saved[1:] == pytest.approx([1 * 6 / (2 * 10), 3 * 6 / (4 * 10), 5 * 6 / (6 * 10)], rel=0.05)
