"""Saving what is cached at the end of a run and beginning another with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sim.config import experiment_from_values, load_experiment
from sim.errors import InputError
from sim.experiment import run, write
from sim.kv.eviction import EvictingKV
from sim.kv.paged import PagedKV
from sim.kv.warm import cache_state, load_states, state_of, warm_up


def experiment(**kv_cache: Any) -> dict[str, Any]:
    return {
        "workload": {
            "num_requests": 40,
            "arrivals": {"process": "constant", "rate": 4.0},
            "prompt_tokens": {"distribution": "fixed", "value": 64},
            "output_tokens": {"distribution": "fixed", "value": 4},
            "prefix": {"groups": 8, "tokens": 512},
        },
        "cluster": {"pools": [{"model": "llama-3.1-8b", "gpu": "h100-sxm", "kv_cache": kv_cache}]},
        "output": {"cache_state": True},
    }


def test_a_warm_start_hits_what_a_cold_one_misses(tmp_path: Path) -> None:
    """Cold: the first prompt of each of 8 groups misses its 512 tokens; warm: none does. config.yaml runs again."""
    cold = run(experiment_from_values(experiment(), tmp_path))
    write(cold, tmp_path / "cold")
    warm = run(experiment_from_values(experiment(warm_start="cold/cache_state.json"), tmp_path))
    hits = [int(outcome.result.requests["num_cached_tokens"].sum()) for outcome in (cold, warm)]
    assert hits == [
        32 * 512,
        40 * 512 + 40 * 48,
    ]  # the same seed: the same own tokens too, but for each prompt's last block
    write(warm, tmp_path / "warm")
    again = run(load_experiment(tmp_path / "warm" / "config.yaml"))
    assert again.summary == warm.summary


def pieces(kv: PagedKV) -> list[list[Any]]:
    state = cache_state(kv)
    assert state is not None
    return list(state["pieces"])


@pytest.mark.parametrize("kind", [PagedKV, EvictingKV])
def test_state_and_back(kind: Any) -> None:
    """Order, contents and tuple keys survive JSON."""
    from policies.eviction.lfu import Lfu

    def empty(num_blocks: int) -> PagedKV:
        return PagedKV(num_blocks, 16, True) if kind is PagedKV else EvictingKV(num_blocks, 16, Lfu())

    kv = empty(21)
    for key, low, high in (((1, "a"), 0, 4), ((2, "b"), 0, 6), (3, 2, 3)):
        kv.insert_idle(key, low, high)
    kv.check_integrity()
    state = json.loads(json.dumps(cache_state(kv)))
    again = empty(21)
    warm_up(again, state, "file")
    assert pieces(again) == pieces(kv) == [[(1, "a"), 0, 4], [(2, "b"), 0, 6], [3, 2, 3]]
    small = empty(9)
    warm_up(small, state, "file")
    small.check_integrity()
    assert pieces(small) == [[(2, "b"), 0, 6], [3, 2, 3]]
    assert small.num_free == 8


def test_wrong_states_are_answered_in_a_line(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    with pytest.raises(InputError, match=r"state\.json: cannot be read \(No such file or directory\)"):
        load_states(path)
    path.write_text("[1, 2]")
    with pytest.raises(InputError, match=r"state\.json: is no cache state"):
        load_states(path)
    with pytest.raises(
        InputError, match=r"no state for replica 'main-1' \(did you mean 'main-0'\?\); it has: main-0, x"
    ):
        state_of({"main-0": {}, "x": {}}, "main-1", "f")
    with pytest.raises(InputError, match="was saved with block_size 8, the pool has 16"):
        warm_up(PagedKV(9, 16, True), {"block_size": 8, "pieces": []}, "f")
    with pytest.raises(InputError, match="needs allocator paged with prefix_caching"):
        warm_up(PagedKV(9, 16, False), {"block_size": 16, "pieces": []}, "f")
