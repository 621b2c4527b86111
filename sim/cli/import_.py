"""`servesim import`: the serve command of a real engine as an experiment."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sim.errors import InputError


def command(
    engine: Annotated[str, typer.Argument(help="vllm, sglang, trtllm or llama-server.")],
    text: Annotated[str, typer.Argument(help='The command, in quotes: "vllm serve ...".', metavar="COMMAND")],
    gpu: Annotated[str, typer.Option(help="The GPU, which no flag names (servesim profiles list).")] = "h100-sxm",
    model: Annotated[
        str | None, typer.Option(help="Model in place of the command's: a name, or a Hugging Face config.json.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the experiment here instead of printing it.")
    ] = None,
) -> None:
    """Turn the serve flags of a real engine into an experiment, with a comment at everything taken or left out."""
    from sim.imports.experiment import import_command
    from sim.output import write_text

    found = import_command(engine, text, gpu, model)
    for warning in found.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if output is None:
        print(found.text, end="")
        return
    try:
        write_text(output, found.text)
    except OSError as error:
        raise InputError(f"{output}: cannot be written ({error.strerror})") from None
    print(f"wrote {output}; next: servesim run {output}", file=sys.stderr)
