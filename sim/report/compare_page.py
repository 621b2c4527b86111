"""The page of a comparison: what is better and what is worse, differences with intervals, distributions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sim.errors import InputError
from sim.report import compare_charts
from sim.report.data import RunData, load, read_json
from sim.report.document import Cell, Document, Section, Table, Tile
from sim.report.text import metric_title, metric_value, signed_value

_TONES = {"better": "good", "worse": "bad"}
_MAIN = ("ttft.p99", "tpot.p99", "e2e.p99", "output_token_throughput", "goodput", "slo_attainment")
_KEYS = ("experiments", "pairs", "replications", "seeds", "confidence", "notes", "warnings", "versions")
DEFINITIONS = """\
All experiments have the same seeds, so a difference is taken seed by seed (common random numbers) and its interval is
that of the mean difference: Student's t, corrected for skewness. With a single replication the run is cut into batches,
which are compared instead. P values are adjusted for the number of metrics and pairs (Holm); a verdict is given where
the adjusted one is below 1 less the confidence. No difference detectable does not mean that there is none: the last
column says how much more would find one of this size, or one of 1 % of the baseline if it is smaller."""


def document(directory: Path) -> Document:
    """The page of the comparison in `directory`."""
    found = read_json(directory / "compare.json")
    missing = [key for key in _KEYS if key not in found]
    if missing:
        raise InputError(f"{directory / 'compare.json'}: has no {', '.join(missing)}; is it of another version?")
    runs = _runs(directory, found)
    names = [entry["name"] for entry in found["experiments"]]
    return Document(
        kind="comparison",
        name=" against ".join([", ".join(names[1:]), names[0]]),
        what=[_entry_line(entry, index == 0) for index, entry in enumerate(found["experiments"])],
        answer=_answer(found),
        tone="plain",
        tiles=_tiles(found),
        warnings=_warnings(found),
        sections=_sections(found, runs),
        facts=_facts(found),
        definitions=DEFINITIONS,
        footer=f"servesim {found['versions']['servesim']}, profiles {found['versions']['profiles']}. "
        "Complete numbers: compare.json beside this page, and the folders of the runs.",
    )


def verdict_words(pair: Mapping[str, Any]) -> str:
    """One sentence: in which metrics the candidate is better, worse, and in how many nothing can be told."""
    by: dict[str, list[str]] = {}
    for row in pair["metrics"]:
        by.setdefault(row["verdict"] if row["p_value"] is not None else "not tested", []).append(row["metric"])
    parts = [f"{v} in {_listed(by[v])}" for v in ("better", "worse", "higher", "lower") if v in by]
    for verdict, word in (("no difference detectable", "no difference detectable in"), ("not tested", "not tested:")):
        if verdict in by:
            parts.append(f"{word} {_listed(by[verdict])}")
    return f"{pair['candidate']} against {pair['baseline']}: {'; '.join(parts)}."


def _listed(metrics: Sequence[str]) -> str:
    return ", ".join(metric_title(metric) for metric in metrics)


def _answer(found: Mapping[str, Any]) -> str:
    """The headline: the numbers of verdicts, for the words of all metrics are long."""
    parts = []
    for pair in found["pairs"]:
        number = {verdict: sum(row["verdict"] == verdict for row in pair["metrics"]) for verdict in _TONES}
        parts.append(
            f"{pair['candidate']} is better than {pair['baseline']} in {number['better']} of "
            f"{len(pair['metrics'])} metrics and worse in {number['worse']}"
        )
    return "; ".join(parts) + "."


def _entry_line(entry: Mapping[str, Any], baseline: bool) -> str:
    return f"{entry['name']}: {entry['file']}" + (" (the baseline)" if baseline else "")


def _tiles(found: Mapping[str, Any]) -> list[Tile]:
    """Main metrics of the candidates with their change; of many candidates none, for the tables have them."""
    pairs = found["pairs"]
    number = {1: len(_MAIN), 2: 3, 3: 2}.get(len(pairs), 0)
    rows = [(pair, row) for pair in pairs for metric in _MAIN[:number] for row in pair["metrics"]
            if row["metric"] == metric]  # fmt: skip
    return [_tile(pair, row) for pair, row in rows]


def _tile(pair: Mapping[str, Any], row: Mapping[str, Any]) -> Tile:
    metric = row["metric"]
    change = "" if row["relative"] is None else f"{100 * row['relative']:+.3g} %, "
    note = f"from {metric_value(metric, row['baseline_value'])}: {change}{_verdict(row)}"
    return Tile(f"{metric_title(metric)}: {pair['candidate']}", metric_value(metric, row["candidate_value"]), note)


def _verdict(row: Mapping[str, Any]) -> str:
    return str(row["verdict"]) if row["p_value"] is not None else "not tested"


def _warnings(found: Mapping[str, Any]) -> list[str]:
    own = found["warnings"]
    shared = [line for line in next(iter(own.values()), []) if all(line in lines for lines in own.values())]
    rest = [f"{name}: {line}" for name, lines in own.items() for line in lines if line not in shared]
    return [*found["notes"], *shared, *rest]


def _sections(found: Mapping[str, Any], runs: Mapping[str, Sequence[RunData]]) -> list[Section]:
    sections = [Section("verdict", "Verdicts", words=[verdict_words(pair) for pair in found["pairs"]])]
    sections.append(Section.of(compare_charts.forest(found)))
    sections += [_pair_section(index, pair, found["confidence"]) for index, pair in enumerate(found["pairs"])]
    if runs:
        sections.append(Section.of(compare_charts.overlays(runs)))
        sections.append(Section.of(compare_charts.parts(runs)))
    return sections


def _pair_section(index: int, pair: Mapping[str, Any], confidence: float) -> Section:
    head = (
        "Metric", pair["baseline"], pair["candidate"], f"difference, {confidence:.0%} interval", "relative",
        "p, adjusted", "verdict", "to settle",
    )  # fmt: skip
    rows = [_row(row) for row in pair["metrics"]]
    notes: dict[str, list[str]] = {}
    for row in pair["metrics"]:
        if row["note"]:
            notes.setdefault(row["note"], []).append(metric_title(row["metric"]))
    table = Table(f"{pair['candidate']} less {pair['baseline']}", head, rows, frozenset({6, 7}))
    lines = [f"{', '.join(metrics)}: {note}." for note, metrics in notes.items()]
    title = f"{pair['candidate']} against {pair['baseline']}"
    return Section(f"pair-{index}", title, tables=[table], notes=lines)


def _row(row: Mapping[str, Any]) -> list[Cell | str]:
    metric = row["metric"]
    interval = (
        "" if row["t_low"] is None else " to ".join(signed_value(metric, row[end]) for end in ("t_low", "t_high"))
    )
    verdict = _verdict(row)
    return [
        metric_title(metric),
        metric_value(metric, row["baseline_value"]),
        metric_value(metric, row["candidate_value"]),
        Cell(signed_value(metric, row["difference"]), interval),
        "" if row["relative"] is None else f"{100 * row['relative']:+.2f} %",
        "" if row["p_adjusted"] is None else f"{row['p_adjusted']:.3f}",
        Cell(verdict.replace("no difference", "none"), tone=_TONES.get(verdict, "")),
        _to_settle(row),
    ]


def _to_settle(row: Mapping[str, Any]) -> str:
    """How much more would tell; nothing where the verdict is clear."""
    if row["p_value"] is None or row["verdict"] != "no difference detectable":
        return ""
    if row["negligible"]:
        return "within 1 %"
    if row["to_settle"] is None:
        return "more than a million"
    if row["method"] == "batches":
        return f"a run {max(row['to_settle'] / row['num_values'], 1.1):.1f} times as long"
    return f"{max(row['to_settle'], row['num_values'] + 1):,} replications"


def _facts(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    seeds = found["seeds"]
    return [
        ("Replications", f"{found['replications']}, seeds {', '.join(map(str, seeds))}"),
        ("Confidence", f"{found['confidence']:.0%}, {found.get('correction', '')}"),
        ("Left out", _listed(found.get("skipped_metrics", [])) or "no metric"),
    ]


def _runs(directory: Path, found: Mapping[str, Any]) -> dict[str, list[RunData]]:
    """The runs of every experiment; empty when their folders are gone."""
    folders = {entry["name"]: [directory / "runs" / key for key in entry["runs"]] for entry in found["experiments"]}
    if not all(folder.is_dir() for own in folders.values() for folder in own):
        return {}
    return {name: [load(folder) for folder in own] for name, own in folders.items()}
