"""Messages between nodes: closed forms, measured all-reduces, and what a step costs when its replica spans nodes."""

from __future__ import annotations

import csv
import gzip
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim.cost import build_cost_model
from sim.cost.base import BatchShape
from sim.hardware import load_gpu
from sim.interconnect import COLLECTIVE_SHARE, PROTOCOL_FACTOR, PROTOCOL_LOG2_BYTES, Interconnect
from sim.links import load_link
from sim.model import load_model

TRANSFERS = Path(__file__).parents[2] / ".." / "shared" / "data" / "kernels" / "p2p.csv.gz"
KERNELS = Path(__file__).parents[2] / ".." / "shared" / "data" / "kernels" / "collectives.csv.gz"
ETHERNET = Interconnect("ethernet-100", 9.375e9, 20e-6, num_nodes=2, group_gpus=4)
SHAPES = {
    "decode": BatchShape(num_decode_sequences=32, decode_context=32 * 1024, max_context=1024),
    "prefill": BatchShape(2048, 1, 2048 * 2049 // 2, 2048, max_context=2048),
    "mixed": BatchShape(512, 1, 512 * 513 // 2, 512, 16, 16 * 700, 700),
}


def cost(kind: str, joined: Interconnect | None, **parallel: int) -> Any:
    model, gpu = load_model("llama-2-70b"), load_gpu("a100-sxm-80gb")
    return build_cost_model(kind, {}, model=model, gpu=gpu, interconnect=joined, **parallel)


def test_a_large_all_reduce_of_two_nodes_sends_its_bytes_once() -> None:
    """Ring of m = 2: 2 (m-1) latencies, and 2 (m-1)/m of the bytes, here all, at the share of collectives."""
    seconds = ETHERNET.all_reduce(np.array([2.0**28]))[0]
    assert seconds == pytest.approx(2 * 20e-6 + 2.0**28 / (COLLECTIVE_SHARE * 9.375e9), rel=1e-12)


def test_a_small_all_reduce_of_many_nodes_goes_over_a_tree() -> None:
    """16 nodes: 2 log2(16) latencies, not 2 * 15."""
    many = Interconnect("x", 1e12, 10e-6, num_nodes=16)
    assert many.all_reduce(np.array([8.0]))[0] == pytest.approx(80e-6, rel=1e-6)
    assert many.all_reduce(np.array([2.0**33]))[0] == pytest.approx(300e-6 + 30 / 16 * 2**33 / 0.75e12, rel=1e-6)


def test_more_bytes_more_nodes_or_a_slower_link_never_take_less() -> None:
    sizes = np.arange(1, 4000, dtype=np.float64) * 16384
    for nodes in (2, 3, 4, 8):
        joined = Interconnect("x", 9.375e9, 20e-6, num_nodes=nodes)
        times = joined.all_reduce(sizes)
        assert (np.diff(times) > 0).all()
        assert (Interconnect("x", 5e9, 20e-6, num_nodes=nodes).all_reduce(sizes) > times).all()
        assert (Interconnect("x", 9.375e9, 20e-6, num_nodes=nodes + 1).all_reduce(sizes) >= times).all()
        assert (times >= sizes * 2 * (nodes - 1) / nodes / 9.375e9).all()  # not faster than its bytes allow


def test_the_factor_of_medium_sizes_ends_at_one() -> None:
    assert PROTOCOL_FACTOR[0] == PROTOCOL_FACTOR[-1] == 1.0
    assert len(PROTOCOL_FACTOR) == len(PROTOCOL_LOG2_BYTES)


@pytest.mark.parametrize("kind", ["roofline", "fitted"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_step_pays_for_every_all_reduce_between_the_nodes(kind: str, shape: BatchShape) -> None:
    """TP8 over two nodes of 4: the all-reduces of 4 within the nodes instead of those of 8, and 160 between nodes."""
    one, two = cost(kind, None, tensor_parallel=8), cost(kind, ETHERNET, tensor_parallel=8)
    four = cost(kind, None, tensor_parallel=4)
    tokens = shape.num_prefill_tokens + shape.num_decode_sequences
    between = 160 * float(ETHERNET.all_reduce(np.array([tokens * 8192 * 2.0]))[0])
    within = four.breakdown(shape)["all_reduce"]["seconds"] - one.breakdown(shape)["all_reduce"]["seconds"]
    assert two.step_time(shape) == pytest.approx(one.step_time(shape) + within + between, rel=1e-9)
    parts = two.breakdown(shape)
    assert parts["all_reduce_across_nodes"]["seconds"] == pytest.approx(between)
    assert sum(part["seconds"] for part in parts.values()) == pytest.approx(two.step_time(shape), rel=1e-9)
    assert any("computed from ethernet-100" in note for note in two.extrapolation())


@pytest.mark.parametrize("kind", ["roofline", "fitted"])
def test_coming_steps_have_the_same_bits_as_steps_asked_one_by_one(kind: str) -> None:
    model = cost(kind, ETHERNET, tensor_parallel=8)
    times = model.decode_times(7, 7 * 900, 1000, 40)
    single = [
        model.step_time(BatchShape(num_decode_sequences=7, decode_context=7 * 900 + 7 * i, max_context=1000 + i))
        for i in range(40)
    ]
    assert times.tolist() == single


@pytest.mark.parametrize("kind", ["roofline", "fitted"])
def test_a_pipeline_pays_for_one_message(kind: str) -> None:
    joined = Interconnect("ethernet-100", 9.375e9, 20e-6, num_crossings=1)
    parts = cost(kind, joined, tensor_parallel=4, pipeline_parallel=2).breakdown(SHAPES["decode"])
    assert parts["pipeline_send_across_nodes"]["seconds"] == pytest.approx(20e-6 + 32 * 8192 * 2 / 9.375e9)
    assert "pipeline_send" not in parts
    assert "all_reduce_across_nodes" not in parts


@pytest.mark.parametrize("kind", ["roofline", "fitted"])
def test_on_a_slow_link_a_pipeline_beats_a_group_across_nodes(kind: str) -> None:
    """Sarathi-Serve (OSDI 2024): on 100 Gb/s about twice the time between tokens; here 1.4 to 3 by the step."""
    crossing = Interconnect("ethernet-100", 9.375e9, 20e-6, num_crossings=1)
    group = cost(kind, ETHERNET, tensor_parallel=8)
    pipeline = cost(kind, crossing, tensor_parallel=4, pipeline_parallel=2)
    for shape in SHAPES.values():
        assert 1.2 < group.step_time(shape) / pipeline.step_time(shape) < 3.5


@pytest.mark.shared_data
@pytest.mark.skipif(not KERNELS.exists(), reason="needs ../shared/data/kernels")
@pytest.mark.parametrize(("per_node", "tolerance"), [(1, 0.06), (2, 0.30), (4, 0.10), (8, 0.20)])
def test_all_reduces_between_two_nodes_are_near_the_measured_ones(per_node: int, tolerance: float) -> None:
    """NCCL on two A100 nodes: the median error over all sizes from 32 KB, given the speed of large messages."""
    between, within = measured(2 * per_node, per_node), measured(per_node, per_node)
    inner = within or dict.fromkeys(between, 0.0)
    sizes, known = np.array(sorted(between)), np.array(sorted(inner))
    inside = np.interp(sizes, known, [inner[size] for size in known])
    times = np.array([between[size] for size in sizes])
    speed = float(np.median((sizes / (times - inside))[sizes > 5e7])) / COLLECTIVE_SHARE
    joined = Interconnect("x", speed, 24e-6, num_nodes=2, group_gpus=per_node)
    errors = np.abs((joined.all_reduce(sizes) + inside) / times - 1.0)[sizes >= 32768]
    assert statistics.median(errors.tolist()) < tolerance


@pytest.mark.shared_data
@pytest.mark.skipif(not TRANSFERS.exists(), reason="needs ../shared/data/kernels")
@pytest.mark.parametrize(
    ("source", "per_node", "link", "tolerance"),
    [
        ("vidur:h100_dgx", 1, "infiniband-ndr", 0.03),
        ("vidur:h100_dgx", 2, "nvlink4", 0.08),
        ("vidur:a100_dgx", 2, "nvlink3", 0.12),
    ],
)
def test_transfers_between_two_gpus_are_near_the_measured_ones(
    source: str, per_node: int, link: str, tolerance: float
) -> None:
    """Latency plus bytes over speed against NCCL's send and receive, 2 KB to 64 MB: the median error."""
    profile, errors = load_link(link), []
    with gzip.open(TRANSFERS, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if (row["source"], row["devices_per_node"]) == (source, str(per_node)):
                expected = profile.latency + float(row["bytes"]) / profile.bytes_per_second
                errors.append(abs(expected / (float(row["time_us"]) * 1e-6) - 1.0))
    assert len(errors) > 500
    assert statistics.median(errors) < tolerance


def measured(world: int, per_node: int) -> dict[float, float]:
    """Median seconds by bytes of the all-reduces on A100 nodes."""
    found: dict[float, list[float]] = {}
    with gzip.open(KERNELS, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if (row["source"], row["op"], row["world"]) != ("vidur:a100_dgx", "all_reduce", str(world)):
                continue
            if row["devices_per_node"] and int(float(row["devices_per_node"])) == per_node:
                found.setdefault(float(row["bytes"]), []).append(float(row["time_us"]) * 1e-6)
    return {size: statistics.median(times) for size, times in found.items()}
