"""`servesim profiles`: the catalogue of GPUs, nodes and links, and what a step costs on a GPU."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from sim.cost.base import BatchShape
    from sim.hardware import HardwareProfile
    from sim.links import LinkProfile, NodeProfile

app = typer.Typer(
    help="GPUs, nodes and links that ship with servesim: facts, sources, and where the time of a step goes."
)
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

# Facts are kept in base units; tables show them in the unit that people use.
_SCALES = {"FLOP/s": (1e12, "TFLOP/s"), "OP/s": (1e12, "TOP/s"), "B/s": (1e9, "GB/s"), "B": (1e9, "GB")}
_LINK_HEADERS = ("scaleup", "pcie", "adapter")
_COLUMNS = ("bf16_flops", "fp8_flops", "memory_bytes", "memory_bandwidth", "scaleup_bandwidth", "tdp", "price_median")


Kind = Annotated[
    str | None, typer.Argument(help="gpus, nodes or links; default: all, and with --json the GPUs.", metavar="[KIND]")
]


@app.command("list")
def list_profiles(kind: Kind = None, as_json: Json = False) -> None:
    """All GPUs with their main facts and what their step times rest on, nodes and links; `-`: no source gives it."""
    from sim.errors import unknown_name

    listings = {"gpus": _list_gpus, "nodes": _list_nodes, "links": _list_links}
    if kind is not None and kind not in listings:
        raise unknown_name("kind of profile", kind, listings)
    for listing in [listings[kind]] if kind else [_list_gpus] if as_json else listings.values():
        listing(as_json)


def _list_gpus(as_json: bool) -> None:
    from sim.calibration.origin import origins, summary
    from sim.hardware import gpu_names, load_gpu

    gpus, fitted = [load_gpu(name) for name in gpu_names()], origins()
    basis = {gpu.name: fitted[gpu.name].text if gpu.name in fitted else _unfitted(gpu) for gpu in gpus}
    if as_json:
        rows = [
            {"name": gpu.name, **{key: gpu.get(key) for key in _COLUMNS}, "step_times": basis[gpu.name]} for gpu in gpus
        ]
        typer.echo(json.dumps(rows, indent=2))
        return
    headers = [f"{key.removesuffix('_flops')} {_shown(gpus[0], key)[1]}" for key in _COLUMNS]
    table = _table("GPU", *headers, "step times", title="GPUs (servesim profiles show NAME: all facts and sources)")
    for gpu in gpus:
        table.add_row(gpu.name, *(_shown(gpu, key)[0] for key in _COLUMNS), basis[gpu.name])
    _print(table)
    typer.echo(summary(fitted))


def _list_nodes(as_json: bool) -> None:
    from sim.links import load_node, node_names

    nodes = [load_node(name) for name in node_names()]
    if as_json:
        typer.echo(json.dumps([_flat(node, **node.links) for node in nodes], indent=2))
        return
    table = _table("node", "GPUs", "of type", "scaleup", "pcie", "adapters", "adapter", title="Nodes")
    for node in nodes:
        counts = [_short(node, key) for key in ("num_gpus", "num_nics")]
        names = [node.links[key] or "-" for key in ("scaleup", "pcie", "nic")]
        table.add_row(node.name, counts[0], ", ".join(node.gpus), names[0], names[1], counts[1], names[2])
    _print(table)


def _list_links(as_json: bool) -> None:
    from sim.links import link_names, load_link

    links = [load_link(name) for name in link_names()]
    if as_json:
        typer.echo(json.dumps([_flat(link, kind=link.kind) for link in links], indent=2))
        return
    table = _table(
        "link", "kind", "GB/s", "share reached", "latency us", title="Links, one direction (-: not measured)"
    )
    for link in links:
        facts = [_short(link, *key) for key in (("bandwidth", 1e9), ("achieved_share",), ("latency", 1e-6))]
        table.add_row(link.name, link.kind, *facts)
    _print(table)


def _flat(profile: LinkProfile | NodeProfile, **more: Any) -> dict[str, Any]:
    return {"name": profile.name, **{key: fact.value for key, fact in profile.facts.items()}, **more}


def _short(profile: LinkProfile | NodeProfile, key: str, scale: float = 1.0) -> str:
    value = profile.facts[key].value
    return "-" if value is None else f"{value / scale:.6g}"


def _unfitted(gpu: HardwareProfile) -> str:
    return "data sheet" if gpu.get("memory_bandwidth") else "to be measured"


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Catalogue name, alias, or path of a GPU's YAML file.")],
    as_json: Json = False,
) -> None:
    """Every fact of one GPU, node or link with its unit and source."""
    from sim.catalogue import knows
    from sim.hardware import load_gpu
    from sim.links import load_link, load_node

    if knows("links", name):
        _show_facts(load_link(name), {"kind": load_link(name).kind}, as_json)
    elif knows("nodes", name):
        node = load_node(name)
        _show_facts(node, {**node.links, "gpus": ", ".join(node.gpus)}, as_json)
    else:
        _show_gpu(load_gpu(name), as_json)


def _show_gpu(gpu: HardwareProfile, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(_as_dict(gpu), indent=2))
        return
    table = _table("fact", "value", "unit", "source", title=f"{gpu.name}: {gpu.description}")
    for key, fact in gpu.facts.items():
        table.add_row(key, *_shown(gpu, key), gpu.sources.get(fact.source or "", "unknown"))
    for key, value in gpu.efficiencies.items():
        table.add_row(f"efficiency: {key}", f"{value:g}", "fraction", gpu.sources.get("kernels", gpu.file))
    _print(table)
    for note in gpu.notes:
        typer.echo(f"note: {note}")


def _show_facts(profile: LinkProfile | NodeProfile, more: dict[str, str | None], as_json: bool) -> None:
    facts = {
        key: {"value": fact.value, "unit": fact.unit, "source": profile.sources.get(fact.source or "")}
        for key, fact in profile.facts.items()
    }
    if as_json:
        whole = {"name": profile.name, "description": profile.description, **more, "facts": facts}
        typer.echo(json.dumps({**whole, "notes": list(profile.notes)}, indent=2))
        return
    table = _table("fact", "value", "unit", "source", title=f"{profile.name}: {profile.description}")
    for key, fact in facts.items():
        value = "-" if fact["value"] is None else f"{fact['value']:.6g}"
        table.add_row(key, value, str(fact["unit"]), str(fact["source"] or "unknown"))
    for key, text in more.items():
        table.add_row(key, text or "-", "", "")
    _print(table)
    for note in profile.notes:
        typer.echo(f"note: {note}")


@app.command()
def explain(
    model: Annotated[str, typer.Argument(help="Model: catalogue name, Hugging Face id, or path of a config.json.")],
    gpu: Annotated[str, typer.Argument(help="GPU: catalogue name or path of a YAML file.")],
    batch: Annotated[int, typer.Option(min=0, help="Sequences in decode.")] = 32,
    context: Annotated[int, typer.Option(min=1, help="Context length of each, in tokens.")] = 1024,
    prefill: Annotated[int, typer.Option(min=0, help="Prompt tokens of one prefill chunk in the same step.")] = 0,
    prefix: Annotated[int, typer.Option(min=0, help="Tokens already computed before that chunk.")] = 0,
    tensor_parallel: Annotated[int, typer.Option(min=1)] = 1,
    pipeline_parallel: Annotated[int, typer.Option(min=1)] = 1,
    kind: Annotated[
        str, typer.Option(help="Cost model; default: fitted where a profile exists, else roofline.")
    ] = "auto",
    as_json: Json = False,
) -> None:
    """Where the time of one step goes, by operation."""
    from sim.cost import build_cost_model, default_kind
    from sim.hardware import load_gpu
    from sim.model import load_model

    spec, profile = load_model(model), load_gpu(gpu)
    chosen = default_kind(profile) if kind == "auto" else kind
    cost = build_cost_model(
        chosen, {}, model=spec, gpu=profile, tensor_parallel=tensor_parallel, pipeline_parallel=pipeline_parallel
    )
    shape = _shape(batch, context, prefill, prefix)
    seconds, parts = cost.step_time(shape), cost.breakdown(shape)
    notes = cost.extrapolation()
    if as_json:
        typer.echo(json.dumps({"kind": chosen, "seconds": seconds, "operations": parts, "notes": notes}, indent=2))
        return
    num_gpus = tensor_parallel * pipeline_parallel
    title = f"{spec.name} on {num_gpus} x {profile.name} ({chosen}): {seconds * 1e3:.3f} ms a step"
    _print(_operations_table(parts, seconds, title))
    for note in notes:
        typer.echo(f"note: {note}")


def _shape(batch: int, context: int, prefill: int, prefix: int) -> BatchShape:
    from sim.cost.base import BatchShape
    from sim.errors import InputError

    if not batch and not prefill:
        raise InputError("--batch and --prefill are both 0: there is no step to explain")
    longest = max(context if batch else 0, prefix + prefill if prefill else 0)
    return BatchShape(
        num_prefill_tokens=prefill,
        num_prefill_sequences=int(prefill > 0),
        prefill_pairs=prefill * prefix + prefill * (prefill + 1) // 2,
        prefill_context=prefill + prefix if prefill else 0,
        num_decode_sequences=batch,
        decode_context=batch * context,
        max_context=longest,
    )


def _operations_table(parts: dict[str, dict[str, Any]], total: float, title: str) -> Table:
    table = _table("operation", "ms", "share", "GFLOP", "MB", "bound by", title=title)
    for name, part in sorted(parts.items(), key=lambda item: -item[1]["seconds"]):
        table.add_row(
            name,
            f"{part['seconds'] * 1e3:.3f}",
            f"{part['seconds'] / total:.1%}",
            f"{part['flops'] / 1e9:.1f}",
            f"{part['bytes'] / 1e6:.1f}",
            str(part["bound"]),
        )
    return table


def _as_dict(gpu: HardwareProfile) -> dict[str, Any]:
    facts = {
        key: {"value": fact.value, "unit": fact.unit, "source": gpu.sources.get(fact.source or "")}
        for key, fact in gpu.facts.items()
    }
    return {
        "name": gpu.name,
        "description": gpu.description,
        "aliases": list(gpu.aliases),
        "facts": facts,
        "efficiencies": dict(gpu.efficiencies),
        "notes": list(gpu.notes),
    }


def _shown(gpu: HardwareProfile, key: str) -> tuple[str, str]:
    """A fact as text and the unit that it is shown in."""
    fact = gpu.facts[key]
    scale, unit = _SCALES.get(fact.unit, (1.0, fact.unit))
    return ("-" if fact.value is None else f"{fact.value / scale:,.6g}"), unit


def _table(*headers: str, title: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for i, header in enumerate(headers):
        left = i == 0 or header in ("unit", "source", "bound by", "step times", "of type", "kind", *_LINK_HEADERS)
        table.add_column(header, justify="left" if left else "right", no_wrap=i == 0, overflow="fold")
    return table


def _print(table: Table) -> None:
    from rich.console import Console

    Console().print(table)
