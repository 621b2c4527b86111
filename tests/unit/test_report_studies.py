"""The pages of sweeps, comparisons and plans: what they say is what the folders say; complete and self-contained."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import math
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import report_folders as folders
from html_page import Page

from sim.errors import InputError
from sim.perfetto import lanes
from sim.report import figures, write_figures, write_report
from sim.report.compare_charts import pooled, relative_interval
from sim.report.compare_page import verdict_words
from sim.report.data import load
from sim.report.knee import bend, first_backlogged, largest_held, pareto_front
from sim.report.page import read
from sim.report.plan_page import band_words
from sim.report.step_charts import busy_shares, gantt
from sim.report.sweep_data import load_sweep
from sim.report.sweep_maps import differences
from sim.report.text import metric_title, metric_value, signed_value

KINDS = ("run", "sweep", "compare", "plan")


@pytest.fixture(scope="module")
def made(report_directories: dict[str, Path]) -> SimpleNamespace:
    html = {kind: (path / "report.html").read_text(encoding="utf-8") for kind, path in report_directories.items()}
    return SimpleNamespace(directories=report_directories, html=html, pages={k: Page(v) for k, v in html.items()})


# --- every page ---


@pytest.mark.parametrize("kind", KINDS)
def test_every_element_is_closed_and_every_reference_has_its_target(made: SimpleNamespace, kind: str) -> None:
    page, html = made.pages[kind], made.html[kind]
    assert page.open == []
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"|aria-labelledby="([^"]+)"', html)
    assert {"".join(found) for found in targets} <= set(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_pages_need_no_network(made: SimpleNamespace, kind: str) -> None:
    page, html = made.pages[kind], made.html[kind]
    assert not {"link", "img", "iframe", "object"} & {tag for tag, _ in page.tags}
    links = [value for _, a in page.tags for key, value in a.items() if key in ("src", "href", "xlink:href")]
    assert all(link.startswith("#") for link in links)
    assert "default-src 'none'" in html
    assert len(html) < 1_000_000


@pytest.mark.parametrize("kind", KINDS)
def test_the_only_script_is_the_one_that_sorts_and_the_policy_allows_no_other(made: SimpleNamespace, kind: str) -> None:
    html = made.html[kind]
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    assert len(scripts) == (kind in ("sweep", "plan"))
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"script-src 'sha256-{digest}'" in html


@pytest.mark.parametrize("kind", KINDS)
def test_figures_have_words_and_follow_the_theme_and_tables_have_heads(made: SimpleNamespace, kind: str) -> None:
    page, html = made.pages[kind], made.html[kind]
    images = [attributes for _, attributes in page.tags if attributes.get("role") == "img"]
    assert len(images) >= 3
    assert all(len(image["aria-label"] or "") > 30 for image in images)
    assert not re.search(r"(fill|stroke): #(?!none)[0-9a-f]{6}", html[html.index("<body>") :])
    assert html.count("<table>") == html.count("<caption>") == html.count("<thead>")
    assert html.count("<table>") >= 1


@pytest.mark.parametrize("kind", ["compare", "plan"])
def test_equal_folders_give_equal_bytes(made: SimpleNamespace, tmp_path: Path, kind: str) -> None:
    again = write_report(made.directories[kind], tmp_path / "again.html")
    assert again.read_text(encoding="utf-8") == made.html[kind]


@pytest.mark.parametrize("kind", ["compare", "plan"])
def test_every_figure_is_also_svg_png_and_csv(made: SimpleNamespace, tmp_path: Path, kind: str) -> None:
    paths = write_figures(made.directories[kind], tmp_path / "figures")
    names = set(figures(made.directories[kind]))
    assert {path.name for path in paths} == {f"{name}.{end}" for name in names for end in ("svg", "png", "csv")}
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == sorted(path.name for path in paths)
    for path in paths:
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
        elif path.suffix == ".csv":
            head, *rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
            assert len(head) >= 2
            assert rows or "run again" in made.html[kind]


# --- sweeps ---


def test_means_of_a_sweep_are_those_of_its_rows(made: SimpleNamespace) -> None:
    data = load_sweep(made.directories["sweep"])
    frame = pd.read_parquet(made.directories["sweep"] / "results.parquet")
    assert len(data.points) == 16
    for point in data.points:
        rows = frame[frame["point"] == point.index]
        assert point.mean("ttft.p99") == pytest.approx(rows["ttft.p99"].mean(), rel=1e-12)
        assert point.interval("ttft.p99") == pytest.approx((rows["ttft.p99"].min(), rows["ttft.p99"].max()))
        gpus = 2
        assert point.mean("tokens_per_gpu") == pytest.approx(rows["output_token_throughput"].mean() / gpus)
        assert point.mean("tokens_per_user") == pytest.approx((1 / rows["tpot.p50"]).mean())


def test_three_runs_have_an_interval_cut_at_what_is_possible(made: SimpleNamespace) -> None:
    point = load_sweep(made.directories["sweep"]).points[0]
    rows = tuple({"run_status": "finished", "slo_attainment": value} for value in (0.5, 1.0, 1.0))
    low, high = type(point)(0, {}, rows).interval("slo_attainment") or (0.0, 0.0)
    assert 0.0 <= low < 0.834 < high == 1.0


def test_lines_go_along_the_load_and_cover_every_point_once(made: SimpleNamespace) -> None:
    data = load_sweep(made.directories["sweep"])
    assert data.load == "workload.arrivals.rate"
    assert data.target == 0.9
    lines, averaged = data.lines(data.load)
    assert not averaged
    assert [line.x for line in lines] == [[10.0, 40.0, 80.0, 160.0]] * 4
    covered = [point.index for line in lines for points in line.points for point in points]
    assert sorted(covered) == list(range(16))


def test_too_many_lines_become_averages_over_the_key_that_matters_least(made: SimpleNamespace) -> None:
    data = load_sweep(made.directories["sweep"])
    import sim.report.sweep_data as module

    most, module.MOST_LINES = module.MOST_LINES, 2
    try:
        lines, averaged = data.lines("workload.arrivals.rate")
    finally:
        module.MOST_LINES = most
    kept, (left_out,) = lines[0].label.split("=")[0], averaged
    assert data.effect(left_out, "ttft.p99") <= max(data.effect(k, "ttft.p99") for k in data.keys if kept in k)
    assert all(len(points) == 2 for line in lines for points in line.points)
    assert lines[0].means("e2e.p99")[0] == pytest.approx(
        np.mean([point.mean("e2e.p99") for point in lines[0].points[0]])
    )


def test_the_page_of_a_sweep_says_which_expectations_hold_and_how_much_load(made: SimpleNamespace) -> None:
    data, text = load_sweep(made.directories["sweep"]), made.pages["sweep"].text
    held = sum(not where for _, where in data.verdicts)
    assert f"{held} of 2 expectations hold" in text
    frame = pd.read_parquet(made.directories["sweep"] / "results.parquet")
    late = frame.groupby("point")["ttft.p99"].mean() >= 0.3
    assert len(dict(data.verdicts)["ttft.p99 < 0.3"]) == late.sum()
    assert text.count("does not hold") >= (2 - held)
    for words in ("Held: the largest load", "Kneedle", "Backlogged:", "usd_per_million"):
        assert words in text


def test_the_points_table_has_a_row_a_point_that_sorts_by_number(made: SimpleNamespace) -> None:
    html = made.html["sweep"]
    table = html[html.index('id="title-points-table"') :]
    body = table[table.index("<tbody>") : table.index("</tbody>")]
    assert body.count("<tr>") == 16
    assert table[: table.index("</thead>")].count("<button") == table[: table.index("</thead>")].count('scope="col"')
    keys = [float(key) for key in re.findall(r'data-key="([^"]+)"', body)]
    assert len(keys) > 16 * 8


def test_differences_of_two_variants_are_relative_and_paired(made: SimpleNamespace) -> None:
    data = load_sweep(made.directories["sweep"])
    keys = ("workload.arrivals.rate", folders.BUDGET)
    variants = ("cluster.router.policy", "round_robin", "least_outstanding_requests")
    grid, unsure = differences(data, "ttft.p99", variants, keys)
    assert grid.shape == unsure.shape == (2, 4)
    frame = pd.read_parquet(made.directories["sweep"] / "results.parquet")
    cell = frame[(frame[folders.BUDGET] == 2048) & (frame["workload.arrivals.rate"] == 80)]
    mean = cell.groupby("cluster.router.policy")["ttft.p99"].mean()
    expected = mean["least_outstanding_requests"] / mean["round_robin"] - 1
    assert grid[1, 2] == pytest.approx(expected)


@pytest.mark.parametrize(
    "changes",
    [
        {"vary": {folders.BUDGET: [512, 2048, 8192]}, "replications": 1, "expect": [], "columns": {}},
        {
            "vary": {},
            "sample": {"n": 13, "keys": {"workload.arrivals.rate": {"min": 5, "max": 60}, folders.BUDGET: [512, 4096]}},
            "replications": 1,
            "expect": [],
        },
        {"vary": {"seed": [1]}, "replications": 1, "expect": []},
        {
            "vary": {"cluster.pools.0.kv_cache": [{"num_blocks": 300}, {"num_blocks": 40}]},
            "replications": 1,
            "expect": ["num_finished == num_requests"],
        },
    ],
    ids=["numbers", "sample", "one point", "mappings"],
)
def test_studies_of_every_kind_have_a_page(tmp_path: Path, changes: dict[str, object]) -> None:
    small = {**folders.EXPERIMENT, "workload": {**folders.EXPERIMENT["workload"], "num_requests": 12}}
    page = Page(write_report(folders.sweep_folder(tmp_path, experiment=small, **changes)).read_text())
    assert page.open == []
    assert "All points" in page.text


def test_a_study_of_other_points_than_its_table_is_refused(made: SimpleNamespace, tmp_path: Path) -> None:
    for name in ("study.yaml", "results.parquet"):
        (tmp_path / name).write_bytes((made.directories["sweep"] / name).read_bytes())
    text = (tmp_path / "study.yaml").read_text().replace("  - 160\n", "")
    (tmp_path / "study.yaml").write_text(text)
    with pytest.raises(InputError, match=r"its points are not those of study\.yaml"):
        write_report(tmp_path)
    (tmp_path / "study.yaml").unlink()
    with pytest.raises(InputError, match=r"has no study\.yaml"):
        write_report(tmp_path)
    (tmp_path / "results.parquet").write_text("nothing")
    (tmp_path / "study.yaml").write_text(text)
    with pytest.raises(InputError, match=r"results\.parquet: cannot be read"):
        write_report(tmp_path)


# --- comparisons ---


def test_the_page_of_a_comparison_gives_every_verdict_in_words(made: SimpleNamespace) -> None:
    document = json.loads((made.directories["compare"] / "compare.json").read_text())
    text = made.pages["compare"].text
    (pair,) = document["pairs"]
    assert verdict_words(pair) in text
    for row in pair["metrics"]:
        assert metric_title(row["metric"]) in verdict_words(pair)
        assert signed_value(row["metric"], row["difference"]).replace("\N{NO-BREAK SPACE}", " ") in text


def test_distributions_over_each_other_are_those_of_all_replications(made: SimpleNamespace) -> None:
    directory = made.directories["compare"]
    document = json.loads((directory / "compare.json").read_text())
    lines = {line.get_label(): line for line in figures(directory)["overlays"].axes[0].lines}
    for entry in document["experiments"]:
        tables = [pd.read_parquet(directory / "runs" / key / "requests.parquet") for key in entry["runs"]]
        values = pd.concat(tables)["ttft"]
        assert len(tables) == 3
        assert lines[entry["name"]].get_xdata()[-1] == values.max()
        assert np.median(lines[entry["name"]].get_xdata()) >= values.median()  # denser towards the tail
    runs = [load(directory / "runs" / key) for key in document["experiments"][0]["runs"]]
    assert len(pooled(runs, "ttft")) == 3 * 80


def test_intervals_are_relative_to_the_size_of_the_baseline() -> None:
    row = {"baseline_value": -4.0, "t_low": -1.0, "t_high": 2.0}
    assert relative_interval(row) == (-0.25, 0.5)
    assert relative_interval({**row, "t_low": None, "t_high": None}) == (None, None)
    assert relative_interval({**row, "baseline_value": 0.0}) == (None, None)


def test_a_comparison_whose_runs_are_gone_still_has_its_verdicts(made: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "compare.json").write_bytes((made.directories["compare"] / "compare.json").read_bytes())
    page = Page(write_report(tmp_path).read_text())
    assert "Verdicts" in page.text
    assert "Latency distributions" not in page.text


def test_a_comparison_by_batches_of_one_run_has_a_page(tmp_path: Path) -> None:
    assert "Verdicts" in Page(write_report(folders.compare_folder(tmp_path, replications=1)).read_text()).text


# --- plans ---


def test_the_page_of_a_plan_begins_with_the_answer(made: SimpleNamespace) -> None:
    document = json.loads((made.directories["plan"] / "plan.json").read_text())
    winner, text = document["winner"], made.pages["plan"].text
    first = text[: text.index("Candidates")]
    assert f"llama-3.1-8b on {winner['gpu']}" in first
    assert f"{winner['cost_per_hour']:g} USD an hour" in first
    assert f"limited by {winner['limiting_resource'].replace('_', ' ')}" in first
    for row in document["candidates"]:
        assert row["gpu"] in text
        assert (row["reason"] or "") in text


def test_trials_of_a_plan_have_the_cost_of_their_replicas(made: SimpleNamespace) -> None:
    document = json.loads((made.directories["plan"] / "plan.json").read_text())
    for trial in document["trials"]:
        row = document["candidates"][trial["candidate"]]
        each = folders.PLAN["prices"][row["gpu"]] * row["tensor_parallel"]
        assert trial["cost_per_hour"] == pytest.approx(each * trial["replicas"])
    winner = document["winner"]
    own = [t for t in document["trials"] if t["met"] and math.isclose(t["cost_per_hour"], winner["cost_per_hour"])]
    assert any(trial["ttft.p99"] == winner["ttft.p99"] for trial in own)
    loads = {row["load"]: row["met"] for row in winner["loads"]}
    assert loads[1.0]
    assert max(load for load, met in loads.items() if met) == pytest.approx(1 + winner["headroom"])


def test_a_plan_without_a_winner_says_so(tmp_path: Path) -> None:
    choices = {"model": "llama-3.1-8b", "gpu": "l4", "tensor_parallel": 1}
    slo = {"ttft": 0.001, "tpot": 0.001, "attainment": 0.99}
    page = Page(write_report(folders.plan_folder(tmp_path, candidates=choices, slo=slo)).read_text())
    assert "None of 1 candidates meets the SLO." in page.text
    assert "Headroom to the knee" not in page.text


def test_a_document_of_another_version_is_refused_by_name(tmp_path: Path) -> None:
    for name in ("plan.json", "compare.json"):
        (tmp_path / name).write_text('{"name": "x"}')
        with pytest.raises(InputError, match=rf"{name}: has no .*versions"):
            read(tmp_path)
        (tmp_path / name).unlink()


# --- parts ---


@pytest.mark.parametrize(
    ("attained", "held"),
    [([1.0, 0.95, 0.5], 2), ([0.5, 1.0, 1.0], None), ([1.0, 0.8, 1.0], 1), ([1.0, None, 1.0], 1), ([0.9] * 3, 3)],
)
def test_the_load_held_is_the_last_before_the_first_miss(attained: list[float], held: float | None) -> None:
    assert largest_held([1, 2, 3], attained, 0.9) == held


def test_a_hockey_stick_bends_at_its_heel_and_a_straight_line_nowhere() -> None:
    loads = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert bend(loads, [1.0, 1.0, 1.0, 1.0, 5.0, 9.0]) == 4.0
    assert bend(loads, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) is None
    assert bend(loads, [1.0] * 6) is None or bend(loads, [1.0] * 6) in loads
    assert bend(loads[:3], [1.0, 1.0, 9.0]) is None
    assert first_backlogged([1, 2, 3], [True, False, False]) == 2
    assert first_backlogged([1, 2], [True, True]) is None


def test_a_front_has_what_nothing_beats_in_both() -> None:
    x = np.array([1.0, 2.0, 3.0, 2.0, np.nan, 3.0])
    y = np.array([5.0, 4.0, 1.0, 3.0, 9.0, 1.0])
    assert pareto_front(x, y) == [0, 1, 2]
    assert pareto_front(x, y, larger_x=False, larger_y=False) == [0, 3, 2]
    for row in pareto_front(x, y):
        better = (x >= x[row]) & (y >= y[row]) & ((x > x[row]) | (y > y[row]))
        assert not better.any()


def test_steps_of_a_pipeline_lie_in_lanes_without_overlap() -> None:
    start, end = np.array([0.0, 0.5, 1.0, 1.2, 3.0]), np.array([1.0, 1.5, 2.0, 1.4, 4.0])
    assert list(lanes(start, end)) == [0, 1, 0, 2, 0]


def test_busy_shares_are_differences_of_the_cumulative_busy_time() -> None:
    timeline = pd.DataFrame(
        {"time": [0.0, 0.0, 1.0, 1.0, 2.0, 2.0], "replica": [0, 1] * 3, "busy_time": [0.0, 0.0, 1.0, 0.0, 1.5, 0.25]}
    )
    shares, edges = busy_shares(timeline)
    assert list(edges) == [0.0, 1.0, 2.0]
    assert shares == pytest.approx(np.array([[1.0, 0.5], [0.0, 0.25]]))
    assert busy_shares(None)[0].size == 0


def test_the_map_of_utilisation_adds_up_to_the_busy_time_of_the_summary(made: SimpleNamespace) -> None:
    run = load(made.directories["run"])
    shares, edges = busy_shares(run.timeline)
    busy = (shares * np.diff(edges)).sum(axis=1)
    for row, seconds in zip(run.summary["replicas"], busy, strict=True):
        assert seconds <= row["busy_time"] + 1e-6
        assert seconds == pytest.approx(row["busy_time"], abs=1.01)  # what came after the last sample


def test_the_steps_drawn_lead_to_the_slowest_first_token(made: SimpleNamespace) -> None:
    run = load(made.directories["run"])
    chart = gantt(run)
    assert chart.data is not None
    steps = pd.DataFrame(chart.data)
    row = run.requests.loc[run.requests["ttft"].idxmax()]
    assert set(steps["replica"]) == {row["prefill_replica"]}
    ends = steps["start_time"] + steps["duration"]
    assert (abs(ends - row["first_token_time"]) < 0.02).any()
    assert len(steps) <= 120


def test_the_parts_of_the_slowest_requests_are_in_their_table(made: SimpleNamespace) -> None:
    text = made.pages["run"].text
    assert "and what it consisted of" in text
    for words in ("waiting for a first batch", "prefills of others", "most of it was"):
        assert words in text
    assert "a million output tokens" in text


def test_a_run_without_recordings_says_how_to_get_them(tmp_path: Path) -> None:
    page = Page(write_report(folders.run_folder(tmp_path, recorded=False)).read_text())
    assert page.text.count("run again with --step-log") >= 2
    assert page.text.count("run again with --timeline") >= 2


@pytest.mark.parametrize(
    ("metric", "value", "shown"),
    [
        ("ttft.p99", 0.25, "250 ms"),
        ("slo_attainment", 0.25, "25 %"),
        ("goodput", 12.0, "12"),
        ("cost.price", None, "n/a"),
    ],
)
def test_values_have_the_unit_of_their_metric(metric: str, value: float | None, shown: str) -> None:
    assert metric_value(metric, value).replace("\N{NO-BREAK SPACE}", " ") == shown


def test_signs_of_differences_are_always_shown() -> None:
    assert signed_value("ttft.p99", 0.01).startswith("+10")
    assert signed_value("ttft.p99", -0.01).startswith("-10")
    assert signed_value("slo_attainment", -0.031).startswith("-3.1")


def test_of_keys_that_go_together_those_are_named_that_tell_the_values_apart() -> None:
    from sim.report.sweep_data import _implied

    assert _implied({"policy": ["a", "b"], "first": [2, 0], "second": [0, 1]}) == ["first", "second"]
    assert _implied({"first": [0, 0, 1], "second": [0, 1, 1], "third": [5, 6, 7]}) == ["third"]
    assert _implied({"only": [1, 2]}) == []


def test_pools_and_links_of_a_split_run_are_on_its_page(tmp_path: Path) -> None:
    pool = folders.EXPERIMENT["cluster"]["pools"][0]
    pools = [{**pool, "name": role, "role": role, "replicas": 1} for role in ("prefill", "decode")]
    network = {"bandwidth": 1e9, "latency": 1e-4}
    cluster = {"pools": pools, "disaggregation": {"policy": "always_split"}, "network": network}
    text = Page(write_report(folders.run_folder(tmp_path, recorded=False, cluster=cluster)).read_text()).text
    assert "Pools and network" in text
    assert "80 KV transfers" in text
    assert "KV transfer" in text[text.index("Why the slowest") :]


def test_an_answer_with_a_known_error_says_what_it_would_be_with_other_step_times() -> None:
    winner = {"error_band": {"step_time_error": 0.2, "replicas": [3, 4], "cost_per_hour": [4.5, 6.0]}}
    (line,) = band_words(winner)
    assert "from 3 to 4 replicas, 4.5 to 6 USD an hour" in line
    assert band_words({"error_band": None}) == []
