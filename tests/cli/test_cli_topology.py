"""`servesim topology` and the links of `servesim profiles`: the way of every message, the slow link, bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sim.cli.main import build_app
from sim.cli.profiles import app as profiles
from sim.errors import InputError

EXPERIMENT = Path(__file__).parents[2] / "experiments" / "parallel_across_nodes" / "slow_link.yaml"


def topology(*arguments: str) -> dict[str, Any]:
    given = ["topology", str(EXPERIMENT), *arguments, "--json"]
    result = CliRunner().invoke(build_app(given), given, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_prefill_across_two_nodes_names_its_slow_link() -> None:
    """TP8 on two nodes of 4: 160 all-reduces of 2,048 x 8,192 x 2 bytes cross the one adapter of each node."""
    found = topology("--prompt", "2048")
    stage = found["replicas"][0]["stages"][0]["nodes"]
    assert [(node["node"], node["gpus"]) for node in stage] == [(0, [0, 1, 2, 3]), (1, [0, 1, 2, 3])]
    prefill = next(step for step in found["steps"] if step["step"].startswith("prefill"))
    assert prefill["slowest"]["link"] == "node0.nic0.ethernet-100.out"
    hops = {hop["message"]: hop for hop in prefill["hops"]}
    across = hops["all_reduce_across_nodes"]
    assert (across["count"], across["num_bytes"]) == (160, 2048 * 8192 * 2)
    assert across["path"][1:3] == ["node0.nic0.ethernet-100.out", "node1.nic0.ethernet-100.in"]
    assert across["seconds"] > 160 * across["num_bytes"] / 12.5e9
    assert hops["all_reduce"]["path"] == ["node0.gpu0.nvlink3.out", "node0.gpu1.nvlink3.in"]
    assert across["seconds"] > 0.5 * prefill["seconds"]


def test_a_pipeline_crosses_the_slow_link_once() -> None:
    found = topology("--set", "cluster.pools.0.tensor_parallel=4", "--set", "cluster.pools.0.pipeline_parallel=2")
    hops = {hop["message"]: hop for hop in found["steps"][0]["hops"]}
    assert set(hops) == {"all_reduce", "pipeline_send_across_nodes"}
    assert hops["pipeline_send_across_nodes"]["count"] == 1


def test_transfers_between_replicas_take_as_long_as_their_slow_link() -> None:
    """KV of 2,048 tokens of Llama-2-70B: 80 layers x 2 x 8 heads x 128 x 2 bytes a token, over one adapter a node."""
    found = topology(
        *("--set", "cluster.pools.0.tensor_parallel=4", "--set", "cluster.pools.0.replicas=3", "--prompt", "2048")
    )
    (transfer,) = found["transfers"]
    assert transfer["num_bytes"] == 2048 * 80 * 2 * 8 * 128 * 2
    assert transfer["num_pairs"] == 2
    assert transfer["seconds"] == pytest.approx(20e-6 + transfer["num_bytes"] / 9.375e9, rel=1e-6)
    assert transfer["slowest"]["link"] == "ethernet-100.out"


def test_one_gpu_sends_nothing() -> None:
    found = topology("--set", "cluster.pools.0.model=llama-2-7b", "--set", "cluster.pools.0.tensor_parallel=1")
    assert [step["hops"] for step in found["steps"]] == [[], []]
    assert found["transfers"] == []


SPLIT = """
workload: {num_requests: 1, arrivals: {process: constant, rate: 1.0}, prompt_tokens: {distribution: fixed, value: 9},
  output_tokens: {distribution: fixed, value: 9}}
cluster:
  disaggregation: always_split
  network: {nics_per_node: 1}
  pools:
    - {name: p, role: prefill, model: llama-2-70b, gpu: h100-sxm, tensor_parallel: 4, replicas: 3}
    - {name: d, role: decode, model: llama-2-70b, gpu: h100-sxm, tensor_parallel: 8}
"""


def test_split_pools_show_their_own_step_and_their_transfers(tmp_path: Path) -> None:
    """All KV enters the decode node over its one adapter of 36 GB/s."""
    file = tmp_path / "split.yaml"
    file.write_text(SPLIT, encoding="utf-8")
    given = ["topology", str(file), "--json"]
    found = json.loads(CliRunner().invoke(build_app(given), given, catch_exceptions=False).stdout)
    assert [step["step"].split()[0] for step in found["steps"]] == ["prefill", "decode"]
    (transfer,) = found["transfers"]
    assert (transfer["source"], transfer["destination"], transfer["num_pairs"]) == ("p-0", "d-3", 3)
    assert transfer["seconds"] == pytest.approx(17e-6 + transfer["num_bytes"] / 36e9, rel=1e-6)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "sim", "topology", *arguments], capture_output=True, text=True)


def test_tables_for_people() -> None:
    result = run(str(EXPERIMENT))
    assert result.returncode == 0
    assert "slow link: node0.nic0.ethernet-100.out, 9.375 GB/s" in result.stdout
    assert "node0.nic0.ethernet-100.out > node1.nic0.ethernet-100.in" in result.stdout


def test_bad_input_is_one_line() -> None:
    result = run(str(EXPERIMENT), "--set", "cluster.network.link=ethernet-40")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "cluster.network.link: unknown link 'ethernet-40' (did you mean 'ethernet-10'" in result.stderr


@pytest.mark.parametrize(("kind", "name"), [("links", "nvlink4"), ("nodes", "dgx-h100")])
def test_profiles_list_links_and_nodes(kind: str, name: str) -> None:
    rows = {row["name"]: row for row in json.loads(CliRunner().invoke(profiles, ["list", kind, "--json"]).stdout)}
    assert name in rows
    assert name in CliRunner().invoke(profiles, ["list"]).stdout


def test_profiles_show_a_link_and_a_node() -> None:
    link = json.loads(CliRunner().invoke(profiles, ["show", "NDR", "--json"]).stdout)
    assert (link["name"], link["facts"]["bandwidth"]["value"]) == ("infiniband-ndr", 50e9)
    assert "send_recv" in link["facts"]["latency"]["source"]
    node = json.loads(CliRunner().invoke(profiles, ["show", "dgx-h100", "--json"]).stdout)
    assert (node["nic"], node["facts"]["num_nics"]["value"]) == ("infiniband-ndr", 8)
    assert "pcie-gen5-x16" in CliRunner().invoke(profiles, ["show", "dgx-h100"]).stdout
    assert isinstance(CliRunner().invoke(profiles, ["list", "switches"]).exception, InputError)
