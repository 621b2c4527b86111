"""`servesim compare`: experiments under the same random numbers, with a verdict for every metric."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.cli.text import NOTHING, seconds, share, significant
from sim.errors import InputError
from sim.study.text import aligned

if TYPE_CHECKING:
    from sim.study.compare import Comparison, Pair
    from sim.study.contrast import Contrast

_IN_SECONDS = ("ttft", "tpot", "itl", "itl_request_mean", "e2e", "queueing_delay", "duration")


def command(
    experiments: Annotated[
        list[Path], typer.Argument(help="Two or more; the first is the baseline.", metavar="A.yaml B.yaml [...]")
    ],
    replications: Annotated[int, typer.Option(help="Seeds, the same for all experiments.", min=1)] = 5,
    sets: Annotated[list[str] | None, typer.Option("--set", help="Change a value of all experiments.")] = None,
    seed: Annotated[int | None, typer.Option(help="First seed; default: that of the first file.", min=0)] = None,
    metric: Annotated[
        list[str] | None, typer.Option("--metric", help="A name of summary.json such as ttft.p99; many times.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="Of the intervals and verdicts.")] = 0.95,
    workers: Annotated[int | None, typer.Option(help="Processes; default: one a core.", min=1)] = None,
    cluster: Annotated[
        str | None, typer.Option(help="Scheduler of a dask.distributed cluster, tcp://host:port.", metavar="ADDRESS")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Keep the runs that are there and do the rest.")] = False,
    out: Annotated[Path | None, typer.Option(help="Output directory; default out/A-vs-B.", metavar="DIR")] = None,
    report: Annotated[bool, typer.Option("--report", help="Write report.html into the output directory.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print compare.json instead of tables.")] = False,
) -> None:
    """Compare experiments under the same random numbers: paired differences with intervals and a verdict."""
    from sim.study.compare import CompareOptions, compare
    from sim.study.progress import study_progress
    from sim.study.sweep import Workers

    if not 0.5 <= confidence < 1:
        raise InputError(f"--confidence {confidence:g}: must lie in [0.5, 1)")
    options = CompareOptions(replications, confidence, tuple(metric) if metric else None, seed)
    with study_progress(shown=not quiet and not as_json and sys.stderr.isatty()) as progress:
        found = compare(experiments, out, sets or [], options, Workers(workers, cluster), resume, progress)
    if report:
        from sim.report import write_report

        write_report(found.directory)
    if as_json:
        from sim.output import json_text

        print(json_text(found.document), end="")
    elif not quiet:
        _print(found)


def _print(found: Comparison) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for pair in found.pairs:
        head, *lines = aligned(_table(pair, found.confidence), left=(0,))
        console.print(Text(f"{pair.candidate} against {pair.baseline}, {_size(found)}\n", style="bold"))
        console.print(Text(head, style="dim"))
        for line, contrast in zip(lines, pair.contrasts, strict=True):
            console.print(Text(line, style={"better": "green", "worse": "red"}.get(contrast.verdict, "")))
        console.print()
    for note in [*found.notes, *_remarks(found)]:
        console.print(Text.assemble(("note  ", "yellow"), note))
    console.print(Text(f"written to {found.directory}", style="dim"))


def _size(found: Comparison) -> str:
    first = found.entries[0].configs[0].seed
    if found.num_replications == 1:
        return f"batches of one run (seed {first})"
    return f"{found.num_replications} replications (seeds {first} to {first + found.num_replications - 1})"


def _table(pair: Pair, confidence: float) -> list[list[str]]:
    head = [
        "metric",
        pair.baseline,
        pair.candidate,
        "difference",
        f"{confidence:.0%} interval",
        "",
        "p",
        "verdict",
        "to settle",
    ]
    return [head, *(_cells(contrast) for contrast in pair.contrasts)]


def _cells(contrast: Contrast) -> list[str]:
    text = _format(contrast.metric)
    interval = "" if contrast.t is None else f"{_signed(contrast.t.low, text)} to {_signed(contrast.t.high, text)}"
    relative = "" if contrast.relative is None else f"{contrast.relative:+.1%}"
    p = "" if contrast.p_adjusted is None else f"{contrast.p_adjusted:.3f}"
    verdict = contrast.verdict if contrast.p_value is not None else "not tested"
    values = (text(contrast.baseline_value), text(contrast.candidate_value), _signed(contrast.difference, text))
    return [contrast.metric, *values, interval, relative, p, verdict, _to_settle(contrast)]


def _to_settle(contrast: Contrast) -> str:
    """How much more would tell; nothing where the verdict is clear or the difference too small to matter."""
    if contrast.p_value is None or contrast.verdict in ("better", "worse", "higher", "lower"):
        return ""
    if contrast.negligible:
        return "within 1 %"
    if contrast.to_settle is None:
        return "> 1,000,000"
    if contrast.method == "batches":
        return f"run {max(contrast.to_settle / contrast.num_values, 1.1):.1f} x as long"
    return f"{max(contrast.to_settle, contrast.num_values + 1):,} replications"


def _format(metric: str) -> Callable[[Any], str]:
    if metric.split(".")[0] in _IN_SECONDS:
        return seconds
    return share if metric in ("slo_attainment", "prefix_cache.hit_rate") else significant


def _signed(value: float, text: Callable[[Any], str]) -> str:
    shown = text(value)
    return shown if value <= 0 or shown == NOTHING else f"+{shown}"


def _remarks(found: Comparison) -> list[str]:
    by_note: dict[str, dict[str, None]] = {}
    for contrast in (c for pair in found.pairs for c in pair.contrasts if c.note):
        by_note.setdefault(str(contrast.note), {})[contrast.metric] = None
    remarks = [f"{', '.join(metrics)}: {note}" for note, metrics in by_note.items()]
    skipped = [f"not compared, null in a run: {', '.join(found.skipped)}"] if found.skipped else []
    return [*remarks, *skipped]
