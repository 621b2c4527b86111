"""`servesim validate`: predictions against measured servers, as one report of tables."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sim.validation.case import Case
    from sim.validation.constants import ServerFit
    from sim.validation.replay import Prediction
    from sim.validation.report import Validation

DEFAULT_DATA = Path("..") / "shared" / "data"


def command(
    data: Annotated[
        Path, typer.Option(help="Folder of measured runs: e2e/ in it, or its content.", metavar="DIR")
    ] = DEFAULT_DATA,
    runs: Annotated[
        str, typer.Option(help="Only runs whose dataset/name contains or matches this: 'sim2real/*8x22b*'.")
    ] = "*",
    fast: Annotated[bool, typer.Option("--fast", help="A few runs of each data set, one seed each.")] = False,
    fit: Annotated[
        bool, typer.Option("--fit", help="Fit the engine's constants on the clean runs; leave-one-model-out beside.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the values as JSON instead of tables.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write validation.json, tables.md and figures here.", metavar="DIR")
    ] = None,
) -> None:
    """Hold predictions against measured servers: errors of TTFT, TPOT, E2E and throughput, peers' errors beside."""
    from sim.output import json_text

    validation = _validate(data, runs, fast, fit)
    if out is not None:
        _write(validation, out)
    print(json_text(validation.values()) if as_json else "\n".join(validation.lines()), end="")


def _validate(data: Path, runs: str, fast: bool, fit: bool) -> Validation:
    from sim.validation import suite
    from sim.validation.blocks import block_counts
    from sim.validation.report import Validation

    found = suite.collect(data, runs)
    cases = suite.fast_part(found.cases) if fast else found.cases
    fitted, left_model_out = _fitted(cases) if fit else (None, [])
    constants = None if fitted is None else fitted.values
    predictions, failed = suite.run(cases, single_seed=fast, constants=constants, done=_progress(len(cases)))
    return Validation(predictions, found.left_out + failed, block_counts(found.cases), fitted, left_model_out)


def _fitted(cases: list[Case]) -> tuple[ServerFit, list[Prediction]]:
    from sim.errors import InputError
    from sim.validation.blis import CLEAN
    from sim.validation.constants import fit_server_constants, leave_one_model_out

    clean = [case for case in cases if CLEAN in case.groups]
    if not clean:
        raise InputError("--fit needs the clean runs of blis_training among the chosen runs")
    fitted = fit_server_constants(clean, _say)
    return fitted, leave_one_model_out(clean, fitted)


def _write(validation: Validation, folder: Path) -> None:
    from sim.errors import InputError
    from sim.output import write_json, write_text
    from sim.validation.figures import write_figures

    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "validation.json", validation.values())
        write_text(folder / "tables.md", "\n".join(validation.lines()))
        write_figures(validation.predictions, folder)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror})") from None


def _say(text: str) -> None:
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


def _progress(num: int) -> Callable[[int, Prediction], None]:
    def done(index: int, item: Prediction) -> None:
        _say(f"{index + 1}/{num} {item.case.key}")

    return done
