"""`servesim`: finds the command, imports only its module, and turns errors on purpose into messages and exit codes.

Exit codes: 0 done; 1 the run failed or an expectation does not hold; 2 what was given cannot be used; 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated

import typer

from sim.errors import ServesimError

# Name of a command, which is the name of its module in sim.cli: `app` there is a group, `command` one command.
COMMANDS = {
    "run": "Run one experiment and write its results.",
    "sweep": "Run a study: a grid or a sample of experiments, in parallel, resumable.",
    "compare": "Compare experiments under the same random numbers.",
    "plan": "Find the cheapest deployment that meets the SLOs.",
    "compare-measured": "Hold a run against the result file of a load generator.",
    "export": "Write a run in the formats of load generators and monitoring.",
    "report": "Write the HTML page of a finished run.",
    "trace": "Describe, check, convert and synthesize traces.",
    "calibrate": "Measure step times, fit a hardware profile, show its error.",
    "validate": "Hold predictions against measured servers and kernels.",
    "policies": "List, show and check policies.",
    "profiles": "List and show GPUs, nodes and links.",
    "models": "List, show and import models.",
    "topology": "Show where replicas land and which links they cross.",
    "import": "Turn the serve flags of a real engine into an experiment.",
    "schema": "Print the JSON schema of a file, for editors.",
    "init": "Write a starter experiment, study and plan with comments.",
}
INTERRUPTED = 130
RESUMABLE = ("sweep", "compare", "plan")  # keep the runs that are finished


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the console script; leaves by `SystemExit`."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        build_app(given or _being_completed())(args=given, prog_name="servesim")
    except ServesimError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        raise SystemExit(_interrupted(given)) from None
    except SystemExit as leaving:
        if leaving.code == INTERRUPTED:
            _interrupted(given)
        raise


def build_app(arguments: Sequence[str]) -> typer.Typer:
    """The application with the one command that `arguments` name loaded; the others are known by their help only."""
    app = typer.Typer(
        name="servesim",
        help="Discrete-event simulator of LLM serving clusters.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_root)
    wanted = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name, summary in COMMANDS.items():
        if find_spec(module_of(name)) is not None:
            _mount(app, name, summary, load=name == wanted)
    return app


def _being_completed() -> list[str]:
    """The words of a command line that a shell wants completed, in the variables of typer's completion scripts."""
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    return line.split()[1:]


def module_of(command: str) -> str:
    """Where a command lives: `sim.cli.NAME`, with underscores (`import_` for a keyword)."""
    return f"sim.cli.{command}_" if command == "import" else f"sim.cli.{command.replace('-', '_')}"


def _mount(app: typer.Typer, name: str, summary: str, load: bool) -> None:
    if not load:
        app.command(name, help=summary)(_not_loaded)
        return
    module = import_module(module_of(name))
    if hasattr(module, "app"):
        app.add_typer(module.app, name=name, help=summary)
    else:
        app.command(name)(module.command)


def _not_loaded() -> None:
    raise AssertionError("a command that was not loaded was called")


def _version(wanted: bool) -> None:
    if wanted:
        from sim import __version__

        print(f"servesim {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Root of the command line."""


def _interrupted(arguments: Sequence[str]) -> int:
    resumable = any(argument in RESUMABLE for argument in arguments[:1])
    how = "add --resume to go on where it stopped" if resumable else "run the same command to start again"
    print(f"interrupted: results of finished runs are intact, nothing half-written was left; {how}", file=sys.stderr)
    return INTERRUPTED
