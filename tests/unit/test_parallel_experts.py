"""Expert parallelism and data-parallel attention: closed forms of memory and step time, equal bits, limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sim.cost import ExplainingCostModel, build_cost_model
from sim.cost.base import BatchShape
from sim.cost.operations import SMALL_MESSAGE_SECONDS, UNMEASURED_LINK_SHARE
from sim.errors import InputError
from sim.hardware import load_gpu
from sim.memory import plan_memory
from sim.model import load_model

MIXTRAL, GPU = load_model("mixtral-8x7b"), load_gpu("h100-sxm")


def cost(params: dict[str, Any] | None = None, **parallel: Any) -> ExplainingCostModel:
    return build_cost_model("fitted", params or {}, model=MIXTRAL, gpu=GPU, **parallel)


def decodes(number: int, context: int) -> BatchShape:
    return BatchShape(num_decode_sequences=number, decode_context=number * context, max_context=context)


def test_whole_experts_take_the_bytes_of_slices_where_they_divide() -> None:
    assert MIXTRAL.weight_bytes(2, 1, 1, True) == MIXTRAL.weight_bytes(2, 1)
    assert MIXTRAL.weight_bytes(1, 1, 4, True) == MIXTRAL.weight_bytes(1, 1, 4, False)
    assert MIXTRAL.expert_share(3, True) == (3, 14336)  # 8 experts on 3 GPUs: the fullest has 3
    assert MIXTRAL.expert_share(3, False) == (8, 4779)


def test_ranks_share_the_experts_and_repeat_everything_else() -> None:
    experts = 32 * 8 * 3 * 4096 * 14336 * 2  # layers, experts, matrices, sides, bytes
    alone, shared = MIXTRAL.weight_bytes(1, 1), MIXTRAL.weight_bytes(1, 1, 4, True)
    assert alone - shared == experts * 3 // 4


def test_blocks_of_a_replica_are_those_of_its_ranks() -> None:
    ranks = plan_memory(MIXTRAL, GPU, data_parallel=4, expert_parallel=True)
    assert ranks.num_blocks % 4 == 0
    one = ranks.kv_bytes // ranks.block_bytes
    assert ranks.num_blocks == 4 * one
    assert ranks.block_bytes == 16 * 32 * 2 * 8 * 128 * 2  # all heads of a rank, whatever the number of ranks


def test_one_rank_with_slices_is_the_same_cost_model_to_the_bit() -> None:
    shape = decodes(37, 700)
    assert cost(data_parallel=1, expert_parallel=False, tensor_parallel=2).step_time(shape) == cost(
        tensor_parallel=2
    ).step_time(shape)


def test_attention_of_ranks_is_that_of_their_share_of_the_sequences() -> None:
    """Two ranks with 2 x 32 sequences read what one with 32 reads; products see 32 tokens on each."""
    both = cost(data_parallel=2, expert_parallel=True).breakdown(decodes(64, 1000))
    single = cost().breakdown(decodes(32, 1000))
    for name in ("attention", "qkv", "attention_out", "lm_head", "small_ops"):
        assert both[name]["seconds"] == pytest.approx(single[name]["seconds"], rel=1e-12), name


def test_the_exchange_moves_the_copies_that_leave_a_gpu_both_ways() -> None:
    parts = cost(data_parallel=4, expert_parallel=True).breakdown(decodes(64, 100))
    copies = 64 / 4 * 2 * 3 / 4  # tokens of a GPU, two experts each, three quarters of them elsewhere
    seconds = SMALL_MESSAGE_SECONDS + copies * 4096 * 2 / (UNMEASURED_LINK_SHARE * GPU.link_bandwidth)
    assert parts["expert_exchange"]["seconds"] == pytest.approx(32 * 2 * seconds, rel=1e-12)
    assert "all_reduce" not in parts


def test_uneven_experts_cost_more_and_never_less() -> None:
    shape = BatchShape(4096, 2, 2 * 2048 * 2049 // 2, 4096, max_context=2048)
    times = [
        cost({"expert_skew": s}, tensor_parallel=4, expert_parallel=True).step_time(shape) for s in (1.0, 1.5, 3.0)
    ]
    assert times == sorted(times)
    assert times[2] > 1.3 * times[0]


@pytest.mark.parametrize("parallel", [{"data_parallel": 4, "expert_parallel": True}, {"data_parallel": 2}])
def test_successive_steps_have_the_bits_of_single_ones(parallel: dict[str, Any]) -> None:
    model = cost(**parallel)
    times = model.decode_times(37, 37 * 500, 900, 6)
    steps = [
        model.step_time(BatchShape(num_decode_sequences=37, decode_context=37 * (500 + i), max_context=900 + i))
        for i in range(6)
    ]
    assert np.array_equal(times, np.array(steps))
    assert sum(part["seconds"] for part in model.breakdown(decodes(37, 500)).values()) == pytest.approx(  # type: ignore[misc]
        model.step_time(decodes(37, 500))
    )


def test_what_cannot_be_parallel_is_refused() -> None:
    dense = load_model("llama-3.1-8b")
    with pytest.raises(InputError, match="data_parallel is for models with experts"):
        build_cost_model("fitted", {}, model=dense, gpu=GPU, data_parallel=2)
    with pytest.raises(InputError, match="expert_parallel is for models with experts"):
        build_cost_model("fitted", {}, model=dense, gpu=GPU, expert_parallel=True)
    with pytest.raises(InputError, match="roofline does not model data_parallel"):
        build_cost_model("roofline", {}, model=MIXTRAL, gpu=GPU, data_parallel=2)
    with pytest.raises(InputError, match="expert_skew must be at least 1"):
        cost({"expert_skew": 0.5}, expert_parallel=True)
