"""The page of a plan: the answer in one sentence, why the other candidates are not it, fronts, headroom, cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sim.errors import InputError
from sim.report import plan_charts
from sim.report.chart import Chart
from sim.report.data import read_json, read_yaml
from sim.report.document import Cell, Document, Section, Table, Tile
from sim.report.plan_charts import candidate_name, varied_keys
from sim.report.sweep_data import short
from sim.report.text import NONE, count, digits, percent, rate, seconds, yaml_text

_KEYS = ("name", "objective", "slo", "workload", "winner", "candidates", "trials", "num_runs", "versions")
_ORDER = {"winner": 0, "feasible": 1, "dearer": 2, "not met": 2, "infeasible": 3}
_MOST_ROWS = 300
_HOURS_A_MONTH = 730
_EXTRAS = (
    ("token_value_per_hour", "tokens served, an hour", "at the plan's token prices"),
    ("cache_discount_per_hour", "given away for cached tokens, an hour", "their price against that of others"),
    ("margin_per_hour", "left of the tokens' value, an hour", "after the GPUs"),
    (
        "gpu_cost_saved_by_cache_per_hour",
        "saved by the prefix cache, an hour",
        "GPU time of the prefills that hits spare",
    ),
)
DEFINITIONS = """\
A candidate is one combination of the values that the plan lists. Bounds by memory, by the latency of a lone request and
by the work to be done leave out what no simulation could save; the others are simulated in the order of what they would
cost at least, until nothing cheaper can meet the SLO. More replicas of a candidate are taken to meet the SLO whenever
fewer do. The winner is simulated again with other seeds, and one that fails then is not the winner. Headroom is the
load, found by halving, up to which the winner still meets the SLO. Costs are of all GPUs, idle or not."""


def document(directory: Path) -> Document:
    """The page of the plan in `directory`."""
    found = read_json(directory / "plan.json")
    missing = [key for key in _KEYS if key not in found]
    if missing:
        raise InputError(f"{directory / 'plan.json'}: has no {', '.join(missing)}; is it of another version?")
    winner = found["winner"]
    plan = directory / "plan.yaml"
    return Document(
        kind="plan",
        name=found["name"],
        what=[_workload_line(found["workload"]), f"minimized: {found['objective']}"],
        answer=answer_of(found),
        tone="good" if winner else "bad",
        tiles=_tiles(winner) if winner else (),
        warnings=_warnings(winner) if winner else (),
        sections=_sections(found),
        facts=_facts(found),
        definitions=DEFINITIONS,
        source=("The plan (plan.yaml)", yaml_text(read_yaml(plan)) if plan.is_file() else ""),
        footer=f"servesim {found['versions']['servesim']}. Complete numbers: plan.json and candidates.parquet beside "
        "this page, and the folders of the runs.",
    )


def answer_of(found: Mapping[str, Any]) -> str:
    """Which GPU, how many, what it costs, what limits it."""
    winner = found["winner"]
    if winner is None:
        return f"None of {len(found['candidates'])} candidates meets the SLO."
    pool = winner["experiment"]["cluster"]["pools"][0]
    each = pool["tensor_parallel"] * pool["pipeline_parallel"]
    on = f"{each} {short(pool['gpu'])} each" if each > 1 else f"{short(pool['gpu'])}"
    replicas = "1 replica" if winner["replicas"] == 1 else f"{winner['replicas']} replicas"
    gpus = "1 GPU" if winner["num_gpus"] == 1 else f"{winner['num_gpus']} GPUs"
    cost = f"{digits(winner['cost_per_hour'])} USD an hour"
    limit = winner["limiting_resource"].replace("_", " ")
    return f"{replicas} of {short(pool['model'])} on {on}: {gpus}, {cost}, limited by {limit}."


def headroom_words(winner: Mapping[str, Any]) -> str:
    """The headroom held against the error of step times."""
    if winner["headroom"] is None:
        return "The arrivals have no rate to raise, so the headroom is unknown."
    line = f"The SLO is met up to {1 + winner['headroom']:.3g} times the load"
    error = winner["step_time_error"]
    if error is None:
        return f"{line}. Step times of this GPU are not calibrated, so take the answer with care."
    enough = "more" if winner["headroom"] > error["median"] else "less"
    return (
        f"{line}: a headroom of {percent(winner['headroom'])}, {enough} than the median error of step times "
        f"({percent(error['median'])}; nine in ten are below {percent(error['p90'])})."
    )


def band_words(winner: Mapping[str, Any]) -> list[str]:
    """What the answer would be if step times were off; nothing where their error is not known."""
    band = winner.get("error_band")
    if not band:
        return []
    (few, many), (low, high) = band["replicas"], band["cost_per_hour"]
    ends = f"from {few} to {many} replicas, {digits(low)} to {digits(high)} USD an hour" if many != few else "the same"
    error = percent(band["step_time_error"])
    return [f"With all steps {error} shorter or longer (the error that nine in ten stay below) it would be {ends}."]


def _tiles(winner: Mapping[str, Any]) -> list[Tile]:
    spare = winner["cost_per_hour_with_one_spare"]
    return [
        Tile("Cost", f"{digits(winner['cost_per_hour'])} USD/h", f"{digits(spare)} USD/h with one replica to spare"),
        Tile("GPUs", count(winner["num_gpus"]), f"{count(winner['replicas'])} replicas"),
        Tile("SLO attainment", percent(winner["slo_attainment"]), _fresh(winner)),
        Tile("TTFT p99", seconds(winner["ttft.p99"]), f"p50 {seconds(winner['ttft.p50'])}"),
        Tile("TPOT p99", seconds(winner["tpot.p99"]), f"p50 {seconds(winner['tpot.p50'])}"),
        Tile("Headroom", percent(winner["headroom"]), "more load within the SLO"),
        Tile("A million output tokens", f"{_money(winner['cost_per_million_output_tokens'])} USD", ""),
        Tile("GPUs busy", percent(winner["mean_utilization"]), "mean of the replicas"),
    ]


def _fresh(winner: Mapping[str, Any]) -> str:
    fresh = winner["fresh_seeds"]
    return f"other seeds: {', '.join(percent(value) for value in fresh)}" if fresh else ""


def _warnings(winner: Mapping[str, Any]) -> list[str]:
    error, headroom = winner["step_time_error"], winner["headroom"]
    if error is None:
        return ["step times of this GPU are not calibrated"]
    if headroom is not None and headroom < error["median"]:
        return ["the headroom is less than the median error of step times: a replica more would be safer"]
    return []


def _sections(found: Mapping[str, Any]) -> list[Section]:
    winner = found["winner"]
    sections: list[Section | None] = [Section("candidates", "Candidates", tables=[_candidate_table(found)])]
    sections.append(_chart(plan_charts.fronts(found)))
    if winner:
        chart, words = plan_charts.headroom(found), [headroom_words(winner), *band_words(winner)]
        sections.append(Section("headroom", "Headroom to the knee", words=words, chart=chart))
        sections.append(Section("cost", "Cost", tables=[_cost_table(winner)]))
    sections.append(_chart(plan_charts.demands(found)))
    return [section for section in sections if section is not None]


def _chart(chart: Chart | None) -> Section | None:
    return Section.of(chart) if chart is not None else None


def _candidate_table(found: Mapping[str, Any]) -> Table:
    """The winner, then by cost; infeasible ones last."""
    rows = found["candidates"]
    keys = varied_keys(rows)
    ordered = sorted(rows, key=lambda row: (_ORDER[row["status"]], row["cost_per_hour_at_least"] or 0.0))
    head = ("Candidate", "status", "replicas", "USD/h", "SLO", "TTFT p99", "TPOT p99", "why it is not the answer")
    caption = "All candidates; ≥: at least so many, by bounds or by what was simulated"
    if len(rows) > _MOST_ROWS:
        caption += f"; the first {_MOST_ROWS} of {len(rows)}, all are in candidates.parquet"
    cells = [_candidate_row(row, keys) for row in ordered[:_MOST_ROWS]]
    return Table(caption, head, cells, frozenset({len(head) - 1}), sortable=True)


def _candidate_row(row: Mapping[str, Any], keys: Sequence[str]) -> list[Cell | str]:
    possible, exact = row["status"] != "infeasible", row["replicas"] is not None
    replicas, cost = row["replicas"], row["cost_per_hour"]
    if not exact:
        replicas, cost = row["at_least_replicas"], row["cost_per_hour_at_least"]
    sign = "" if exact else "≥ "
    tone = {"winner": "good", "infeasible": "bad"}.get(row["status"], "")
    change = f"nearest change: {row['nearest_change']}" if row["nearest_change"] else ""
    return [
        candidate_name(row, keys),
        Cell(row["status"], tone=tone),
        Cell(f"{sign}{replicas}" if possible else NONE, key=replicas if possible else ""),
        Cell(f"{sign}{digits(cost)}" if possible and cost is not None else NONE, key=cost if possible else ""),
        Cell(percent(row["slo_attainment"]), key=_key(row["slo_attainment"])),
        Cell(seconds(row["ttft.p99"]), key=_key(row["ttft.p99"])),
        Cell(seconds(row["tpot.p99"]), key=_key(row["tpot.p99"])),
        Cell(row["reason"] or "", change),
    ]


def _key(value: float | None) -> float | str:
    return "" if value is None else value


def _cost_table(winner: Mapping[str, Any]) -> Table:
    hour, gpus, replicas = winner["cost_per_hour"], winner["num_gpus"], winner["replicas"]
    busy = winner["mean_utilization"]
    rows: list[list[Cell | str]] = [["an hour", _money(hour), f"{count(gpus)} GPUs at {_money(hour / gpus)} USD"]]
    rows.append(["a month", _money(hour * _HOURS_A_MONTH), f"{_HOURS_A_MONTH} hours"])
    rows.append(["a replica for an hour", _money(hour / max(replicas, 1)), f"{count(replicas)} of them meet the SLO"])
    if busy is not None:
        rows.append(["while steps run, an hour", _money(hour * busy), f"{percent(busy)} of the time"])
        rows.append(["idle, an hour", _money(hour * (1 - busy)), "paid for the room that peaks need"])
    rows.append(["one replica to spare, an hour", _money(winner["cost_per_hour_with_one_spare"]), "in all (N+1)"])
    for key, name in (
        ("cost_per_request", "a request"),
        ("cost_per_million_tokens", "a million tokens, prompt and output"),
        ("cost_per_million_output_tokens", "a million output tokens"),
    ):
        rows.append([name, _money(winner[key]), "of those served in the simulation"])
    for key, name, how in _EXTRAS:
        if winner.get(key) is not None:
            rows.append([name, _money(winner[key]), how])
    return Table("What the winner costs, in USD", ("For", "USD", "how"), rows, frozenset({2}))


def _money(value: float | None) -> str:
    return NONE if value is None else digits(value)


def _power_line(winner: Mapping[str, Any]) -> str:
    if winner.get("max_power_kw") is None:
        return "unknown"
    line = f"at most {digits(winner['max_power_kw'])} kW"
    energy, carbon = (winner.get(f"max_{name}_per_million_output_tokens") for name in ("energy_kwh", "carbon_kg"))
    line += "" if energy is None else f", {digits(energy)} kWh a million output tokens"
    return line + ("" if carbon is None else f", {digits(carbon)} kg of CO2")


def _slo_line(slo: Mapping[str, Any]) -> str:
    return yaml_text({key: value for key, value in slo.items() if value}).strip().replace("\n", "; ")


def _workload_line(workload: Mapping[str, Any]) -> str:
    line = f"{count(workload['num_requests'])} requests"
    if workload["requests_per_second"] is not None:
        line += f" at {rate(workload['requests_per_second'], 'req/s')}"
    prompt, output = digits(workload["mean_prompt_tokens"]), digits(workload["mean_output_tokens"])
    return f"{line}, {prompt} prompt and {output} output tokens on average"


def _facts(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    statuses = [row["status"] for row in found["candidates"]]
    tally = ", ".join(
        f"{statuses.count(name)} {name}" for name in dict.fromkeys(sorted(statuses, key=_ORDER.__getitem__))
    )
    best = found["winner"]
    return [
        ("Candidates", f"{len(statuses)}: {tally}"),
        ("Runs", f"{found['num_runs']} in the last invocation"),
        ("SLO", _slo_line(found["slo"])),
        ("Power", _power_line(best) if best else NONE),
        ("Winner", candidate_name(best, varied_keys(found["candidates"])) if best else "none"),
        ("Not modelled", "; ".join(found.get("not_modelled", [])) or "see ARCHITECTURE.md"),
    ]
