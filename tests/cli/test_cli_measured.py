"""Results of load generators: read as workloads, held against runs; runs exported in their formats and read back."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sim.cli import main as cli
from sim.errors import InputError
from sim.measurements.exports import export
from sim.measurements.results import against, read_result
from sim.seeds import Seeds
from sim.workload.config import WorkloadConfig
from sim.workload.trace import load_trace

RUN_KEYS = ("request_throughput", "output_token_throughput", "total_token_throughput")


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    return int(left.value.code or 0)


@pytest.fixture
def run_directory(small_experiment: Path, tmp_path: Path) -> Path:
    assert call("run", str(small_experiment), "--out", str(tmp_path / "run"), "--step-log", "--quiet") == 0
    return tmp_path / "run"


def written(path: Path, document: Any) -> Path:
    text = "\n".join(map(json.dumps, document)) if path.suffix == ".jsonl" else json.dumps(document)
    path.write_text(text, encoding="utf-8")
    return path


# One request as five tools tell it: sent at 0, tokens at 0.5, 0.55, 0.60 and 0.70 s; another one failed.
VLLM = {"mean_ttft_ms": 0.0, "ttfts": [0.5, 0.0], "itls": [[0.05, 0.05, 0.1], []], "output_lens": [4, 0],
        "errors": ["", "boom"], "request_throughput": 2.0, "output_throughput": 8.0, "input_lens": [10, 10],
        "start_times": [100.0, 100.5]}  # fmt: skip
GUIDELLM = {
    "benchmarks": [
        {
            "metrics": {
                "time_to_first_token_ms": {
                    "successful": {"mean": 500.0, "median": 500.0, "percentiles": {"p99": 500.0}}
                },
                "inter_token_latency_ms": {"successful": {"mean": 200 / 3, "median": 200 / 3}},
                "request_latency": {"successful": {"mean": 0.7}},
                "requests_per_second": {"successful": {"mean": 2.0}},
            },
            "requests": {
                "successful": [{"request_start_time": 100.0, "prompt_tokens": 10, "output_tokens": 4}],
                "errored": [{"request_start_time": 100.5, "prompt_tokens": 10, "output_tokens": 0}],
            },
        }
    ]
}
AIPERF = [
    {
        "metadata": {"request_start_ns": 10**18, "request_end_ns": 10**18 + 700_000_000, "was_cancelled": False},
        "metrics": {
            "input_sequence_length": {"value": 10, "unit": "tokens"},
            "output_sequence_length": {"value": 4, "unit": "tokens"},
            "time_to_first_token": {"value": 500.0, "unit": "ms"},
            "request_latency": {"value": 700.0, "unit": "ms"},
            "inter_token_latency": {"value": 200 / 3, "unit": "ms"},
            "inter_chunk_latency": {"value": [50.0, 50.0, 100.0], "unit": "ms"},
        },
        "error": None,
    },
    {"metadata": {"request_start_ns": 10**18 + 500_000_000}, "metrics": {}, "error": {"code": 500}},
]
GENAI_PERF = {
    "request_latency": {"unit": "ms", "avg": 700.0, "p50": 700.0},
    "time_to_first_token": {"unit": "ms", "avg": 500.0, "p50": 500.0, "p99": 500.0},
    "inter_token_latency": {"unit": "ms", "avg": 200 / 3},
    "request_throughput": {"unit": "requests/sec", "avg": 2.0},
}
INFERENCE_PERF = {
    "successes": {
        "latency": {
            "time_to_first_token": {"mean": 0.5, "median": 0.5, "p99": 0.5},
            "time_per_output_token": {"mean": 0.2 / 3},
            "request_latency": {"mean": 0.7},
        },
        "throughput": {"requests_per_sec": 2.0},
    }
}


@pytest.mark.parametrize(
    ("name", "document"),
    [("v.json", VLLM), ("g.json", GUIDELLM), ("a.jsonl", AIPERF), ("p.json", GENAI_PERF), ("i.json", INFERENCE_PERF)],
)
def test_five_tools_tell_the_same_of_the_same_request(name: str, document: Any, tmp_path: Path) -> None:
    values = read_result(written(tmp_path / name, document)).values
    assert values["ttft.mean"] == pytest.approx(0.5)
    assert values["tpot.mean"] == pytest.approx(0.2 / 3)
    assert values["e2e.mean"] == pytest.approx(0.7)
    if "itl.mean" in values:
        assert values["itl.mean"] == pytest.approx(0.2 / 3)
    assert values["request_throughput"] == pytest.approx(1 / 0.7 if name == "a.jsonl" else 2.0)


PER_REQUEST = [
    {"start_time": 5.0, "end_time": 6.0, "info": {"input_tokens": 10, "output_tokens": 4}, "error": None},
    {"start_time": 5.5, "end_time": 6.0, "info": {"input_tokens": 10, "output_tokens": 0}, "error": {"error_msg": "x"}},
    {"start_time": 5.75, "end_time": 7.0, "info": {"input_tokens": 20, "output_tokens": 9}, "error": None},
]


@pytest.mark.parametrize(
    ("name", "document", "format", "arrivals"),
    [
        ("v.json", VLLM, "vllm-bench", [0.0]),
        ("g.json", GUIDELLM, "guidellm", [0.0]),
        ("a.jsonl", AIPERF, "aiperf", [0.0]),
        ("i.json", PER_REQUEST, "inference-perf", [0.0, 0.75]),
    ],
)
def test_their_requests_are_a_workload(
    name: str, document: Any, format: str, arrivals: list[float], tmp_path: Path
) -> None:
    path = written(tmp_path / name, document)
    trace = load_trace(path, WorkloadConfig(trace=str(path)), Seeds(0))
    assert trace.format == format
    assert trace.workload.arrival_time.tolist() == arrivals
    assert trace.workload.num_prompt_tokens.tolist()[0] == 10
    assert trace.workload.num_output_tokens.tolist()[0] == 4


def test_a_run_exported_as_a_vllm_result_has_no_error_against_itself(run_directory: Path, tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    assert call("export", str(run_directory), "--format", "vllm-bench", "-o", str(file)) == 0
    summary = json.loads((run_directory / "summary.json").read_text())
    rows = against(summary, read_result(file))
    assert len(rows) == 19  # four latencies of four statistics, three rates
    assert max(abs(row.error or 0.0) for row in rows) < 1e-12
    trace = load_trace(file, WorkloadConfig(trace=str(file)), Seeds(0))
    requests = pd.read_parquet(run_directory / "requests.parquet")
    assert trace.workload.num_output_tokens.tolist() == requests["num_output_tokens"].tolist()
    # Twice as slow a server: every latency of the simulation is 50 % below it.
    document = json.loads(file.read_text())
    document |= {key: value * 2 for key, value in document.items() if key.endswith("_ms") and value is not None}
    slower = against(summary, read_result(written(tmp_path / "slow.json", document)))
    errors = [row.error for row in slower if row.metric not in RUN_KEYS]
    assert errors == pytest.approx([-0.5] * 16)


def test_the_command_prints_signed_errors(
    run_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = written(tmp_path / "i.json", INFERENCE_PERF)
    assert call("compare-measured", str(run_directory), str(measured)) == 0
    shown = capsys.readouterr().out
    assert re.search(r"ttft\.mean +[\d.]+ ms +500 ms +-\d", shown)
    assert call("compare-measured", str(run_directory), str(measured), "--json") == 0
    assert {row["metric"] for row in json.loads(capsys.readouterr().out)["metrics"]} >= {"ttft.p99", "e2e.mean"}


def test_a_mooncake_export_is_a_trace_of_the_same_requests(run_directory: Path, tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(export(run_directory, "mooncake"), encoding="utf-8")
    workload = load_trace(file, WorkloadConfig(trace=str(file)), Seeds(0)).workload
    requests = pd.read_parquet(run_directory / "requests.parquet")
    assert workload.num_prompt_tokens.tolist() == requests["num_prompt_tokens"].tolist()
    gaps = np.diff(requests["arrival_time"].to_numpy())
    assert np.abs(np.diff(workload.arrival_time) - gaps).max() <= 1.001e-3


def test_prometheus_text_adds_up(run_directory: Path) -> None:
    text = export(run_directory, "prometheus")
    requests = pd.read_parquet(run_directory / "requests.parquet")
    samples = re.findall(r"^(vllm:\w+)(\{.*\})? (\S+)$", text, re.M)

    def total(name: str) -> float:
        return sum(float(value) for found, _, value in samples if found == f"vllm:{name}")

    assert total("generation_tokens_total") == requests["num_output_tokens"].sum()
    assert total("request_success_total") == total("e2e_request_latency_seconds_count") == len(requests)
    assert total("e2e_request_latency_seconds_sum") == pytest.approx(requests["e2e"].sum())
    steps = pd.read_parquet(run_directory / "steps.parquet")
    assert total("iteration_tokens_total_count") == len(steps)
    buckets = [sample for sample in samples if sample[0] == "vllm:time_to_first_token_seconds_bucket"]
    for bound, limit in (("+Inf", np.inf), ("0.02", 0.02)):
        within = sum(float(value) for _, labels, value in buckets if f'le="{bound}"' in labels)
        assert within == (requests["ttft"] <= limit).sum()
    kinds = set(re.findall(r"^# TYPE \S+ (\w+)$", text, re.M))
    assert kinds == {"counter", "gauge", "histogram"}


@pytest.mark.parametrize(
    ("document", "says"),
    [({"hello": 1}, "not a result that is known"), ({"benchmarks": []}, "has no benchmarks"),
     ({"benchmarks": [{}, {}]}, "holds 2 benchmarks")],
)  # fmt: skip
def test_other_files_are_refused(document: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says):
        read_result(written(tmp_path / "x.json", document))


def test_an_unknown_format_and_a_missing_run_are_refused(run_directory: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'prometheus'"):
        export(run_directory, "promtheus")
    assert call("export", str(tmp_path / "nowhere"), "--format", "mooncake") == 2


def test_a_real_inference_perf_stage_is_read_and_mended(shared_data: Path, tmp_path: Path) -> None:
    """Llama-2-7B on one H100 under inference-perf (../shared/data/e2e/blis_training): tokens stamped twice."""
    import gzip

    with gzip.open(shared_data / "e2e" / "blis_training" / "raw_configs_and_metrics.jsonl.gz", "rt") as file:
        stage = json.loads(next(file))["metrics"]["stage_0"]
    result = read_result(written(tmp_path / "stage.json", stage))
    latency = stage["successes"]["latency"]
    assert result.tool == "inference-perf"
    assert result.values["ttft.p99"] == latency["time_to_first_token"]["p99"]
    assert result.values["e2e.mean"] == latency["request_latency"]["mean"]
    # 251 tokens were asked for with ignore_eos: the true time per token follows from the ends of the requests.
    true = (result.values["e2e.mean"] - result.values["ttft.mean"]) / 250
    assert result.values["tpot.mean"] == pytest.approx(true, rel=0.03)
    assert "stamped twice" in result.notes[0]
    assert not any(name.startswith("itl") for name in result.values)
