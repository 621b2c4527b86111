"""The page of a sweep: what was varied, which expectations hold, the knee, figures, and the table of points."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sim.report import knee as rules
from sim.report import sweep_charts, sweep_maps
from sim.report.chart import Chart
from sim.report.document import Cell, Document, Section, Table, Tile
from sim.report.knee import Knee
from sim.report.sweep_charts import DEFAULT_TARGET, find_knees, load_name
from sim.report.sweep_data import METRICS, SweepData, SweepPoint, load_sweep, short
from sim.report.text import NONE, metric_title, metric_value, percent, yaml_text

_MOST_POINTS = 1000  # in the table
_MOST_WARNINGS = 8
_MOST_SHOWN = 4  # points named where an expectation does not hold
DEFINITIONS = """\
A point is one combination of the varied values; its runs differ in their seed only, and all points have the same seeds.
Cells are means over the runs of a point, with the 95 % interval of the mean (Student's t, corrected for skewness) where
there are several. Percentiles are of the requests of one run, then averaged over runs. Tokens per user are 1/TPOT p50,
tokens per GPU the output tokens a second divided by the GPUs of all replicas. The sweep's file says everything that was
asked for; the folder of each run has its own summary and tables, and its own report by `servesim report`."""


def document(directory: Path) -> Document:
    """The page of the sweep in `directory`."""
    data = load_sweep(directory)
    knees = find_knees(data)
    answer, tone = answer_of(data, knees)
    config = data.study.config
    return Document(
        kind="sweep",
        name=config.name,
        what=_what(data),
        answer=answer,
        tone=tone,
        tiles=_tiles(data),
        warnings=_warnings(data),
        sections=_sections(data, knees),
        facts=_facts(data),
        definitions=DEFINITIONS,
        source=("The study (study.yaml)", yaml_text(data.study.file.values)),
        footer=_footer(data),
    )


def answer_of(data: SweepData, knees: Sequence[Knee]) -> tuple[str, str]:
    """The sentence on top and its tone: what holds, and how much load."""
    missed = [text for text, where in data.verdicts if where]
    tone = "plain" if not data.verdicts else "bad" if missed else "good"
    parts = []
    if data.verdicts:
        held = len(data.verdicts) - len(missed)
        parts.append(f"{held} of {len(data.verdicts)} expectations hold")
    best = _most_load(data, knees)
    if best:
        parts.append(best)
    failed = sum(1 for point in data.points if point.failed)
    if failed:
        parts.append(f"{failed} of {len(data.points)} points failed")
    return "; ".join(parts) or f"{len(data.points)} points were simulated", tone


def _most_load(data: SweepData, knees: Sequence[Knee]) -> str:
    if data.load is None or not data.known(["slo_attainment"]):
        return ""
    lines = data.lines(data.load)[0]
    target = percent(data.target or DEFAULT_TARGET)
    known = [(k.held, line.label) for k, line in zip(knees, lines, strict=True) if k.held is not None]
    if not known:
        return f"no load that was tried has {target} of the requests within the SLO"
    most = max(held for held, _ in known)
    best = [label for held, label in known if held == most]
    who = f" ({best[0]}{f' and {len(best) - 1} more' if len(best) > 1 else ''})" if best[0] else ""
    return f"the SLO is held at {target} up to {most:g} {load_name(data)}{who}"


def _what(data: SweepData) -> list[str]:
    lines = []
    for key in data.keys:
        choices = [short(value) for value in data.choices(key)]
        shown = ", ".join(choices[:12]) + (f", ... ({len(choices)} values)" if len(choices) > 12 else "")
        lines.append(f"{key}: {shown}")
    return lines or ["nothing was varied"]


def _tiles(data: SweepData) -> list[Tile]:
    replications = data.study.config.replications
    tiles = [
        Tile("Points", str(len(data.points)), f"{len(data.keys)} varied {'key' if len(data.keys) == 1 else 'keys'}")
    ]
    tiles.append(Tile("Runs", str(sum(len(p.rows) for p in data.points)), f"{replications} a point"))
    for metric, best, word in (
        ("slo_attainment", max, "best"),
        ("goodput", max, "best"),
        ("ttft.p99", min, "lowest"),
        ("tpot.p99", min, "lowest"),
        ("tokens_per_gpu", max, "best"),
    ):
        known = [(value, point) for point in data.points if (value := point.mean(metric)) is not None]
        if known:
            value, point = best(known, key=lambda pair: pair[0])
            tiles.append(
                Tile(f"{word} {metric_title(metric)}", metric_value(metric, value), _breakable(data.label(point)))
            )
    return tiles


def _breakable(label: str) -> str:
    """Lines may end at an underscore, for there is no other place in most names."""
    return label.replace("_", "_\N{ZERO WIDTH SPACE}")


def _warnings(data: SweepData) -> list[str]:
    """Failed points, then the warnings of the runs, one for those that differ in their numbers only."""
    failed = [f"{data.label(point)}: {point.failed}" for point in data.points if point.failed]
    rows = [row for point in data.points for row in point.rows]
    found: dict[str, list[str]] = {}
    for row in rows:
        for line in filter(None, str(row.get("warnings") or "").split("\n")):
            found.setdefault(re.sub(r"[\d.,]+", "#", line), []).append(line)
    groups = sorted(found.values(), key=lambda lines: -len(lines))
    lines = [*failed, *(_alike(lines, len(rows)) for lines in groups)]
    more = len(lines) - _MOST_WARNINGS
    return lines[:_MOST_WARNINGS] + ([f"and {more} more: column warnings of results.parquet"] if more > 0 else [])


def _alike(lines: Sequence[str], number: int) -> str:
    if len(lines) >= number:
        return lines[0]
    same = "" if len(set(lines)) == 1 else ", with other numbers"
    return f"{lines[0]} ({len(lines)} of {number} runs{same})"


def _sections(data: SweepData, knees: Sequence[Knee]) -> list[Section]:
    front = sweep_charts.interactivity(data)
    sections = [_expectations(data), _load_section(data, knees), _chart(sweep_charts.curves(data))]
    if front:
        sections.append(Section.of(front[0], _front_table(data, front[1])))
    for make in (sweep_maps.point_rows, sweep_maps.heat_maps, sweep_maps.break_even, sweep_maps.sensitivity):
        sections.append(_chart(make(data)))
    sections.append(Section("points-table", "All points", tables=[_point_table(data)]))
    return [section for section in sections if section is not None]


def _chart(chart: Chart | None) -> Section | None:
    return Section.of(chart) if chart is not None else None


def _expectations(data: SweepData) -> Section | None:
    if not data.verdicts:
        return None
    rows: list[list[Cell | str]] = []
    for text, where in data.verdicts:
        more = f" ... and {len(where) - _MOST_SHOWN} more" if len(where) > _MOST_SHOWN else ""
        verdict = Cell("does not hold", tone="bad") if where else Cell("holds", tone="good")
        shown = [line.replace(f"{text}: does not hold", "").replace(": (", " (") for line in where[:_MOST_SHOWN]]
        rows.append([text, verdict, "; ".join(shown) + more])
    head: tuple[str, ...] = ("Expectation", "Verdict", "Where it does not hold")
    if not any(where for _, where in data.verdicts):
        head, rows = head[:2], [row[:2] for row in rows]
    caption = "What the study expects, judged on the means over replications"
    table = Table(caption, head, rows, frozenset({1, 2}))
    return Section("expectations", "Expectations", tables=[table])


def _load_section(data: SweepData, knees: Sequence[Knee]) -> Section | None:
    chart = sweep_charts.load_chart(data, knees)
    if chart is None:
        return None
    assert data.load is not None
    rows: list[list[Cell | str]] = [
        [line.label or "the experiment", *(_load(value) for value in (knee.held, knee.bend, knee.backlogged))]
        for line, knee in zip(data.lines(data.load)[0], knees, strict=True)
    ]
    head = ("Variant", "held", "bend of TTFT p99", "backlogged from")
    table = Table(f"The knee, in {load_name(data)}", head, rows)
    given = "" if data.target else f" The study states no share; {percent(DEFAULT_TARGET)} is taken."
    return Section.of(chart, table, notes=[" ".join(rules.RULES) + given])


def _load(value: float | None) -> Cell:
    return Cell("none of those tried" if value is None else f"{value:g}")


def _front_table(data: SweepData, front: Sequence[SweepPoint]) -> Table:
    metrics = ["tokens_per_user", "tokens_per_gpu", *data.known(("ttft.p99", "slo_attainment"))]
    rows: list[list[Cell | str]] = [
        [data.label(point), *(metric_value(m, point.mean(m)) for m in metrics)] for point in front
    ]
    return Table("On the front, from the most per GPU to the fastest for a user",
                 ("Point", *(metric_title(m) for m in metrics)), rows)  # fmt: skip


def _point_table(data: SweepData) -> Table:
    metrics = [*data.known(METRICS), *data.known(list(data.study.config.columns))]
    head = [*(data.names[key] for key in data.keys), *(metric_title(m) for m in metrics), "state"]
    if not data.keys:
        head = ["Point", *head]
    rows = [_point_row(data, point, metrics) for point in data.points[:_MOST_POINTS]]
    caption = f"Means over the runs of a point, with {data.spread_words}; click a title to sort"
    if data.study.config.replications == 1:
        caption = "One run a point; click a title to sort"
    if len(data.points) > _MOST_POINTS:
        caption += f"; the first {_MOST_POINTS} of {len(data.points)} points, all are in results.parquet"
    return Table(caption, head, rows, frozenset({len(head) - 1}), sortable=True)


def _point_row(data: SweepData, point: SweepPoint, metrics: Sequence[str]) -> list[Cell | str]:
    cells: list[Cell | str] = [_value_cell(point.values[key]) for key in data.keys] or ["the experiment"]
    for metric in metrics:
        value, interval = point.mean(metric), point.interval(metric)
        ends = [] if interval is None else list(dict.fromkeys(metric_value(metric, end) for end in interval))
        note = " to ".join(ends) if len(ends) > 1 else ""
        cells.append(Cell(metric_value(metric, value), note, key="" if value is None else value))
    state = "failed" if point.failed else "stable" if point.stable else "backlogged"
    return [*cells, Cell(state, tone="" if state == "stable" else "bad")]


def _value_cell(value: Any) -> Cell:
    return Cell(short(value), key=value if isinstance(value, int | float) and not isinstance(value, bool) else None)


def _facts(data: SweepData) -> list[tuple[str, str]]:
    seeds = sorted({row["seed"] for point in data.points for row in point.rows if row.get("seed") is not None})
    config = data.study.config
    return [
        ("Points", f"{len(data.points)}, in the order of the file"),
        ("Seeds", f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else ", ".join(map(str, seeds)) or NONE),
        ("Columns", ", ".join(f"{name} = {text}" for name, text in config.columns.items()) or "none of its own"),
    ]


def _footer(data: SweepData) -> str:
    row = next((row for point in data.points for row in point.rows if row.get("versions.servesim")), {})
    version = f"servesim {row.get('versions.servesim', NONE)}, profiles {row.get('versions.profiles', NONE)}"
    return f"{version}. Complete numbers: results.parquet beside this page, and the folders of the runs."
