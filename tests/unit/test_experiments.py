"""The studies in experiments/: all can be run, and what the quick ones expect holds, at full size or a smaller one."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim import expressions
from sim.study.config import load_study
from sim.study.points import points_of
from sim.study.sweep import SweepOutcome, Workers, check_cluster_policies, sweep
from sim.study.table import check_names

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
STUDIES = sorted(EXPERIMENTS.glob("*/study.yaml"))
BESIDE = ["allocators/paper_lengths.yaml", "prefix_routing/shared_prefixes.yaml"]  # second studies of a folder
ALL_STUDIES = [*STUDIES, *(EXPERIMENTS / name for name in BESIDE)]


def name_of(path: Path) -> str:
    return path.relative_to(EXPERIMENTS).with_suffix("").as_posix()


def run(name: str, out: Path, *sets: str) -> SweepOutcome:
    return sweep(EXPERIMENTS / name / "study.yaml", out / "study", sets, Workers(1))


def test_every_folder_of_experiments_is_looked_at() -> None:
    """The list is not empty by mistake, and no study hides behind another file name."""
    assert len(STUDIES) >= 11
    named = {path.parent for path in STUDIES}
    assert {path.parent for path in EXPERIMENTS.glob("*/*study*.yaml")} == named


@pytest.mark.parametrize("path", ALL_STUDIES, ids=name_of)
def test_a_study_is_valid_in_all_its_points(path: Path) -> None:
    """Keys, values, files and policies of every point are accepted, and rows named by `expect` exist; nothing runs."""
    study = load_study(path)
    points = points_of(study)
    check_names(study, points)
    check_cluster_policies(points)
    assert len(points) > 1
    trace_or_statistics = [points[0].configs[0].workload.trace, points[0].configs[0].workload.statistics]
    assert all(Path(file).is_file() for file in trace_or_statistics if file)


@pytest.mark.parametrize("path", ALL_STUDIES, ids=name_of)
def test_a_study_expects_something_of_its_rows(path: Path) -> None:
    """At least one line is about rows, and every line is an expression that can be read."""
    study = load_study(path)
    assert any("row(" in text for text in study.config.expect)
    for text in study.config.expect:
        expressions.check(text)


@pytest.mark.parametrize("path", STUDIES, ids=name_of)
def test_a_study_is_explained(path: Path) -> None:
    """Its README asks a question, says what is left out, and gives the command that runs it."""
    text = (path.parent / "README.md").read_text(encoding="utf-8")
    assert "?" in text
    assert "ot modelled" in text
    assert f"servesim sweep experiments/{path.parent.name}/study.yaml" in text


def test_isolated_tenants_warm_a_copy_each(tmp_path: Path) -> None:
    """Shorter answers: hits by counting (8 or 64 cold prefixes in 600 requests), fewer where the copies do not fit."""
    outcome = run("isolation_price", tmp_path, "workload.output_tokens.value=20")
    assert not outcome.failed_runs
    assert not outcome.failures


def test_learning_admission_does_not_fall_for_inflated_declarations(tmp_path: Path) -> None:
    """A quarter of the size: the first 20 answers, before anything is learned, weigh more; the order stays."""
    outcome = run("adversarial_max_tokens", tmp_path, "workload.num_requests=300")
    table = outcome.frame.set_index(["cluster.admission.pricing", "workload.max_output_tokens.factor"])
    believed, learned = table.loc["declared"], table.loc["learned"]
    assert believed["num_rejected"].is_monotonic_increasing
    assert believed["num_rejected"].loc[10.0] > 2 * learned["num_rejected"].loc[10.0]
    assert learned["output_token_throughput"].loc[10.0] > 1.3 * believed["output_token_throughput"].loc[10.0]


def test_head_of_line_blocking_shows_in_a_short_run(tmp_path: Path) -> None:
    """A quarter of the size."""
    outcome = run("static_vs_continuous", tmp_path, "workload.num_requests=100")
    assert not outcome.failed_runs
    assert not outcome.failures


@pytest.mark.parametrize(("name", "num_requests"), [("pays", 150), ("does_not_pay", 500)])
def test_disaggregation_pays_where_it_should(tmp_path: Path, name: str, num_requests: int) -> None:
    """A part of the size."""
    outcome = run(f"disaggregation_{name}", tmp_path, f"workload.num_requests={num_requests}")
    assert not outcome.failed_runs
    assert not outcome.failures


def test_splitting_pays_where_gaps_bind(tmp_path: Path) -> None:
    """All kinds of traffic at full size."""
    outcome = run("distserve_slo", tmp_path)
    assert not outcome.failed_runs
    assert not outcome.failures


def test_new_gpus_for_prompts_and_old_ones_for_answers(tmp_path: Path) -> None:
    """Equal power and equal price, at full size."""
    outcome = run("splitwise_designs", tmp_path)
    assert not outcome.failed_runs
    assert not outcome.failures


def test_expectations_fail_where_the_mechanism_is_absent(tmp_path: Path) -> None:
    """One request in 50 s: nobody stands behind anybody, so static batching is no worse, and the study says so."""
    outcome = run("static_vs_continuous", tmp_path, "workload.num_requests=20", "workload.arrivals.rate=0.02")
    assert not outcome.failed_runs
    assert any("policy=static" in line for line in outcome.failures)


def test_turns_are_as_good_as_counts_only_where_requests_are_alike(tmp_path: Path) -> None:
    """Two thirds of the size."""
    outcome = run("routing_varying_costs", tmp_path, "workload.num_requests=1000")
    assert not outcome.failed_runs
    assert not outcome.failures


def test_two_choices_survive_an_old_picture(tmp_path: Path) -> None:
    """Two thirds of the size."""
    outcome = run("stale_signals", tmp_path, "workload.num_requests=1000")
    assert not outcome.failed_runs
    assert not outcome.failures
