"""Readers of measured runs on a tiny made-up folder, the replay of a run, the report, and the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import validation_data

from sim.cli.main import main
from sim.errors import InputError
from sim.validation import blis, silicon, suite
from sim.validation.blocks import block_counts
from sim.validation.case import Case
from sim.validation.constants import ServerFit
from sim.validation.replay import Prediction, configuration, predict, replay
from sim.validation.report import Validation
from sim.validation.variants import model_with_weights


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return validation_data.write_folder(tmp_path / "data")


@pytest.fixture
def run_of_requests(tmp_path: Path) -> Case:
    validation_data.write_blis(tmp_path / "blis", failed=20)
    return blis.collect(tmp_path / "blis").cases[0]


def test_failed_rows_take_their_prompt_from_the_cycle_and_count_in_no_latency(run_of_requests: Case) -> None:
    workload = run_of_requests.make_workload(1)
    assert workload.num_prompt_tokens.tolist() == [500 + i % 100 for i in range(100)] + [500 + i for i in range(20)]
    assert run_of_requests.measured["finished"] == 100
    assert run_of_requests.measured["ttft.mean"] == pytest.approx(0.025)
    assert run_of_requests.measured["tpot.mean"] == pytest.approx(0.15 / 19)
    assert run_of_requests.requests is not None
    assert run_of_requests.requests.stage_starts == (0, 60)


def test_the_configuration_is_an_experiment_with_the_measured_blocks(run_of_requests: Case) -> None:
    config = configuration(run_of_requests)
    pool = config.cluster.pools[0]
    assert pool.kv_cache.num_blocks == 7462
    assert (pool.scheduler.max_num_seqs, pool.scheduler.max_num_batched_tokens) == (128, 2048)
    assert config.client.timeout == 300.0
    assert config.client.base_latency > 0


def test_a_second_look_at_a_prompt_hits_the_whole_of_it(run_of_requests: Case) -> None:
    run = replay(run_of_requests)
    prompts = run_of_requests.make_workload(1).num_prompt_tokens
    # Only the 20 prompts beyond the first hundred hit; they compute 1 to 16 tokens again.
    expected = sum(16 * ((n - 1) // 16) for n in prompts[100:].tolist())
    assert run.hit_rate == pytest.approx(expected / prompts.sum())


def test_client_constants_add_to_ttft_and_change_nothing_else(run_of_requests: Case) -> None:
    bare = {"client_latency": 0.0, "client_latency_per_sequence": 0.0}
    without, with_client = (
        replay(run_of_requests, constants=bare | {"client_latency": added}) for added in (0.0, 0.01)
    )
    assert np.allclose(with_client.ttft - without.ttft, 0.01, atol=1e-8)
    assert np.allclose(with_client.e2e - without.e2e, 0.01, atol=1e-8)


def test_regenerated_runs_are_averaged_over_their_seeds(folder: Path) -> None:
    case = next(case for case in suite.collect(folder).cases if case.dataset == "sim2real")
    assert case.seeds == (1, 2, 3, 4, 5)
    assert len(case.make_workload(1)) == 8
    assert set(case.make_workload(1).num_prompt_tokens.tolist()) == {round(1.047 * 500)}
    singles = [predict(case, (seed,)).predicted["ttft.mean"] for seed in case.seeds]
    assert predict(case).predicted["ttft.mean"] == pytest.approx(np.mean(singles))
    assert case.peers == {"peer": {"ttft.mean": 0.12, "tpot.mean": -0.05}}


def test_every_row_left_out_says_why(tmp_path: Path) -> None:
    validation_data.write_silicon(tmp_path / "silicon_sample")
    found = silicon.collect(tmp_path / "silicon_sample")
    assert [(case.name, case.pool["tensor_parallel"]) for case in found.cases] == [
        ("loop", 1),
        ("experts-spread", 4),
        ("counted-twice", 4),
        ("split", 1),
    ]
    assert [case.pool["kv_cache"]["dtype"] for case in found.cases] == [None, None, "fp8", None]
    split = found.cases[-1].cluster
    assert split is not None
    assert [(pool["role"], pool["replicas"], pool["tensor_parallel"]) for pool in split["pools"]] == [
        ("prefill", 1, 1),
        ("decode", 2, 2),
    ]
    assert predict(found.cases[-1]).predicted["finished"] == 20
    assert {item.name: item.reason for item in found.left_out} == {
        "uncounted": "prefill and decode on separate GPUs, their number not stated",
        "split-data-parallel": "attention data parallelism without expert parallelism",
        "data-parallel": "attention data parallelism without expert parallelism",
        "unheard-of": "sizes of org/Unheard-Of-1B are not in the data",
        "no-time": "no concurrency or no latency recorded",
        "no-gpu": "no GPU 'tpu_v9' in the catalogue",
    }


def test_a_model_with_other_weights_is_a_file_that_halves_them() -> None:
    from sim.model import load_model

    path = model_with_weights("llama-3.1-8b", "fp8")
    assert load_model(path).weight_bytes() < 0.6 * load_model("llama-3.1-8b").weight_bytes()
    assert model_with_weights("llama-3.1-8b", "bf16") == "llama-3.1-8b"
    assert model_with_weights("gpt-oss-120b", "fp4") == "gpt-oss-120b"  # four bits already


def test_block_counts_are_compared_once_a_server(folder: Path) -> None:
    counts = block_counts(suite.collect(folder).cases * 2)
    assert [(item.measured, item.tensor_parallel) for item in counts] == [(7462, 1)]
    assert counts[0].error is not None
    assert abs(counts[0].error) < 0.05


def test_the_report_names_errors_peers_and_what_is_left_out(folder: Path) -> None:
    found = suite.collect(folder)
    predictions, failed = suite.run(found.cases, single_seed=True)
    assert not failed
    text = "\n".join(Validation(predictions, found.left_out, block_counts(found.cases)).lines())
    for part in ("blis clean", "sim2real eval38", "peer", "tiny-run", "KV blocks", "data parallelism", "distserve"):
        assert part in text
    values = Validation(predictions, found.left_out).values()
    run = next(item for item in values["runs"] if item["dataset"] == "blis_training")
    assert run["errors"]["ttft.mean"] == pytest.approx(run["predicted"]["ttft.mean"] / 0.025 - 1)


def test_runs_on_gpus_of_which_no_server_was_fitted_are_listed_apart(run_of_requests: Case) -> None:
    nothing = np.zeros((0, 0))
    fit = ServerFit({}, {}, nothing, 1.0, 0.0, 0, nothing, np.zeros(0), (), gpus=frozenset({"h100-sxm"}))
    elsewhere = replace(run_of_requests, name="elsewhere", pool={**run_of_requests.pool, "gpu": "A100-80GB"})
    predictions = [Prediction(case, {"ttft.mean": 0.03}) for case in (run_of_requests, elsewhere)]
    lines = Validation(predictions, [], fit=fit).lines()
    start = next(i for i, line in enumerate(lines) if line.startswith("GPUs of which no server entered the fit"))
    listed = [line for line in lines[start:] if line.startswith("| blis_training/")]
    assert [line.split("|")[1].strip() for line in listed] == ["blis_training/elsewhere"]


def test_a_run_that_cannot_be_built_is_left_out_with_the_reason(run_of_requests: Case) -> None:
    broken = replace(run_of_requests, pool={**run_of_requests.pool, "model": "llama-3.1-405b", "kv_cache": {}})
    predictions, left_out = suite.run([broken])
    assert predictions == []
    assert "does not fit" in left_out[0].reason


def test_the_command_writes_json_tables_and_figures(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as leaving:
        main(["validate", "--data", str(folder), "--fast", "--json", "--out", str(out)])
    assert leaving.value.code == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((out / "validation.json").read_text())
    assert {run["dataset"] for run in printed["runs"]} == {"blis_training", "sim2real", "silicon_sample"}
    assert (out / "tables.md").read_text().startswith("Errors by set of runs")
    assert (out / "distributions.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--data", "nowhere"], "holds no measured runs"),
        (["--runs", "nothing-like-it"], "matches none of"),
        (["--runs", "sim2real", "--fit"], "--fit needs the clean runs"),
    ],
)
def test_bad_input_is_one_line(
    folder: Path, arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = arguments if "--data" in arguments else [*arguments, "--data", str(folder)]
    with pytest.raises(SystemExit) as leaving:
        main(["validate", *given])
    assert leaving.value.code == 2
    error = capsys.readouterr().err
    assert part in error
    assert error.count("\n") == 1


def test_a_missing_column_is_named_with_its_file(tmp_path: Path) -> None:
    validation_data.write_blis(tmp_path / "blis_training")
    path = tmp_path / "blis_training" / "experiments.csv"
    path.write_text(path.read_text().replace("kv_blocks_gpu", "kv_block_gpu"))
    with pytest.raises(InputError, match=r"experiments\.csv: has no column 'kv_blocks_gpu'.*kv_block_gpu"):
        suite.collect(tmp_path)
