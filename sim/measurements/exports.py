"""A finished run in other tools' formats: `vllm bench serve` JSON, a Mooncake trace, Prometheus text as vLLM names it.

All are made from the files of the output directory. Those hold no time of every token, so the vLLM result has no `itls`
(its statistics of gaps are those of the summary) and the Prometheus text no inter_token_latency histogram.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.errors import InputError, unknown_name
from sim.measurements.results import read_summary

if TYPE_CHECKING:
    import pandas as pd

    from sim.units import FloatArray
    from sim.workload.base import Workload

_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
                80.0, 160.0, 640.0, 2560.0)  # fmt: skip
_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_REQUEST = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
            960.0, 1920.0, 7680.0)  # fmt: skip
_TOKENS = tuple(float(m * 10**e) for e in range(6) for m in (1, 2, 5))
_STEP = (1.0, 8.0, *(float(2**e) for e in range(4, 15)))


def export(directory: Path, format: str) -> str:
    """The text of the run in `directory` in a format of `FORMATS`. `InputError` for another, or no run."""
    if format not in FORMATS:
        raise unknown_name("export format", format, FORMATS)
    import pandas as pd

    summary = read_summary(directory)
    return FORMATS[format](directory, summary, pd.read_parquet(directory / "requests.parquet"))


def _vllm_bench(directory: Path, summary: dict[str, Any], requests: pd.DataFrame) -> str:
    """Requests in arrival order; those that did not finish have an error. Latencies of failed ones are 0, as there."""
    rows = requests[requests["arrival_time"].notna()].sort_values("arrival_time", kind="stable")
    good = rows["status"] == "finished"
    document: dict[str, Any] = {
        "backend": "servesim",
        "model_id": rows["model"].iloc[0] if len(rows) else None,
        "num_prompts": len(rows),
        "duration": summary["duration"],
        "completed": summary["num_finished"],
        "failed": int((~good).sum()),
        "total_input_tokens": summary["num_prompt_tokens"],
        "total_output_tokens": summary["num_output_tokens"],
        "request_throughput": summary["request_throughput"],
        "request_goodput": summary["goodput"],
        "output_throughput": summary["output_token_throughput"],
        "total_token_throughput": summary["total_token_throughput"],
    }
    for theirs, ours in (("ttft", "ttft"), ("tpot", "tpot"), ("itl", "itl"), ("e2el", "e2e")):
        for name, statistic in (("mean", "mean"), ("median", "p50"), ("std", "std"), ("p90", "p90"), ("p99", "p99")):
            value = summary[ours][statistic]
            document[f"{name}_{theirs}_ms"] = None if value is None else value * 1e3
    document |= {
        "input_lens": rows["num_prompt_tokens"].tolist(),
        "output_lens": rows["num_output_tokens"].where(good, 0).tolist(),
        "ttfts": rows["ttft"].where(good, 0.0).fillna(0.0).tolist(),
        "latencies": rows["e2e"].where(good, 0.0).fillna(0.0).tolist(),
        "start_times": rows["arrival_time"].tolist(),
        "errors": rows["status"].where(~good, "").tolist(),
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _mooncake(directory: Path, summary: dict[str, Any], requests: pd.DataFrame) -> str:
    """Arrivals as they were in the run (sessions and closed loops too); ids of prefixes from the workload, if any."""
    workload = _workload(directory)
    arrivals = requests["arrival_time"].to_numpy(dtype=np.float64)
    lines = []
    for row in np.argsort(arrivals, kind="stable"):
        if np.isnan(arrivals[row]):
            continue
        entry: dict[str, Any] = {
            "timestamp": round(float(arrivals[row]) * 1e3),
            "input_length": int(workload.num_prompt_tokens[row]),
            "output_length": int(workload.num_output_tokens[row]),
        }
        if workload.hash_ids is not None:
            entry["hash_ids"] = workload.hash_ids.row(int(row)).tolist()
        lines.append(json.dumps(entry))
    return "\n".join(lines) + "\n"


def _workload(directory: Path) -> Workload:
    from sim.config import load_experiment
    from sim.seeds import Seeds
    from sim.workload.config import build_workload

    config = load_experiment(directory / "config.yaml")
    return build_workload(config.workload, Seeds(config.seed), config.base_dir)


# --- Prometheus -------------------------------------------------------------------------------------------------------


def _prometheus(directory: Path, summary: dict[str, Any], requests: pd.DataFrame) -> str:
    """Counters and histograms at the end of the run; a label `engine` for each replica, as vLLM has for each engine."""
    lines = [*_counters(summary, requests), *_gauges(summary)]
    for name, help, buckets, column in _histogram_table(requests):
        lines += _header(name, help, "histogram")
        for engine, rows in requests.groupby("decode_replica"):
            values = column[rows.index].dropna().to_numpy(dtype=np.float64)
            lines += _histogram(name, buckets, values, _labels(requests, engine))
    if (directory / "steps.parquet").is_file():
        lines += _iteration_tokens(directory, requests)
    return "\n".join(lines) + "\n"


def _histogram_table(requests: pd.DataFrame) -> Iterator[tuple[str, str, Sequence[float], pd.Series[Any]]]:
    """Name, help, buckets and values of each histogram; requests that finished only, as the engine observes them."""
    done = requests[requests["status"] == "finished"].reindex(requests.index)
    first, last, scheduled = done["first_token_time"], done["finish_time"], done["first_scheduled_time"]
    yield "time_to_first_token_seconds", "Time to first token.", _FIRST_TOKEN, done["ttft"]
    # Of one output token it is 0 and counted, as in the engine.
    each = ((last - first) / (done["num_output_tokens"] - 1).clip(lower=1)).where(done["num_output_tokens"].notna())
    yield "request_time_per_output_token_seconds", "Time per output token of a request.", _TOKEN, each
    yield "e2e_request_latency_seconds", "End-to-end latency.", _REQUEST, done["e2e"]
    yield "request_queue_time_seconds", "Arrival to first scheduling.", _REQUEST, scheduled - done["admission_time"]
    yield "request_prefill_time_seconds", "First scheduling to first token.", _REQUEST, first - scheduled
    yield "request_decode_time_seconds", "First to last token.", _REQUEST, last - first
    yield "request_inference_time_seconds", "First scheduling to last token.", _REQUEST, last - scheduled
    yield "request_prompt_tokens", "Prompt tokens of a request.", _TOKENS, done["num_prompt_tokens"]
    yield "request_generation_tokens", "Output tokens of a request.", _TOKENS, done["num_output_tokens"]
    yield "request_params_max_tokens", "Declared maximum of a request.", _TOKENS, done["max_output_tokens"]


def _counters(summary: dict[str, Any], requests: pd.DataFrame) -> Iterator[str]:
    done = requests[requests["status"] == "finished"]
    sums = {
        "prompt_tokens_total": ("Prompt tokens processed.", "num_prompt_tokens"),
        "generation_tokens_total": ("Output tokens generated.", "num_output_tokens"),
        "num_preemptions_total": ("Preemptions.", "num_preemptions"),
    }
    if summary["prefix_cache"]["num_lookup_tokens"] is not None:
        sums["prefix_cache_queries_total"] = ("Prompt tokens looked up in the prefix cache.", "num_prompt_tokens")
        sums["prefix_cache_hits_total"] = ("Prompt tokens found in the prefix cache.", "num_cached_tokens")
    for name, (help, column) in sums.items():
        yield from _header(name, help, "counter")
        for engine, rows in requests.groupby("decode_replica"):
            yield f"vllm:{name}{_braced(_labels(requests, engine))} {int(rows[column].sum())}"
    yield from _header("request_success_total", "Finished requests by reason.", "counter")
    for engine, rows in done.groupby("decode_replica"):
        by_length = rows["num_output_tokens"] >= rows["max_output_tokens"]
        for reason, number in (("length", int(by_length.sum())), ("stop", int((~by_length).sum()))):
            labels = {**_labels(requests, engine), "finished_reason": reason}
            yield f"vllm:request_success_total{_braced(labels)} {number}"


def _gauges(summary: dict[str, Any]) -> Iterator[str]:
    """Means over the run, where a scrape of the engine would give an instant: the run is over, all would be 0."""
    yield from _header("kv_cache_usage_perc", "Share of KV blocks in use, mean over the run (0 to 1).", "gauge")
    for index, replica in enumerate(summary["replicas"]):
        if replica["mean_kv_usage"] is not None:
            yield f'vllm:kv_cache_usage_perc{{engine="{index}"}} {replica["mean_kv_usage"]!r}'


def _iteration_tokens(directory: Path, requests: pd.DataFrame) -> Iterator[str]:
    import pandas as pd

    steps = pd.read_parquet(directory / "steps.parquet")
    yield from _header("iteration_tokens_total", "Tokens of a step.", "histogram")
    for engine, rows in steps.groupby("replica"):
        tokens = (rows["num_prefill_tokens"] + rows["num_decode_sequences"]).to_numpy(dtype=np.float64)
        yield from _histogram("iteration_tokens_total", _STEP, tokens, _labels(requests, engine))


def _histogram(name: str, buckets: Sequence[float], values: FloatArray, labels: dict[str, str]) -> Iterator[str]:
    """Cumulative buckets, sum and count."""
    below = np.searchsorted(np.sort(values), buckets, side="right").tolist()
    for bound, number in zip([*map(_number, buckets), "+Inf"], [*below, len(values)], strict=True):
        yield f"vllm:{name}_bucket{_braced({**labels, 'le': bound})} {number}"
    yield f"vllm:{name}_sum{_braced(labels)} {float(values.sum())!r}"
    yield f"vllm:{name}_count{_braced(labels)} {len(values)}"


def _number(bound: float) -> str:
    return repr(float(bound))


def _header(name: str, help: str, kind: str) -> list[str]:
    return [f"# HELP vllm:{name} {help}", f"# TYPE vllm:{name} {kind}"]


def _labels(requests: pd.DataFrame, engine: object) -> dict[str, str]:
    return {"engine": str(engine), "model_name": str(requests["model"].iloc[0])}


def _braced(labels: dict[str, str]) -> str:
    escaped = (value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for value in labels.values())
    return "{" + ",".join(f'{name}="{value}"' for name, value in zip(labels, escaped, strict=True)) + "}"


FORMATS: dict[str, Callable[[Path, dict[str, Any], pd.DataFrame], str]] = {
    "vllm-bench": _vllm_bench,
    "mooncake": _mooncake,
    "prometheus": _prometheus,
}


def write_export(directory: Path, format: str, target: Path) -> None:
    """Write the export; the file appears when it is complete."""
    from sim.output import write_text

    text = export(directory, format)
    try:
        write_text(target, text)
    except OSError as error:
        raise InputError(f"{target}: cannot be written ({error.strerror})") from None
