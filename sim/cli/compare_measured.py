"""`servesim compare-measured`: a simulated run against the result file of a load generator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sim.cli.text import NOTHING, seconds, significant


def command(
    directory: Annotated[Path, typer.Argument(help="The output directory of a run.", metavar="RUN_DIR")],
    result: Annotated[
        Path, typer.Argument(help="JSON of vllm bench serve, guidellm, aiperf or inference-perf.", metavar="RESULT")
    ],
    benchmark: Annotated[
        str | None, typer.Option(help="Which one, from 0, of a guidellm report with several.", metavar="N")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Hold a simulated run against a measured one: latencies and throughputs with signed errors."""
    from sim.measurements.results import against, read_result, read_summary

    summary, measured = read_summary(directory), read_result(result, benchmark)
    rows = against(summary, measured)
    if as_json:
        from sim.output import json_text

        table = [{"metric": r.metric, "simulated": r.simulated, "measured": r.measured, "error": r.error} for r in rows]
        print(json_text({"tool": measured.tool, "metrics": table, "notes": measured.notes}), end="")
        return
    from sim.study.text import aligned

    head = ["metric", "simulated", f"measured ({measured.tool})", "error"]
    cells = [[r.metric, _shown(r.metric, r.simulated), _shown(r.metric, r.measured), _error(r.error)] for r in rows]
    print("\n".join(aligned([head, *cells], left=(0,))))
    for note in measured.notes:
        print(f"note  {note}")


def _shown(metric: str, value: float | None) -> str:
    return f"{significant(value)}/s" if "throughput" in metric and value is not None else seconds(value)


def _error(error: float | None) -> str:
    return NOTHING if error is None else f"{error:+.1%}".replace("-0.0%", "+0.0%")
