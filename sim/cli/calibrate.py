"""`servesim calibrate`: fit a GPU's kernel formulas to tables of measured kernels, and show the error of a profile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

app = typer.Typer(
    help="Fit hardware profiles to measured kernels, and show their errors on shapes held out of the fit."
)
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

# Largest median error on held-out shapes that `fit` calls good, by operation and data type.
LIMITS = {
    ("gemm", "bf16"): 0.06,
    ("gemm", "fp8"): 0.12,
    ("decode_attention", None): 0.08,
    ("prefill_attention", None): 0.10,
    ("moe", None): 0.10,
    ("all_reduce", None): 0.10,
}


@app.command()
def fit(
    tables: Annotated[
        Path, typer.Argument(help="Folder of kernel tables: gemm.csv(.gz), attention_decode.csv(.gz), ...")
    ],
    gpu: Annotated[str, typer.Option("--gpu", help="GPU: catalogue name or alias.")],
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Profile to write; default: GPU.yaml here.")] = None,
    date: Annotated[str | None, typer.Option(help="Date to note in the profile; default: today.")] = None,
    other_backends: Annotated[bool, typer.Option(help="Also score sglang and trtllm rows (not stored).")] = True,
    as_json: Json = False,
) -> None:
    """Fit one GPU and write its profile; every operation with its median error on held-out shapes."""
    import datetime

    from sim.calibration.profile import Tables, fit_profile, write_profile
    from sim.hardware import load_gpu

    name = load_gpu(gpu).name
    target = out or Path(f"{name}.yaml")
    stamp = date or datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    values = fit_profile(Tables(tables), name, stamp, other_backends)
    write_profile(values, target)
    _show(values["errors"], values["notes"], as_json)
    typer.echo(f"wrote {target}; use it with `cost_model: {{kind: fitted, profile: {target}}}`", err=True)


@app.command()
def check(
    profile: Annotated[str, typer.Argument(help="Fitted profile: GPU name or path.")], as_json: Json = False
) -> None:
    """The errors that a profile was written with, against the limits of a good fit."""
    from sim.cost.profile import load_fitted

    loaded = load_fitted(profile)
    _show(loaded.errors, loaded.notes, as_json)


def limit_of(operation: str, dtype: str) -> float | None:
    """The limit for an operation and data type; None where there is none."""
    return LIMITS.get((operation, dtype), LIMITS.get((operation, None)))


def _show(errors: Sequence[Any], notes: Sequence[str], as_json: bool) -> None:
    if as_json:
        rows = [{**row, "limit": limit_of(row["operation"], row["dtype"])} for row in errors]
        typer.echo(json.dumps({"errors": rows, "notes": list(notes)}, indent=2))
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    title = "error on held-out shapes: |predicted / measured - 1|"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for header in ("operation", "backend", "shapes", "median", "p90", "bias", "limit"):
        left = header in ("operation", "backend")
        table.add_column(header, justify="left" if left else "right", no_wrap=True)
    for row in errors:
        table.add_row(*_row(row))
    Console().print(table)
    for note in notes:
        typer.echo(f"note: {note}")


def _row(row: dict[str, Any]) -> list[str]:
    limit = limit_of(row["operation"], row["dtype"])
    verdict = "-" if limit is None else f"{limit:.0%} {'ok' if row['median'] <= limit else 'over'}"
    shares = [f"{row[key]:.1%}" for key in ("median", "p90", "bias")]
    return [f"{row['operation']} {row['dtype']}", row["backend"], str(row["num_keys"]), *shares, verdict]
