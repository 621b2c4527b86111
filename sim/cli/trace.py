"""`servesim trace`: describe, check and convert traces of every known format; draw requests like theirs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.cli.text import count, seconds, share, significant
from sim.errors import InputError, nearest

if TYPE_CHECKING:
    from sim.workload.base import Workload
    from sim.workload.config import WorkloadConfig
    from sim.workload.synthesize import Statistics
    from sim.workload.trace import Trace

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

PathArgument = Annotated[Path, typer.Argument(help="A trace, gzipped or not (formats: traces/README.md).")]
FormatOption = Annotated[str, typer.Option("--format", help="The trace's format; auto: by its content.")]
LimitOption = Annotated[int | None, typer.Option("--limit", help="Only the first N requests.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other key of a trace in `workload:`, such as spread_ties=1."),
]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of what is drawn.")]
ToOption = Annotated[str | None, typer.Option("--to", help="csv, parquet, mooncake or azure; default: by OUT's name.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("describe")
def describe_trace(
    path: PathArgument,
    format: FormatOption = "auto",
    limit: LimitOption = None,
    set_: SetOption = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Say what a trace holds: rates, burstiness, lengths, ideal prefix hits, and what to beware of."""
    from sim.workload.describe import describe

    trace = _load(path, format, limit, set_, seed)
    described = describe(trace.workload, trace)
    print(json.dumps(described, indent=2) if as_json else _as_text(described))


@app.command("check")
def check_trace(
    path: PathArgument,
    format: FormatOption = "auto",
    limit: LimitOption = None,
    set_: SetOption = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Read every row; the first that does not fit is named with its line, and the exit code is 2."""
    from sim.workload.describe import describe

    trace = _load(path, format, limit, set_, seed)
    described = describe(trace.workload, trace)
    keys = ("format", "num_rows", "num_failed_rows", "num_requests", "notes", "warnings")
    result = {"ok": True, "path": str(path)} | {key: described[key] for key in keys}
    if as_json:
        print(json.dumps(result, indent=2))
        return
    print(f"{path}: ok")
    _print_remarks(described)


@app.command("convert")
def convert_trace(
    path: PathArgument,
    out: Annotated[Path, typer.Argument(help="The file to write; gzipped where its name ends in .gz.")],
    to: ToOption = None,
    format: FormatOption = "auto",
    limit: LimitOption = None,
    set_: SetOption = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Write a trace in another format, after the options have been applied."""
    trace = _load(path, format, limit, set_, seed)
    if not trace.has_times and (to or "") in ("mooncake", "azure"):
        raise InputError(f"{path}: has no arrival times, which {to} needs; convert it to csv or parquet")
    _report(_write(trace.workload, out, to), as_json)


@app.command("synthesize")
def synthesize_trace(
    source: Annotated[Path, typer.Argument(help="A trace, or a JSON file of statistics fitted to one.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The trace to write.")] = None,
    statistics: Annotated[Path | None, typer.Option("--statistics", help="Write the fitted statistics here.")] = None,
    num_requests: Annotated[int | None, typer.Option("--num-requests", "-n", help="Default: as the trace has.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="What the statistics call their source.")] = None,
    to: ToOption = None,
    format: FormatOption = "auto",
    limit: LimitOption = None,
    set_: SetOption = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Fit statistics to a trace and draw requests like it: publishable where the trace is not."""
    if out is None and statistics is None:
        raise InputError("give --out for a trace, --statistics for the fitted statistics, or both")
    if num_requests is not None and num_requests < 1:
        raise InputError(f"--num-requests: expected at least 1, got {num_requests}")
    fitted = _statistics(source, name, format, limit, set_, seed)
    result: dict[str, Any] = {"source": fitted.source}
    if statistics is not None:
        _write_statistics(fitted, statistics)
        result["statistics"] = str(statistics)
    if out is not None:
        result |= _write(_drawn(fitted, num_requests or fitted.num_requests, seed), out, to)
    _report(result, as_json)


def _load(path: Path, format: str, limit: int | None, settings: list[str] | None, seed: int) -> Trace:
    from sim.seeds import Seeds
    from sim.workload.trace import load_trace

    return load_trace(path, _config(path, format, limit, settings), Seeds(seed))


def _config(path: Path, format: str, limit: int | None, settings: list[str] | None) -> WorkloadConfig:
    """The `workload:` mapping that the options stand for."""
    from pydantic import ValidationError

    from sim.workload.config import WorkloadConfig

    mapping: dict[str, Any] = {"trace": str(path), "format": format}
    if limit is not None:
        mapping["limit"] = limit
    for setting in settings or []:
        key, value = _setting(setting, list(WorkloadConfig.model_fields))
        mapping[key] = value
    try:
        return WorkloadConfig.model_validate(mapping)
    except ValidationError as error:
        raise InputError("\n".join(_problem(each) for each in error.errors())) from None


def _setting(text: str, known: list[str]) -> tuple[str, Any]:
    import yaml

    key, equals, value = text.partition("=")
    if not equals or key not in known:
        raise InputError(f"--set {text}: expected KEY=VALUE with a key of `workload:`{nearest(key, known)}")
    try:
        return key, yaml.safe_load(value)
    except yaml.YAMLError:
        raise InputError(f"--set {text}: the value is not YAML") from None


def _problem(error: Any) -> str:
    """One line of a validation error; `loc` is the key path within `workload:`."""
    key = ".".join(str(part) for part in error["loc"])
    message = error["msg"].removeprefix("Value error, ")
    return f"workload.{key}: {message} (got {error['input']!r})" if key else f"workload: {message}"


def _statistics(
    source: Path, name: str | None, format: str, limit: int | None, settings: list[str] | None, seed: int
) -> Statistics:
    from sim.workload.synthesize import fit, load_statistics

    if _is_statistics(source):
        return load_statistics(source)
    trace = _load(source, format, limit, settings, seed)
    if not trace.has_times:
        raise InputError(f"{source}: has no arrival times to fit ({trace.format})")
    return fit(trace.workload, name)


def _is_statistics(path: Path) -> bool:
    """Whether a file begins like one of ours, compressed or not is no question: ours are plain JSON."""
    try:
        with path.open("rb") as file:
            return b'"servesim trace statistics"' in file.read(4096)
    except OSError:
        return False


def _drawn(statistics: Statistics, num_requests: int, seed: int) -> Workload:
    from sim.seeds import Seeds
    from sim.workload.synthesize import synthesize

    return synthesize(statistics, num_requests, Seeds(seed))


def _write_statistics(statistics: Statistics, path: Path) -> None:
    from sim.workload.convert import replacing

    with replacing(path) as temporary:
        temporary.write_text(statistics.model_dump_json(exclude_none=True) + "\n", encoding="utf-8")


def _write(workload: Workload, out: Path, to: str | None) -> dict[str, Any]:
    from sim.workload.convert import format_of, write_workload

    format = to or format_of(out)
    lost = write_workload(workload, out, format)
    return {"path": str(out), "format": format, "num_requests": len(workload), "lost": lost}


def _report(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(result, indent=2))
        return
    if "statistics" in result:
        print(f"{result['statistics']}: statistics of {result['source']}")
    if "path" in result:
        lost = f"; left out, the format has no place for it: {', '.join(result['lost'])}" if result["lost"] else ""
        print(f"{result['path']}: {count(result['num_requests'])} requests as {result['format']}{lost}")


def _as_text(described: dict[str, Any]) -> str:
    lines = [f"{described['name']}: {count(described['num_requests'])} requests", ""]
    lines += _length_lines(described)
    if described["arrivals"] is not None:
        lines += ["", *_arrival_lines(described["arrivals"])]
    if described["prefix"] is not None:
        lines += ["", *_prefix_lines(described["prefix"])]
    return "\n".join([*lines, "", *_remarks(described)])


def _length_lines(described: dict[str, Any]) -> list[str]:
    lines = [f"{'tokens':<10}" + "".join(f"{head:>12}" for head in ("total", "mean", "p50", "p90", "p99", "max"))]
    for name in ("prompt", "output"):
        spread = described[f"{name}_tokens"]
        cells = [described[f"num_{name}_tokens"], *(round(spread[key]) for key in ("mean", "p50", "p90", "p99", "max"))]
        lines.append(f"{name:<10}" + "".join(f"{count(cell):>12}" for cell in cells))
    return lines


def _arrival_lines(arrivals: dict[str, Any]) -> list[str]:
    lines = [
        f"duration   {seconds(arrivals['duration'])}",
        f"rate       {significant(arrivals['rate'])} requests per second",
    ]
    if arrivals["max_window_rate"] is not None:
        low, high = significant(arrivals["min_window_rate"]), significant(arrivals["max_window_rate"])
        lines.append(f"           {low} to {high} in windows of {arrivals['window']:.0f} s")
    local = arrivals["gap_cv_in_windows"]
    within = "" if local is None else f", {significant(local)} within windows"
    lines.append(f"gaps       CV {significant(arrivals['gap_cv'])}{within} (Poisson: 1)")
    return lines


def _prefix_lines(prefix: dict[str, Any]) -> list[str]:
    by_block, by_token = share(prefix["block_hit_rate"]), share(prefix["token_hit_rate"])
    return [
        f"prefixes   {count(prefix['num_blocks'])} blocks of {prefix['hash_block_size']} tokens, "
        f"{count(prefix['num_unique_blocks'])} different",
        f"           ideal hit rate {by_block} by block, {by_token} by token",
        f"           {share(prefix['share_of_prompts_with_a_hit'])} of the prompts hit something, "
        f"{share(prefix['share_of_repeated_prompts'])} repeat an earlier one",
    ]


def _remarks(described: dict[str, Any]) -> list[str]:
    notes = [f"note: {text}" for text in described["notes"]]
    return notes + [f"warning: {text}" for text in described["warnings"]]


def _print_remarks(described: dict[str, Any]) -> None:
    for line in _remarks(described):
        print(f"  {line}")
