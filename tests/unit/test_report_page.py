"""The HTML report: complete, self-contained, accessible, escaped, the same bytes each time; its errors."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from html_page import Page

from sim import output
from sim.errors import InputError
from sim.metrics import requests_frame, summarize
from sim.report import figures, load_charts, write_report
from sim.report.data import load
from sim.report.load_charts import _spread
from sim.report.theme import VARIABLES
from tests.unit.fake_run import FakeRun, fake_run

NAMES = {"latency_cdf", "latency_over_time", "slowest", "state", "load", "itl", "replicas", "batches", "gantt"}
NAMES |= {"utilization", "prefix_hits"}


def write_run(run: FakeRun, directory: Path, timeline: bool = True, config: str | None = None) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    output.write_json(directory / "summary.json", summarize(run.result, run.workload, run.config))
    output.write_frame(directory / "requests.parquet", requests_frame(run.result, run.workload, run.config))
    if timeline:
        output.write_columns(directory / "timeline.parquet", fake_timeline())
    (directory / "config.yaml").write_text(config or CONFIG)
    return directory


CONFIG = """\
name: fake
workload: {trace: traces/chat.csv}
cluster:
  pools:
    - {name: main, replicas: 2, model: llama-3.1-8b, gpu: h100-sxm, tensor_parallel: 2, engine: vllm-v1}
slo: {ttft: 1.0, tpot: 0.05, attainment: 0.9}
"""


def fake_timeline() -> dict[str, np.ndarray]:
    time = np.repeat(np.arange(12.0), 2)
    columns = {"time": time, "replica": np.tile([0.0, 1.0], 12), "waiting": time % 3, "running": time % 5}
    return columns | {"used_blocks": time * 4, "cached_blocks": time * 2, "free_blocks": 100 - time * 6}


@pytest.fixture(scope="module", name="html")
def _html(tmp_path_factory):
    path = write_report(write_run(fake_run(0), tmp_path_factory.mktemp("run")))
    assert path.name == "report.html"
    return path.read_text(encoding="utf-8")


def test_every_element_is_closed_and_every_id_is_unique(html):
    page = Page(html)
    assert page.open == []
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids)) > 10


def test_references_inside_the_page_have_their_targets(html):
    ids = set(re.findall(r'id="([^"]+)"', html))
    targets = re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"|aria-labelledby="([^"]+)"', html)
    assert targets
    assert {"".join(found) for found in targets} <= ids


def test_the_page_needs_no_network_and_no_script(html):
    page = Page(html)
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in page.tags}
    links = [
        value
        for _, attributes in page.tags
        for key, value in attributes.items()
        if key in ("src", "href", "xlink:href")
    ]
    assert all(link.startswith("#") for link in links)
    assert "@import" not in html
    assert "default-src 'none'" in html


def test_the_first_screen_gives_the_answer_the_run_and_the_warnings(html):
    page = Page(html)
    first = page.text[: page.text.index("Latency distributions")]
    assert "2 x llama-3.1-8b on h100-sxm (TP 2, vllm-v1)" in first
    assert "trace chat.csv: 60 requests" in first
    assert re.search(r"[\d.]+ % of 60 offered requests met the SLO: the objective is missed\.", first)
    assert "cost.carbon_kg is null" in first
    assert "USD" in first


def test_every_figure_is_there_with_words_for_those_who_cannot_see_it(html):
    page = Page(html)
    images = [attributes for _, attributes in page.tags if attributes.get("role") == "img"]
    assert len(images) == len(NAMES)
    assert all(len(image["aria-label"] or "") > 30 for image in images)
    assert sum(tag == "svg" for tag, _ in page.tags) == len(NAMES)
    assert sum(tag == "figcaption" for tag, _ in page.tags) == len(NAMES)


def test_figures_follow_the_theme_of_the_reader(html):
    body = html[html.index("<body>") :]
    assert not [color for color in VARIABLES if color in body]
    assert not re.search(r"(fill|stroke): #(?!none)[0-9a-f]{6}", body)
    assert "prefers-color-scheme: dark" in html
    for variable in VARIABLES.values():
        assert html.count(f"{variable}:") == 2  # light and dark


def test_text_of_figures_is_text(html):
    text = Page("".join(re.findall("<svg.*?</svg>", html, re.DOTALL))).text
    for words in ("Time to first token", "time since the start of the simulation (s)", "requests per second"):
        assert words in text


def contrast(first: str, second: str) -> float:
    """Contrast ratio of two colours by WCAG 2."""

    def luminance(color: str) -> float:
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_colours_have_enough_contrast_in_both_themes(html):
    for palette in re.findall(r":root \{(.*?)\}", html, re.DOTALL):
        colors = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", palette))
        for name in ("ink", "muted"):
            assert contrast(colors[name], colors["paper"]) >= 4.5
            assert contrast(colors[name], colors["card"]) >= 4.5
        assert contrast(colors["red"], colors["paper"]) >= 4.5
        for name in ("blue", "orange", "green", "purple", "amber", "sky"):
            assert contrast(colors[name], colors["paper"]) >= 3.0


def test_equal_runs_give_equal_bytes(tmp_path, html):
    path = write_report(write_run(fake_run(0), tmp_path / "other"), tmp_path / "again.html")
    assert path == tmp_path / "again.html"
    assert path.read_text(encoding="utf-8") == html
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["again.html"]


def test_names_from_the_outside_are_escaped(tmp_path):
    run = fake_run(1)
    hostile = "<script>alert('x')</script> & $x^2$"
    run.workload = replace(run.workload, tenant=[hostile] * 60, request_id=[f"<b>{i}</b>" for i in range(60)])
    run.result.replicas[0].name = hostile
    html = write_report(write_run(run, tmp_path, config=CONFIG.replace("name: fake", f'name: "{hostile}"'))).read_text()
    page = Page(html)
    assert "script" not in {tag for tag, _ in page.tags}
    assert page.text.count(hostile) >= 3


def test_without_a_timeline_the_page_says_how_to_get_one(tmp_path):
    chart = load_charts.state(load(write_run(fake_run(1), tmp_path, timeline=False)))
    assert "run again with --timeline" in chart.caption
    assert len(chart.figure.axes) == 1


def test_waiting_and_running_without_a_timeline_are_those_of_the_requests(tmp_path):
    run = fake_run(1)
    running, waiting = load_charts.state(load(write_run(run, tmp_path, timeline=False))).figure.axes[0].lines
    frame = requests_frame(run.result, run.workload, run.config)
    for time, in_queue, in_service in zip(waiting.get_xdata(), waiting.get_ydata(), running.get_ydata(), strict=True):
        here = frame[(frame.arrival_time <= time) & (frame.finish_time > time)]
        assert in_queue == (~(here.first_scheduled_time <= time)).sum()
        assert in_service == (here.first_scheduled_time <= time).sum()


def test_a_run_without_a_finished_request_has_a_report(tmp_path):
    run = fake_run(1)
    run.result.requests["status"][:] = 2
    page = Page(write_report(write_run(run, tmp_path)).read_text())
    assert "0 % of 60 offered requests met the SLO" in page.text
    assert "no finished request" in page.text


def test_a_run_of_one_request_without_slo_classes_or_hits_has_a_report(tmp_path):
    run = fake_run(1, num_requests=1, slo=None)
    run.workload = replace(run.workload, tenant=None, request_class=None, hash_ids=None)
    config = "name: one\nworkload: {num_requests: 1}\ncluster: {pools: []}\n"
    page = Page(write_report(write_run(run, tmp_path, config=config)).read_text())
    assert "1 of 1 requests finished" in page.text
    assert "generated workload: 1 requests" in page.text
    assert "Tenants" not in page.text


def test_a_run_in_which_nothing_arrived_has_a_report(tmp_path):
    run = fake_run(1, num_requests=2)
    for name in ("arrival_time", "admission_time", "first_scheduled_time", "first_token_time", "finish_time"):
        run.result.requests[name] = np.full(2, np.nan)
    run.result.requests["status"][:] = 0
    run.result.spans = []
    assert "0 requests" in Page(write_report(write_run(run, tmp_path)).read_text()).text


def test_twenty_thousand_requests_make_a_small_page(tmp_path):
    run = fake_run(3, num_requests=200, num_replicas=60)
    write_run(run, tmp_path)
    frame = requests_frame(run.result, run.workload, run.config)
    many = frame.loc[np.tile(np.arange(200), 100)].sort_values("arrival_time")
    output.write_frame(tmp_path / "requests.parquet", many)
    assert write_report(tmp_path).stat().st_size < 1_000_000


def test_figures_are_given_by_name_with_labelled_axes(tmp_path):
    drawn = figures(write_run(fake_run(0), tmp_path))
    assert set(drawn) == NAMES
    unrecorded = ("batches", "gantt", "utilization")  # the hand-made run has no step log and no busy times
    for figure in (figure for name, figure in drawn.items() if name not in unrecorded):
        panels = figure.axes
        assert panels[-1].get_xlabel()
        assert any(axes.get_ylabel() or axes.get_yticklabels() for axes in panels)


def test_warm_up_is_left_out_of_the_figures(tmp_path):
    run = fake_run(0)
    config = CONFIG + "metrics: {warmup_requests: 50, warmup_duration: 0.0}\n"
    (line, *_) = figures(write_run(run, tmp_path, config=config))["latency_cdf"].axes[0].lines
    frame = requests_frame(run.result, run.workload, run.config)[50:]
    assert line.get_xdata()[-1] == frame[frame.status == "finished"].ttft.max()


def test_tokens_flow_evenly_between_first_token_and_end():
    start, end, amount = np.array([0.0, 1.0, 2.0]), np.array([4.0, 1.0, 3.0]), np.array([8.0, 5.0, 2.0])
    at = np.array([0.0, 0.5, 1.0, 2.5, 4.0])
    assert _spread(start, end, amount, at) == pytest.approx([0, 1, 2 + 5, 5 + 5 + 1, 8 + 5 + 2])


def test_a_folder_that_is_none_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such directory"):
        write_report(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["summary.json", "config.yaml", "requests.parquet"])
def test_a_missing_file_is_named(tmp_path, name):
    (write_run(fake_run(1, num_requests=3), tmp_path) / name).unlink()
    with pytest.raises(InputError, match=f"has no {name}"):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("summary.json", '{"a": 1,\n}', r"summary\.json:2: no valid JSON"),
        ("summary.json", "[]", "expected an object, got list"),
        ("config.yaml", "a: [1", "no valid YAML"),
        ("config.yaml", "- 1", "expected a mapping, got list"),
        ("requests.parquet", "not parquet", r"requests\.parquet: cannot be read"),
    ],
)
def test_a_damaged_file_is_named_with_the_reason(tmp_path, name, damage, message):
    (write_run(fake_run(1, num_requests=3), tmp_path) / name).write_text(damage)
    with pytest.raises(InputError, match=message):
        write_report(tmp_path)


def test_a_requests_table_without_a_column_is_refused(tmp_path):
    run = fake_run(1, num_requests=3)
    write_run(run, tmp_path)
    frame = requests_frame(run.result, run.workload, run.config).drop(columns="max_itl")
    output.write_frame(tmp_path / "requests.parquet", frame)
    with pytest.raises(InputError, match="has no column max_itl"):
        write_report(tmp_path)


def test_a_target_that_cannot_be_written_is_refused(tmp_path):
    run = write_run(fake_run(1, num_requests=3), tmp_path / "run")
    with pytest.raises(InputError, match="cannot be written"):
        write_report(run, tmp_path / "missing" / "report.html")
