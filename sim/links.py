"""Facts of links and servers, each number with its unit and source, from hardware_profiles/links and /nodes.

A fact that no source gives is None. Where a simulation cannot do without it, the defaults below stand in, and
`assumptions` says so in words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from sim.catalogue import entry_names, fields_of, read_entry
from sim.errors import InputError
from sim.hardware import Fact, read_fact

KINDS = ("scaleup", "pcie", "network")
DEFAULT_SHARE = 0.75  # of a link's bandwidth that transfers reach: between the measured 0.64 and 0.94
# Seconds of a link that nobody measured. scaleup: between 5 and 8 us (A100, H100), network: between 17 and 24 us (two
# pairs of nodes), for 2 KB with NCCL; pcie: contained in these, and short beside a swapped block.
DEFAULT_LATENCY: Mapping[str, float] = {"scaleup": 6e-6, "pcie": 0.0, "network": 20e-6}
DEFAULT_NIC = "ethernet-100"
DEFAULT_PCIE = "pcie-gen4-x16"
GENERIC_NODE = "pcie-8"


@dataclass(frozen=True)
class LinkProfile:
    """One kind of link, one direction: facts `bandwidth` (B/s), `achieved_share` and `latency` (s)."""

    name: str
    description: str
    kind: str
    facts: Mapping[str, Fact]
    sources: Mapping[str, str]
    notes: tuple[str, ...] = ()
    file: str = field(default="", compare=False)

    @property
    def bandwidth(self) -> float:
        """Nominal bytes per second. `InputError` when it is unknown."""
        value = self.facts["bandwidth"].value
        if value is None:
            raise InputError(f"link '{self.name}': bandwidth is unknown; give it in a copy of {self.file}")
        return value

    @property
    def share(self) -> float:
        """Share of the bandwidth that transfers reach: measured, else the default."""
        value = self.facts["achieved_share"].value
        return DEFAULT_SHARE if value is None else value

    @property
    def bytes_per_second(self) -> float:
        """What transfers reach."""
        return self.bandwidth * self.share

    @property
    def latency(self) -> float:
        """Seconds before the first byte: measured, else the default."""
        value = self.facts["latency"].value
        return DEFAULT_LATENCY[self.kind] if value is None else value

    def assumptions(self) -> list[str]:
        """What is not measured about this link, in words."""
        said = []
        if self.facts["achieved_share"].value is None:
            said.append(f"transfers reach {DEFAULT_SHARE:.0%} of its bandwidth")
        if self.facts["latency"].value is None and self.kind != "pcie":
            said.append(f"{DEFAULT_LATENCY[self.kind] * 1e6:g} us of latency")
        return [f"link {self.name}: assumed, not measured: {' and '.join(said)}"] if said else []


@dataclass(frozen=True)
class NodeProfile:
    """One kind of server. `links`: names of its scaleup, pcie and nic links; None: it has none or none is known."""

    name: str
    description: str
    gpus: tuple[str, ...]
    default_for: tuple[str, ...]
    facts: Mapping[str, Fact]
    links: Mapping[str, str | None]
    sources: Mapping[str, str]
    notes: tuple[str, ...] = ()
    file: str = field(default="", compare=False)

    @property
    def num_gpus(self) -> int:
        """GPUs of the server."""
        return _count(self, "num_gpus") or 1

    @property
    def num_nics(self) -> int:
        """Network adapters; 1 where their number is unknown."""
        return _count(self, "num_nics") or 1

    def nic_of(self, gpu: int) -> int:
        """The adapter that a GPU uses."""
        return gpu * self.num_nics // self.num_gpus


def link_names() -> list[str]:
    """Names of all links in the catalogue, sorted."""
    return entry_names("links")


def node_names() -> list[str]:
    """Names of all servers in the catalogue, sorted."""
    return entry_names("nodes")


def load_link(name_or_path: str) -> LinkProfile:
    """A link by catalogue name, alias or path of a YAML file in the same form."""
    values = read_entry("links", name_or_path, "link")
    where, facts, rest = _common(values, ("bandwidth", "achieved_share", "latency"))
    share = facts["achieved_share"].value
    if share is not None and share > 1:
        raise InputError(f"{where}: facts.achieved_share.value must lie in (0, 1] (got {share:g})")
    kind = str(values.get("kind"))
    if kind not in KINDS:
        raise InputError(f"{where}: kind must be one of {', '.join(KINDS)} (got '{kind}')")
    return LinkProfile(kind=kind, facts=facts, **rest)


def load_node(name_or_path: str) -> NodeProfile:
    """A server by catalogue name, alias or path of a YAML file in the same form."""
    values = read_entry("nodes", name_or_path, "node")
    where, facts, rest = _common(values, ("num_gpus", "num_nics"))
    for key, fact in facts.items():
        if fact.value is not None and fact.value != int(fact.value):
            raise InputError(f"{where}: facts.{key}.value must be a whole number (got {fact.value:g})")
    if facts["num_gpus"].value is None:
        raise InputError(f"{where}: facts.num_gpus.value must be given")
    links = fields_of(values, "links", where)
    if set(links) != {"scaleup", "pcie", "nic"}:
        raise InputError(f"{where}: links must have the keys scaleup, pcie and nic, each a link or null")
    named = {key: None if link is None else str(link) for key, link in links.items()}
    return NodeProfile(
        gpus=_names(values, "gpus"), default_for=_names(values, "default_for"), facts=facts, links=named, **rest
    )


@cache
def default_node(gpu: str) -> NodeProfile:
    """The server that a GPU usually comes in, or one of no particular make."""
    for name in node_names():
        node = load_node(name)
        if gpu in node.default_for:
            return node
    return load_node(GENERIC_NODE)


def _common(values: Mapping[str, Any], needed: tuple[str, ...]) -> tuple[str, dict[str, Fact], dict[str, Any]]:
    where = str(values["file"])
    facts = {key: read_fact(key, raw, where) for key, raw in fields_of(values, "facts", where).items()}
    if set(facts) != set(needed):
        raise InputError(f"{where}: facts must be {', '.join(needed)} (got {', '.join(facts) or 'none'})")
    rest = {
        "name": str(values.get("name")),
        "description": str(values.get("description") or ""),
        "sources": {str(key): str(text) for key, text in (values.get("sources") or {}).items()},
        "notes": tuple(str(note) for note in values.get("notes") or ()),
        "file": where,
    }
    return where, facts, rest


def _names(values: Mapping[str, Any], key: str) -> tuple[str, ...]:
    return tuple(str(name) for name in values.get(key) or ())


def _count(node: NodeProfile, fact: str) -> int | None:
    value = node.facts[fact].value
    return None if value is None else int(value)
