"""Nodes, links and places: facts with units and sources, packing, what a transfer crosses, and bad input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from policies.placement.pack import Pack
from sim.build import build, place
from sim.clock import Clock
from sim.config import experiment_from_values
from sim.decisions import GpuSlot, NotPlaced, Placed
from sim.errors import InputError, PolicyError
from sim.experiment import RunOptions, run
from sim.fabric import Fabric
from sim.hardware import gpu_names
from sim.links import default_node, link_names, load_link, load_node, node_names
from sim.network import Flow
from sim.study.sweep import Workers, sweep
from sim.topology import Shape, Topology, plan_topology

FEW = {"num_requests": 3, "arrivals": {"process": "constant", "rate": 1.0}}
LENGTHS: dict[str, Any] = {
    "prompt_tokens": {"distribution": "fixed", "value": 100},
    "output_tokens": {"distribution": "fixed", "value": 5},
}


def config(pools: list[dict[str, Any]], network: dict[str, Any] | None = None) -> Any:
    full = [{"model": "llama-2-70b", "gpu": "h100-sxm", "name": f"p{i}", **pool} for i, pool in enumerate(pools)]
    cluster: dict[str, Any] = {"pools": full}
    if network is not None:
        cluster["network"] = network
    return experiment_from_values({"workload": {**FEW, **LENGTHS}, "cluster": cluster}, Path("."))


def topology(pools: list[dict[str, Any]], network: dict[str, Any] | None = None) -> Topology:
    return place(config(pools, network))


def gpus_of(found: Topology) -> list[list[tuple[int, int]]]:
    return [[tuple(slot) for slot in each.gpus] for each in found.places]


@pytest.mark.parametrize("name", [*link_names(), *node_names()])
def test_every_known_number_has_a_unit_and_a_source(name: str) -> None:
    entry = load_link(name) if name in link_names() else load_node(name)
    assert entry.name == name
    assert entry.description
    for fact in entry.facts.values():
        assert fact.unit
        assert (fact.source in entry.sources) == (fact.value is not None)


def test_every_gpu_stands_in_a_node_whose_links_exist() -> None:
    for gpu in gpu_names():
        node = default_node(gpu)
        assert all(load_link(link) for link in node.links.values() if link)
        assert [node.nic_of(i) < node.num_nics for i in range(node.num_gpus)] == [True] * node.num_gpus
    named = [gpu for name in node_names() for gpu in load_node(name).default_for]
    assert len(named) == len(set(named))
    assert default_node("h100-sxm").name == "dgx-h100"


def test_small_replicas_fill_a_node_before_the_next() -> None:
    found = topology([{"tensor_parallel": 4, "replicas": 3}])
    assert gpus_of(found) == [[(0, i) for i in range(4)], [(0, i) for i in range(4, 8)], [(1, i) for i in range(4)]]
    assert [each.name for each in found.places] == ["p0-0", "p0-1", "p0-2"]
    assert [found.interconnect(i) for i in range(3)] == [None] * 3


def test_a_replica_is_not_cut_to_fill_a_gap() -> None:
    """Two of 6 GPUs: the second starts a node of its own; one of 2 goes into the gap."""
    found = topology([{"tensor_parallel": 2, "pipeline_parallel": 3, "replicas": 2}, {"tensor_parallel": 2}])
    assert [{slot.node for slot in each.gpus} for each in found.places] == [{0}, {1}, {0}]


def test_stages_of_a_large_replica_stay_within_nodes() -> None:
    """TP8-PP2 on nodes of 8 crosses once; TP16 has its all-reduces between nodes."""
    pipeline = topology([{"tensor_parallel": 8, "pipeline_parallel": 2}])
    joined = pipeline.interconnect(0)
    assert joined is not None
    assert (joined.num_nodes, joined.num_crossings) == (1, 1)
    wide = topology([{"tensor_parallel": 16}]).interconnect(0)
    assert wide is not None
    assert (wide.num_nodes, wide.group_gpus, wide.num_crossings) == (2, 8, 0)
    assert wide.bytes_per_second == pytest.approx(8 * 50e9 * 0.72)


def test_too_few_nodes_say_what_is_left() -> None:
    with pytest.raises(InputError, match=r"placement.*replica 2 of 3 needs 1 x 4 h100-sxm; GPUs left: none"):
        topology([{"tensor_parallel": 4, "replicas": 3}], {"num_nodes": 1})
    shape = Shape("x", 4, 1)
    assert isinstance(Pack().place([shape], []), NotPlaced)


class Wrong:
    def place(self, wanted: Any, nodes: Any) -> Placed:
        return Placed(tuple((GpuSlot(0, 0),) for _ in wanted))


def test_a_policy_that_gives_a_gpu_twice_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"Wrong gave replica 1, which needs 1 x h100-sxm"):
        plan_topology(config([{"replicas": 2}]), Wrong())


def test_a_transfer_between_nodes_crosses_the_adapters_of_its_gpus() -> None:
    """TP4 to TP4 on different nodes: 4 streams, each over PCIe and an adapter of its own on both sides."""
    fabric = Fabric(Clock(), topology([{"tensor_parallel": 4, "replicas": 3}]))
    names = [link.name for link in fabric.path(0, 2)]
    assert names[:4] == [
        "node0.gpu0.pcie-gen5-x16.out",
        "node0.nic0.infiniband-ndr.out",
        "node1.nic0.infiniband-ndr.in",
        "node1.gpu0.pcie-gen5-x16.in",
    ]
    assert len(names) == 16
    assert fabric.route(0, 2).bytes_per_second == pytest.approx(4 * 36e9)
    assert {link.name.split(".")[2] for link in fabric.path(0, 1)} == {"nvlink4"}
    assert fabric.path(1, 1) == ()


def test_unequal_groups_share_the_smaller_side() -> None:
    """TP1 to TP4: one adapter sends for four."""
    fabric = Fabric(Clock(), topology([{"tensor_parallel": 8, "replicas": 1}, {"tensor_parallel": 1}]))
    assert fabric.route(1, 0).num_streams == 8
    assert fabric.route(1, 0).bytes_per_second == pytest.approx(36e9)
    assert fabric.route(0, 1).bytes_per_second == pytest.approx(36e9)


def test_one_adapter_for_eight_gpus_is_shared() -> None:
    """g6: 100 Gb/s for all 8 GPUs; two transfers out of the node at once take twice as long."""
    clock = Clock()
    found = topology([{"model": "llama-3.1-8b", "gpu": "l4", "replicas": 10}])
    fabric = Fabric(clock, found)
    alone = fabric.expected_duration(0, 8, 1e9)
    ends: list[float] = []
    for source in (0, 1):
        fabric.start(source, 8 + source, 1e9, lambda _: ends.append(clock.now))
    clock.env.run()
    assert ends == pytest.approx([20e-6 + 2 * (alone - 20e-6)] * 2)
    account = {each.link: each for each in fabric.accounts()}["node0.nic0.ethernet-100.out"]
    assert account.num_bytes == pytest.approx(2e9)
    assert account.busy_time == pytest.approx(ends[0] - 20e-6)


def test_an_oversubscribed_uplink_is_the_narrowest_link() -> None:
    """Two DGX of one adapter class, racks of one node, 4:1: 8 x 36 / 4 = 72 GB/s for all; TP4 alone could do 144."""
    network = {"nodes_per_rack": 1, "rack_uplink": {"oversubscription": 4.0}}
    fabric = Fabric(Clock(), topology([{"tensor_parallel": 4, "replicas": 4}], network))
    assert fabric.route(0, 2).bytes_per_second == pytest.approx(72e9)
    assert "rack0.out" in {link.name for link in fabric.path(0, 2)}
    joined = topology([{"tensor_parallel": 16}], network).interconnect(0)
    assert joined is not None
    assert (joined.link, joined.bytes_per_second) == ("rack uplink", pytest.approx(72e9))


def test_a_plain_network_is_one_link_out_of_every_replica() -> None:
    fabric = Fabric(Clock(), topology([{"replicas": 3}], {"bandwidth": 12.5e9, "latency": "5us"}))
    assert [link.name for link in fabric.path(0, 1)] == ["p0-0.out"]
    assert fabric.path(0, 1) == fabric.path(0, 2)
    assert fabric.expected_duration(0, 1, 12.5e9) == pytest.approx(1.0 + 5e-6, abs=1e-8)


def test_swaps_and_transfers_share_the_pcie_link_of_a_gpu() -> None:
    """L40S, PCIe 4: a copy to the host and a transfer out of the node at once; both ways out of the same GPU."""
    clock = Clock()
    pool = {"model": "llama-3.1-8b", "gpu": "l40s", "replicas": 9}
    fabric = Fabric(clock, topology([pool], {"link": "roce-400"}))
    pcie = load_link("pcie-gen4-x16").bytes_per_second
    assert fabric.expected_host_duration(0, pcie, True) == pytest.approx(1.0, abs=1e-8)
    flows = [fabric.start_host(0, pcie, True, nothing), fabric.start_host(0, pcie, False, nothing)]
    flows.append(fabric.start(0, 8, pcie, nothing))
    clock.env.run(until=0.5)
    assert [flow.rate for flow in flows] == pytest.approx([pcie / 2, pcie, pcie / 2])
    fabric.cancel(flows[2])
    assert flows[0].rate == pytest.approx(pcie)


def nothing(_: Flow) -> None:
    pass


BAD = [
    ({"node": "dgx-h10"}, "unknown node 'dgx-h10' \\(did you mean 'dgx-h100'"),
    ({"node": "dgx-a100"}, "'dgx-a100' takes a100-sxm-80gb, a100-sxm-40gb; the pools have h100-sxm"),
    ({"link": "infiniband"}, "cluster.network.link: unknown link 'infiniband'"),
    ({"link": "nvlink4"}, "'nvlink4' joins GPUs within a node; allowed: links of kind network"),
    ({"latency": 1e-6}, "latency goes with bandwidth"),
    ({"bandwidth": 1e9, "link": "roce-100"}, "link and rack_uplink must not be given"),
    ({"bandwidth": 0}, "must be greater than 0|must be > 0|above 0"),
    ({"rack_uplink": {"oversubscription": 2.0}}, "rack_uplink needs nodes_per_rack"),
    ({"nodes_per_rack": 1, "rack_uplink": {"link": "eth"}}, "rack_uplink.link: unknown link 'eth'"),
    ({"speed": 3}, "speed"),
    ({"nics_per_node": 16}, "nics_per_node: must not be above the 8 GPUs of a node: a GPU uses one adapter"),
]


@pytest.mark.parametrize(("network", "message"), BAD)
def test_bad_networks_are_refused_in_a_line(network: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        topology([{"tensor_parallel": 2}], network)
    assert "\n" not in str(caught.value)


def test_a_run_says_which_links_between_nodes_were_assumed() -> None:
    pools = [{"tensor_parallel": 8, "cost_model": {"kind": "roofline"}}]
    simulation = build(config(pools, {"node": "dgx-h100", "link": "ethernet-100"}))
    assert not any("ethernet" in warning for warning in simulation.warnings)
    wide = [{"tensor_parallel": 16, "cost_model": {"kind": "roofline"}}]
    simulation = build(config(wide, {"node": "dgx-h100", "link": "ethernet-100"}))
    assert any("ethernet-100: assumed, not measured" in warning for warning in simulation.warnings)


@pytest.mark.parametrize("kind", ["roofline", "fitted"])
def test_stepping_and_fast_forward_agree_where_a_replica_spans_nodes(kind: str) -> None:
    """To the last bit; and the same replicas within one node are faster."""
    wide = {"gpu": "a100-sxm-80gb", "tensor_parallel": 8, "cost_model": {"kind": kind}}
    slow = config([wide], {"gpus_per_node": 4, "link": "ethernet-100"})
    summaries = [run(slow, RunOptions(step_by_step=stepping)).summary for stepping in (True, False)]
    assert summaries[0] == summaries[1]
    assert run(config([wide])).summary["e2e"]["mean"] < summaries[0]["e2e"]["mean"]


def test_the_experiment_on_parallelism_across_nodes_holds_at_a_quarter_of_its_size(tmp_path: Path) -> None:
    study = Path(__file__).parents[2] / "experiments" / "parallel_across_nodes" / "study.yaml"
    outcome = sweep(study, tmp_path / "study", ["workload.num_requests=50"], Workers(1))
    assert not outcome.failed_runs
    assert not outcome.failures
