"""`servesim calibrate`: measure a GPU or the CPU, fit kernel formulas to measured tables, check a profile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sim.calibration.check import Verdict

app = typer.Typer(
    help="Measure a GPU, fit hardware profiles to measured kernels, show their errors on shapes held out of the fit."
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
def measure(
    out: Annotated[Path, typer.Argument(help="Folder for everything that is measured; must not have a measurement.")],
    backend: Annotated[
        str, typer.Option(help="cuda: this machine's GPU; cpu: a NumPy transformer, measured, simulated and served.")
    ] = "cuda",
    device: Annotated[int, typer.Option(min=0, help="Number of the GPU.")] = 0,
    gpu: Annotated[str | None, typer.Option("--gpu", help="Catalogue name; default: by the driver's name.")] = None,
    seconds: Annotated[
        float, typer.Option(min=10, help="When to stop repeating passes; the first pass is always whole.")
    ] = 180.0,
    seed: Annotated[int, typer.Option(help="Seed of the cpu backend's workload.")] = 0,
) -> None:
    """Measure this machine with servesim's own kernels, fit a profile and check it; about four minutes on one GPU.

    The cuda backend needs a GPU of compute capability 8.0 or later, its driver, and `pip install 'servesim[cuda]'`
    (cuda-bindings and NVRTC; no CUDA toolkit, no torch). Matrix products are those of cuBLAS where the machine has it,
    else of an own kernel. Every kernel is compared with float64 before it is timed. Raw samples are written first:
    OUT/raw.csv, then OUT/tables/, OUT/profile.yaml, figures. Clocks are never changed.

    Not measured: 8-bit and 4-bit types, experts, all-reduce and transfers between GPUs, what an engine adds to its
    kernels. Own attention kernels are slower than those of serving engines.
    """
    from sim.errors import unknown_name

    if backend == "cpu":
        _measure_cpu(out, seed)
        return
    if backend != "cuda":
        raise unknown_name("backend", backend, ("cuda", "cpu"))
    from sim.calibration.measure.flow import measure_and_fit

    profile, found = measure_and_fit(out, device, gpu, seconds, _note)
    _show(profile.errors, profile.notes, as_json=False)
    _conclude(found, as_json=False)


def _measure_cpu(out: Path, seed: int) -> None:
    _single_thread()
    from sim.calibration.cpu.pipeline import MAX_NOISE, Plan, run_pipeline
    from sim.calibration.measure.flow import refuse_used

    refuse_used(out)
    found = run_pipeline(out, Plan(seed=seed), typer.echo)
    if not found.is_conclusive:
        typer.echo(f"warning: the machine is too noisy to conclude anything (p90/p10 of a probe above {MAX_NOISE:g})")
    typer.echo(f"wrote {out / 'cpu.yaml'}, gpu.yaml, model.yaml, experiment.yaml, raw.csv, comparison.csv", err=True)


def _single_thread() -> None:
    """Hold NumPy's matrix library to one thread; it reads these when it is loaded, which has not happened yet."""
    import os

    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"


@app.command()
def check(
    profile: Annotated[str, typer.Argument(help="Fitted profile: GPU name or path.")],
    measured: Annotated[
        Path | None, typer.Option(help="Hold the profile against a measurement made by `calibrate measure`.")
    ] = None,
    remeasure: Annotated[
        Path | None, typer.Option(help="Measure a few points on this machine's GPU into this folder, and check them.")
    ] = None,
    device: Annotated[int, typer.Option(min=0, help="Number of the GPU.")] = 0,
    gpu: Annotated[str | None, typer.Option("--gpu", help="Catalogue name; default: by the driver's name.")] = None,
    as_json: Json = False,
) -> None:
    """Whether a profile holds: against measured points, or (without any) the errors that it was written with.

    Exit code 1 when measured points say that it does not hold.
    """
    from sim.cost.profile import load_fitted
    from sim.errors import InputError

    loaded = load_fitted(profile)
    if measured is not None and remeasure is not None:
        raise InputError("--measured and --remeasure exclude each other: give a folder that exists, or one to fill")
    if measured is not None:
        from sim.calibration.check import check_measurement

        _conclude(check_measurement(loaded, measured), as_json)
    elif remeasure is not None:
        from sim.calibration.measure import flow

        _conclude(flow.remeasure(loaded, remeasure, device, gpu, _note), as_json)
    else:
        _show(loaded.errors, loaded.notes, as_json)


def _conclude(found: Sequence[Verdict], as_json: bool) -> None:
    """Print verdicts; `RunError` when one of them is that the profile does not hold."""
    from sim.errors import RunError

    if as_json:
        typer.echo(json.dumps([{**verdict._asdict(), "holds": verdict.holds} for verdict in found], indent=2))
    else:
        for verdict in found:
            typer.echo(
                f"{verdict.table}: {verdict.num_points} points, median error {verdict.median_error:.1%} (at most "
                f"{verdict.limit_error:.0%}), p90 {verdict.p90_error:.1%}, bias {verdict.bias:+.1%} (at most "
                f"{verdict.limit_bias:.0%}): {'holds' if verdict.holds else 'DOES NOT HOLD'}"
            )
    broken = [verdict.table for verdict in found if not verdict.holds]
    if broken:
        raise RunError(f"the profile does not hold for {', '.join(broken)}; measure and fit anew")


def _note(text: str) -> None:
    typer.echo(text, err=True)


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
