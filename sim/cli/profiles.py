"""`servesim profiles`: the catalogue of GPUs, and what a step costs on one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from sim.cost.base import BatchShape
    from sim.hardware import HardwareProfile

app = typer.Typer(help="GPUs that ship with servesim: facts, sources, and where the time of a step goes.")
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

# Facts are kept in base units; tables show them in the unit that people use.
_SCALES = {"FLOP/s": (1e12, "TFLOP/s"), "OP/s": (1e12, "TOP/s"), "B/s": (1e9, "GB/s"), "B": (1e9, "GB")}
_COLUMNS = ("bf16_flops", "fp8_flops", "memory_bytes", "memory_bandwidth", "scaleup_bandwidth", "tdp", "price_median")


@app.command("list")
def list_profiles(as_json: Json = False) -> None:
    """All GPUs with their main facts, and what their step times rest on; `-` means that no source gives it."""
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


def _unfitted(gpu: HardwareProfile) -> str:
    return "data sheet" if gpu.get("memory_bandwidth") else "to be measured"


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Catalogue name, alias, or path of a YAML file.")], as_json: Json = False
) -> None:
    """Every fact of one GPU with its unit and source."""
    from sim.hardware import load_gpu

    gpu = load_gpu(name)
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
        left = i == 0 or header in ("unit", "source", "bound by", "step times")
        table.add_column(header, justify="left" if left else "right", no_wrap=i == 0)
    return table


def _print(table: Table) -> None:
    from rich.console import Console

    Console().print(table)
