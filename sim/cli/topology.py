"""`servesim topology`: where replicas land, which links their messages cross, and which of these is slow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table


def command(
    experiment: Annotated[Path, typer.Argument(help="The experiment file.", metavar="EXPERIMENT.yaml")],
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a value: cluster.pools.0.tensor_parallel=16. May be given many times."),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences in the decode step.")] = 32,
    context: Annotated[int, typer.Option(min=1, help="Context length of each, in tokens.")] = 1024,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of the prefill step, and of a KV transfer.")] = 2048,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show where replicas land and which links they cross."""
    from sim.communication import Load, describe
    from sim.config import load_experiment

    found = describe(load_experiment(experiment, sets or []), Load(batch, context, prompt))
    if as_json:
        import json

        typer.echo(json.dumps(found, indent=2))
        return
    _print(_replicas(found))
    for step in found["steps"]:
        _print_step(step)
    for transfer in found["transfers"]:
        _print(_transfer(transfer))
        typer.echo(_slow(transfer["slowest"]))
    for note in found["notes"]:
        typer.echo(f"note: {note}")


def _replicas(found: dict[str, Any]) -> Table:
    table = _table("Replicas", "replica", "node", "rack", "stage", "GPUs")
    for replica in found["replicas"]:
        for stage in replica["stages"]:
            for node in stage["nodes"]:
                gpus = ", ".join(str(gpu) for gpu in node["gpus"])
                name = f"{node['node']} ({node['kind']})"
                table.add_row(replica["name"], name, str(node["rack"]), str(stage["stage"]), gpus)
    return table


def _print_step(step: dict[str, Any]) -> None:
    what = f"{step['replicas']}: {step['step']}, {step['seconds'] * 1e3:.3f} ms"
    if not step["hops"]:
        typer.echo(f"{what}\nnothing is sent between GPUs, or the cost model does not time it by itself")
        return
    _print(_messages(step, what))
    for hop in step["hops"]:
        typer.echo(f"{hop['message'].replace('_', ' ')}, one GPU to another: {' > '.join(hop['path'])}")
    share = sum(hop["seconds"] for hop in step["hops"]) / step["seconds"]
    typer.echo(f"communication {share:.1%} of the step; {_slow(step['slowest'])}")


def _messages(step: dict[str, Any], title: str) -> Table:
    table = _table(title, "message", "link", "times", "MB each", "ms a step", "share")
    for hop in step["hops"]:
        table.add_row(
            hop["message"].replace("_", " "),
            ".".join(hop["link"].split(".")[-2:-1]) or hop["link"],
            str(hop["count"]),
            f"{hop['num_bytes'] / 1e6:.4g}",
            f"{hop['seconds'] * 1e3:.3f}",
            f"{hop['seconds'] / step['seconds']:.1%}",
        )
    return table


def _transfer(transfer: dict[str, Any]) -> Table:
    size = f"{transfer['num_bytes'] / 1e6:.4g} MB in {transfer['seconds'] * 1e3:.3f} ms alone"
    more = f" (and {transfer['num_pairs'] - 1} pairs alike)" if transfer["num_pairs"] > 1 else ""
    ends = f"{transfer['source']} to {transfer['destination']}{more}"
    table = _table(f"KV transfer {ends}: {size}", "link", "links", "GB/s", "MB each", "ms")
    for hop in transfer["hops"]:
        speed, size = hop["bytes_per_second"] / 1e9, hop["num_bytes"] / 1e6
        table.add_row(hop["link"], str(hop["count"]), f"{speed:.4g}", f"{size:.4g}", f"{hop['seconds'] * 1e3:.3f}")
    return table


def _slow(slowest: dict[str, Any]) -> str:
    one, together = slowest["bytes_per_second"], slowest.get("bytes_per_second_together")
    others = f", {together / 1e9:.4g} GB/s with those beside it" if together and together > one else ""
    return f"slow link: {slowest['link']}, {one / 1e9:.4g} GB/s{others}"


def _table(title: str, *headers: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", min_width=min(len(title), 78))
    for header in headers:
        left = header in ("replica", "node", "message", "link", "GPUs")
        table.add_column(header, justify="left" if left else "right")
    return table


def _print(table: Table) -> None:
    from rich.console import Console

    Console().print(table)
