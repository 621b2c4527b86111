"""`servesim plan`: the cheapest deployment that meets the SLO, what limits it, and why the others are not it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.cli.text import NOTHING, plural, seconds, share, significant
from sim.errors import RunError
from sim.study.text import aligned

if TYPE_CHECKING:
    from sim.study.plan import PlanOutcome

_MAX_LINES = 24
_REASON = 110  # characters of a reason in the table; plan.json has all


def command(
    plan: Annotated[Path, typer.Argument(help="The plan file.", metavar="PLAN.yaml")],
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="Change a value: slo.ttft=0.5. May be given many times.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; default: one a core.", min=1)] = None,
    cluster: Annotated[
        str | None, typer.Option(help="Scheduler of a dask.distributed cluster, tcp://host:port.", metavar="ADDRESS")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Keep the runs that are there and do the rest.")] = False,
    out: Annotated[Path | None, typer.Option(help="Output directory; default out/NAME.", metavar="DIR")] = None,
    report: Annotated[bool, typer.Option("--report", help="Write report.html into the output directory.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print plan.json instead of tables.")] = False,
) -> None:
    """Find the cheapest deployment that meets the SLOs."""
    from sim.study.plan import make_plan
    from sim.study.progress import search_progress
    from sim.study.sweep import Workers

    with search_progress(shown=not quiet and not as_json and sys.stderr.isatty()) as progress:
        outcome = make_plan(plan, out, Workers(workers, cluster), resume, progress, sets or [])
    if report:
        from sim.report import write_report

        write_report(outcome.directory)
    if as_json:
        from sim.output import json_text

        print(json_text(outcome.document), end="")
    elif not quiet:
        _print(outcome)
    if outcome.winner is None:
        raise RunError(f"no candidate meets the SLO; {outcome.directory / 'plan.json'} says why for each")


def _print(outcome: PlanOutcome) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    document = outcome.document
    if outcome.winner is not None:
        console.print(Text(f"{document['name']}: {_answer(outcome.winner)}\n", style="bold"))
        for name, text in _details(outcome.winner):
            console.print(Text.assemble((f"{name:<18}", "dim"), text))
        console.print()
    head, *lines = aligned(_table(document["candidates"]), left=(0, -1))
    console.print(Text(head, style="dim"))
    for line in lines:
        console.print(Text(line))
    rest = len(document["candidates"]) - _MAX_LINES
    if rest > 0:
        console.print(Text(f"... and {rest} more in candidates.parquet", style="dim"))
    console.print(Text(f"\n{plural(document['num_candidates'], 'candidate')}, {plural(document['num_runs'], 'run')}"))
    console.print(Text(f"written to {outcome.directory}", style="dim"))


def _answer(winner: Mapping[str, Any]) -> str:
    pool = winner["experiment"]["cluster"]["pools"][0]
    number = pool["tensor_parallel"] * pool["pipeline_parallel"] * pool["data_parallel"]
    gpu = _text(pool["gpu"])
    each = f"{number} {gpu}" if number > 1 else gpu
    replicas = f"{plural(winner['replicas'], 'replica')} of {_text(pool['model'])} on {each}"
    return f"{replicas}, {significant(winner['cost_per_hour'])} USD/h"


def _details(winner: Mapping[str, Any]) -> list[tuple[str, str]]:
    lines = [
        ("SLO attainment", share(winner["slo_attainment"])),
        ("TTFT, TPOT p99", f"{seconds(winner['ttft.p99'])}, {seconds(winner['tpot.p99'])}"),
        ("cost", _cost(winner)),
        ("limited by", winner["limiting_resource"].replace("_", " ")),
        ("headroom", _headroom(winner)),
        *_more(winner),
        ("one spare", f"{significant(winner['cost_per_hour_with_one_spare'])} USD/h with one replica more (N+1)"),
    ]
    if winner["fresh_seeds"] is not None:
        text = ", ".join(share(value) for value in winner["fresh_seeds"])
        lines.append(("other seeds", f"simulated afresh: {text} of requests within their targets, met"))
    return lines


def _more(winner: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Lines that only plans with the facts for them have."""
    lines = []
    if band := winner["error_band"]:
        least, most = band["replicas"]
        replicas = plural(most, "replica") if least == most else f"{least} to {plural(most, 'replica')}"
        cost = " to ".join(dict.fromkeys(map(significant, band["cost_per_hour"])))
        error = share(band["step_time_error"])
        lines.append(
            ("error band", f"{replicas}, {cost} USD/h with steps {error} faster or slower (p90 of the profile)")
        )
    if winner["margin_per_hour"] is not None:
        value, margin = (significant(winner[key]) for key in ("token_value_per_hour", "margin_per_hour"))
        cached = winner["cached_input_share"]
        note = "" if cached is None else f"; {share(cached)} of the input was cached"
        lines.append(("tokens are worth", f"{value} USD/h, {margin} above the cost{note}"))
    if winner["max_power_kw"] is not None:
        energy = winner["energy_kwh_per_million_output_tokens"]
        each = "" if energy is None else f", {significant(energy)} kWh per million output tokens"
        lines.append(("power", f"at most {significant(winner['max_power_kw'])} kW (rated power){each}"))
    return lines


def _cost(winner: Mapping[str, Any]) -> str:
    return (
        f"{significant(winner['cost_per_million_tokens'])} USD per million tokens "
        f"({significant(winner['cost_per_million_output_tokens'])} per million of output), "
        f"{significant(winner['cost_per_request'])} USD a request"
    )


def _headroom(winner: Mapping[str, Any]) -> str:
    if winner["headroom"] is None:
        return "unknown: the arrivals have no rate to raise"
    text = f"meets the SLO up to {winner['headroom']:+.0%} load"
    error = winner["step_time_error"]
    if error is None:
        return f"{text}; step times are not calibrated for this GPU, so take the answer with care"
    enough = "more" if winner["headroom"] > error["median"] else "less"
    return f"{text}, {enough} than the median error of step times ({error['median']:.0%}; p90 {error['p90']:.0%})"


def _table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """The winner, then by cost; infeasible ones last."""
    fixed = {"status", "replicas"}
    keys = [key for key in rows[0] if key not in fixed][: list(rows[0]).index("status")]
    varied = [key for key in keys if len({str(row[key]) for row in rows}) > 1] or keys[:1]
    order = {"winner": 0, "feasible": 1, "dearer": 2, "not met": 2, "infeasible": 3}
    ordered = sorted(rows, key=lambda row: (order[row["status"]], row["cost_per_hour_at_least"] or 0.0))
    head = [
        *(key.split(".")[-1] for key in varied),
        "status",
        "replicas",
        "USD/h",
        "SLO",
        "TTFT p99",
        "TPOT p99",
        "why",
    ]
    return [head, *([*(_text(row[key]) for key in varied), *_cells(row)] for row in ordered[:_MAX_LINES])]


def _cells(row: Mapping[str, Any]) -> list[str]:
    reason = row["reason"] or ""
    if row["nearest_change"]:
        reason += f" ({row['nearest_change']})"
    exact = row["replicas"] is not None
    replicas = str(row["replicas"]) if exact else f">= {row['at_least_replicas']}"
    cost = significant(row["cost_per_hour"]) if exact else f">= {significant(row['cost_per_hour_at_least'])}"
    if row["status"] == "infeasible":
        replicas, cost = NOTHING, NOTHING
    values = (share(row["slo_attainment"]), seconds(row["ttft.p99"]), seconds(row["tpot.p99"]))
    return [row["status"], replicas, cost, *values, "" if not reason else _short(reason)]


def _short(text: str) -> str:
    return text if len(text) <= _REASON else f"{text[: _REASON - 3]}..."


def _text(value: Any) -> str:
    return Path(value).stem if isinstance(value, str) and value.startswith("/") else str(value)
