"""`servesim models`: the catalogue of model architectures, and reading a Hugging Face config.json."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pathlib import Path

    from sim.layer_groups import KvCount
    from sim.model import ModelSpec

app = typer.Typer(help="Model architectures that ship with servesim, and how to add one.")
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
_NOT_ARCHITECTURE = ("name", "model_type", "aliases", "source", "notes")


@app.command("list")
def list_models(as_json: Json = False) -> None:
    """All models with their sizes."""
    from sim.model import load_model, model_names

    models = [load_model(name) for name in model_names()]
    if as_json:
        typer.echo(json.dumps([_sizes(model) for model in models], indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title="models (servesim models show NAME: the whole architecture)", title_justify="left")
    for header in (
        "model",
        "params 1e9",
        "active 1e9",
        "layers",
        "KV B/token",
        "weights GB",
        "weight type",
        "max context",
    ):
        table.add_column(header, justify="left" if header == "model" else "right", no_wrap=header == "model")
    for model in models:
        table.add_row(*_row(model))
    Console().print(table)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Catalogue name, Hugging Face id, or path.")], as_json: Json = False
) -> None:
    """One architecture, as the YAML that describes it."""
    from sim.model import load_model

    model = load_model(name)
    if as_json:
        counts = [count._asdict() for count in _kv_counts(model)]
        typer.echo(json.dumps({**asdict(model), **_sizes(model), "kv_bytes_of_a_sequence": counts}, indent=2))
    else:
        typer.echo(_as_yaml(model) + "\n".join(_kv_lines(model)))


@app.command("import")
def import_model(
    path: Annotated[str, typer.Argument(help="A Hugging Face config.json, or the folder that holds one.")],
    output: Annotated[
        str | None, typer.Option("-o", "--output", help="Write the YAML here instead of printing it.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the model; default: that of the folder or file.")] = None,
) -> None:
    """Turn a config.json into a model YAML that can be edited and named in an experiment."""
    from dataclasses import replace
    from pathlib import Path

    from sim.errors import InputError
    from sim.hfconfig import read_hf_config

    file = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
    model = read_hf_config(file)
    text = _as_yaml(replace(model, name=name) if name else model)
    if output is None:
        typer.echo(text.rstrip())
        return
    target = Path(output)
    if target.suffix not in (".yaml", ".yml"):
        raise InputError(f"--output {output}: the name must end in .yaml, as model files do")
    _write(target, text)
    typer.echo(f"wrote {target}; use it with `model: {target}`", err=True)


def _write(target: Path, text: str) -> None:
    import os

    from sim.errors import InputError

    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, target)
    except OSError as error:
        raise InputError(f"{target}: cannot be written ({error.strerror})") from None


def _as_yaml(model: ModelSpec) -> str:
    from sim import yamlfile

    architecture = {key: value for key, value in asdict(model).items() if key not in _NOT_ARCHITECTURE}
    values: dict[str, Any] = {
        "name": model.name,
        "model_type": model.model_type,
        "aliases": list(model.aliases),
        "source": model.source,
        "architecture": architecture,
        "notes": list(model.notes),
    }
    lines = [f"# {key}: {value:,}" for key, value in _sizes(model).items() if isinstance(value, int)]
    return yamlfile.dump(values) + "\n".join(lines) + "\n"


def _kv_counts(model: ModelSpec) -> list[KvCount]:
    from sim.layer_groups import count_kv

    most = model.max_position or 32768
    return [count_kv(model, tokens) for tokens in (1024, 8192, 32768, 131072) if tokens <= most]


def _kv_lines(model: ModelSpec) -> list[str]:
    """KV bytes of a sequence by ways of counting; only where the layers of the model keep different amounts."""
    if not model.num_sliding_layers:
        return ["# KV of a sequence: the same in every layer, all of its context"]
    return [
        f"# KV of a sequence of {count.num_tokens:,} tokens, MB: {count.every_layer / 1e6:,.1f} with all of it in "
        f"every layer, {count.unified_pages / 1e6:,.1f} in pages of window groups, {count.ideal / 1e6:,.1f} ideal"
        for count in _kv_counts(model)
    ]


def _sizes(model: ModelSpec) -> dict[str, int | str | None]:
    return {
        "name": model.name,
        "num_parameters": model.num_parameters,
        "num_active_parameters": model.num_active_parameters,
        "num_layers": model.num_layers,
        "kv_bytes_per_token": model.kv_bytes_per_token(),
        "weight_bytes": model.weight_bytes(),
        "weight_dtype": model.weight_dtype,
        "max_position": model.max_position,
    }


def _row(model: ModelSpec) -> list[str]:
    return [
        model.name,
        f"{model.num_parameters / 1e9:.2f}",
        f"{model.num_active_parameters / 1e9:.2f}",
        str(model.num_layers),
        f"{model.kv_bytes_per_token():,}",
        f"{model.weight_bytes() / 1e9:.1f}",
        model.weight_dtype,
        "-" if model.max_position is None else f"{model.max_position:,}",
    ]
