"""Result files of vllm bench serve, guidellm, aiperf (genai-perf) and inference-perf as metrics in our units and sense.

Names are those of summary.json: latencies in seconds with mean, p50, p90, p99; rates per second. Where a tool means
something else by a word, its value goes to the metric that it is: guidellm's and aiperf's inter-token latency is one
mean a request, our tpot; guidellm's time per output token contains the first token and is left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sim.errors import InputError
from sim.workload.readers.guidellm import benchmark_of
from sim.workload.textfile import Source

STATISTICS = ("mean", "p50", "p90", "p99")
METRICS = ("ttft", "tpot", "itl", "e2e")
RATES = ("request_throughput", "output_token_throughput", "total_token_throughput")
Values = dict[str, float]


@dataclass
class Result:
    """What a load generator measured. `values`: by dotted name of summary.json; what it does not say is absent."""

    tool: str
    values: Values = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_result(path: Path, benchmark: str | None = None) -> Result:
    """Read a result file; `benchmark`: which one of a guidellm report with several. `InputError` for another file."""
    source = Source(path)
    document = _document(source)
    for detect, read in _TOOLS:
        if detect(document):
            result = read(source, document, benchmark)
            if not result.values:
                raise source.error(None, f"a {result.tool} file without any latency or rate that can be compared")
            return result
    keys = ", ".join(list(document)[:8]) if isinstance(document, dict) else type(document).__name__
    raise source.error(
        None,
        f"not a result that is known (it holds {keys}); known: vllm bench serve --save-result, guidellm, aiperf or "
        "genai-perf (profile_export), inference-perf (lifecycle metrics)",
    )


def _document(source: Source) -> Any:
    text = "".join(source.lines())
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError as error:
        raise source.error(None, f"is neither JSON nor JSON lines ({error})") from None


def _spread(metric: str, values: Iterable[float]) -> Values:
    """Statistics of single values in seconds."""
    array = np.array([value for value in values if value is not None], dtype=np.float64)
    if not len(array):
        return {}
    quantiles = np.quantile(array, (0.5, 0.9, 0.99)).tolist()
    return dict(zip((f"{metric}.{name}" for name in STATISTICS), [float(array.mean()), *quantiles], strict=True))


def _stated(metric: str, given: Mapping[str, Any], names: Mapping[str, str], factor: float) -> Values:
    """Statistics that the file states; `names`: ours -> the file's; `factor`: to seconds (or per second)."""
    found = {f"{metric}.{ours}": given.get(theirs) for ours, theirs in names.items()}
    return {name: float(value) * factor for name, value in found.items() if isinstance(value, int | float)}


def _rates(given: Mapping[str, Any], names: Mapping[str, str]) -> Values:
    return {ours: float(given[theirs]) for ours, theirs in names.items() if isinstance(given.get(theirs), int | float)}


# --- vllm bench serve (SGLang's bench_serving prints the same keys) ---


def _is_vllm(document: Any) -> bool:
    return isinstance(document, dict) and "mean_ttft_ms" in document


def _vllm(source: Source, document: Any, benchmark: str | None) -> Result:
    result = Result("vllm bench serve")
    if isinstance(document.get("ttfts"), list) and isinstance(document.get("itls"), list):
        result.values |= _vllm_requests(document)
        result.notes.append("statistics from the detailed lists of requests")
    for ours, theirs in (("ttft", "ttft"), ("tpot", "tpot"), ("itl", "itl"), ("e2e", "e2el")):
        names = {"mean": f"mean_{theirs}_ms", "p50": f"median_{theirs}_ms"}
        names |= {name: f"{name}_{theirs}_ms" for name in ("p90", "p99")}
        result.values = _stated(ours, document, names, 1e-3) | result.values
    result.values |= _rates(
        document,
        {
            "request_throughput": "request_throughput",
            "output_token_throughput": "output_throughput",
            "total_token_throughput": "total_token_throughput",
        },
    )
    return result


def _vllm_requests(document: Mapping[str, Any]) -> Values:
    """TPOT and E2E of the requests that did not fail, from their first token and gaps."""
    errors = document.get("errors") or [""] * len(document["ttfts"])
    rows = [
        (ttft, gaps, tokens)
        for ttft, gaps, tokens, error in zip(
            document["ttfts"], document["itls"], document["output_lens"], errors, strict=True
        )
        if not error
    ]
    tpot = [sum(gaps) / (tokens - 1) for _, gaps, tokens in rows if tokens > 1]
    values = _spread("ttft", (ttft for ttft, _, _ in rows)) | _spread("tpot", tpot)
    values |= _spread("itl", (gap for _, gaps, _ in rows for gap in gaps))
    return values | _spread("e2e", (ttft + sum(gaps) for ttft, gaps, _ in rows))


# --- guidellm ---

_GUIDELLM = {"ttft": ("time_to_first_token_ms", 1e-3), "tpot": ("inter_token_latency_ms", 1e-3),
             "e2e": ("request_latency", 1.0)}  # fmt: skip
_GUIDELLM_RATES = {"request_throughput": "requests_per_second", "output_token_throughput": "output_tokens_per_second",
                   "total_token_throughput": "tokens_per_second"}  # fmt: skip


def _guidellm(source: Source, document: Any, benchmark: str | None) -> Result:
    metrics = benchmark_of(source, document, benchmark).get("metrics") or {}
    result = Result("guidellm", notes=["tpot: guidellm's inter_token_latency, one mean a request; no pooled gaps"])
    for ours, (theirs, factor) in _GUIDELLM.items():
        given = (metrics.get(theirs) or {}).get("successful") or {}
        result.values |= _stated(ours, given, {"mean": "mean", "p50": "median"}, factor)
        result.values |= _stated(ours, given.get("percentiles") or {}, {"p90": "p90", "p99": "p99"}, factor)
    for ours, theirs in _GUIDELLM_RATES.items():
        given = (metrics.get(theirs) or {}).get("successful") or {}
        result.values |= _rates(given, {ours: "mean"})
    return result


# --- aiperf, genai-perf ---

_AIPERF = {"ttft": "time_to_first_token", "tpot": "inter_token_latency", "e2e": "request_latency"}
_TO_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}
_AIPERF_NAMES = {"mean": "avg", "p50": "p50", "p90": "p90", "p99": "p99"}


def _is_aiperf(document: Any) -> bool:
    if isinstance(document, list):
        return bool(document) and isinstance(document[0], dict) and {"metadata", "metrics"} <= set(document[0])
    return isinstance(document, dict) and isinstance(document.get("request_latency"), dict)


def _aiperf(source: Source, document: Any, benchmark: str | None) -> Result:
    notes = ["tpot: aiperf's inter_token_latency, one mean a request"]
    if isinstance(document, list):
        return Result("aiperf", _aiperf_requests(source, document), notes)
    result = Result("aiperf", notes=notes)
    for ours, theirs in _AIPERF.items():
        given = document.get(theirs) or {}
        result.values |= _stated(ours, given, _AIPERF_NAMES, _factor(source, theirs, given))
    for ours in RATES:
        name = {"output_token_throughput": "output_token_throughput"}.get(ours, ours)
        result.values |= _rates(document.get(name) or {}, {ours: "avg"})
    return result


def _factor(source: Source, name: str, given: Mapping[str, Any]) -> float:
    unit = str(given.get("unit", "ms")).lower()
    if unit not in _TO_SECONDS:
        raise source.error(None, f"{name}: unit '{unit}' is none of {', '.join(_TO_SECONDS)}")
    return _TO_SECONDS[unit]


def _aiperf_requests(source: Source, rows: list[Any]) -> Values:
    good = [row for row in rows if not row.get("error") and not row["metadata"].get("was_cancelled")]
    values: Values = {}
    for ours, theirs in _AIPERF.items():
        given = [row["metrics"][theirs] for row in good if theirs in row["metrics"]]
        values |= _spread(ours, (item["value"] * _factor(source, theirs, item) for item in given))
    gaps = [row["metrics"].get("inter_chunk_latency") or {} for row in good]
    factor_of = [_factor(source, "inter_chunk_latency", item) for item in gaps]
    pooled = (gap * f for item, f in zip(gaps, factor_of, strict=True) for gap in item.get("value", ()))
    values |= _spread("itl", pooled)
    times = [(row["metadata"]["request_start_ns"], row["metadata"]["request_end_ns"]) for row in good]
    if span := (max(e for _, e in times) - min(s for s, _ in times)) / 1e9 if times else 0.0:
        tokens = [[(row["metrics"].get(f"{which}_sequence_length") or {}).get("value", 0) for row in good]
                  for which in ("input", "output")]  # fmt: skip
        output = sum(tokens[1])
        values |= dict(zip(RATES, (len(good) / span, output / span, (sum(tokens[0]) + output) / span), strict=True))
    return values


# --- inference-perf ---

_INFERENCE_PERF = {"ttft": "time_to_first_token", "tpot": "time_per_output_token", "itl": "inter_token_latency",
                   "e2e": "request_latency"}  # fmt: skip
_STAMPED_TWICE = 0.05  # median gap over median time per token, at most
_MEDIAN = {"mean": "mean", "p50": "median", "p90": "p90", "p99": "p99"}


def _is_inference_perf(document: Any) -> bool:
    return isinstance(document, dict) and isinstance(document.get("successes"), dict)


def _inference_perf(source: Source, document: Any, benchmark: str | None) -> Result:
    successes = document["successes"]
    latency, throughput = successes.get("latency") or {}, successes.get("throughput") or {}
    result = Result("inference-perf")
    for ours, theirs in _INFERENCE_PERF.items():
        result.values |= _stated(ours, latency.get(theirs) or {}, _MEDIAN, 1.0)
    result.values |= _rates(
        throughput,
        {
            "request_throughput": "requests_per_sec",
            "output_token_throughput": "output_tokens_per_sec",
            "total_token_throughput": "total_tokens_per_sec",
        },
    )
    _mend_double_stamps(result)
    return result


def _mend_double_stamps(result: Result) -> None:
    """Some versions stamp an event twice: half of the gaps are nothing, and the time per token comes out at half.

    Times per token are doubled then (against the requested lengths of measured runs that is right within a few per
    cent); pooled gaps cannot be mended.
    """
    values = result.values
    if values.get("itl.p50", math.inf) > _STAMPED_TWICE * values.get("tpot.p50", 0.0):
        return
    mended = {name: 2 * value for name, value in values.items() if name.startswith("tpot.")}
    result.values = {name: value for name, value in values.items() if not name.startswith("itl.")} | mended
    result.notes.append("half of the gaps are nothing, so tokens were stamped twice: tpot is doubled, itl left out")


def _is_guidellm(document: Any) -> bool:
    return isinstance(document, dict) and "benchmarks" in document


_TOOLS: tuple[tuple[Callable[[Any], bool], Callable[[Source, Any, str | None], Result]], ...] = (
    (_is_vllm, _vllm),
    (_is_guidellm, _guidellm),
    (_is_aiperf, _aiperf),
    (_is_inference_perf, _inference_perf),
)


@dataclass(frozen=True)
class Row:
    """One metric. `error`: (simulated - measured) / measured; None where one of them is missing or measured is 0."""

    metric: str
    simulated: float | None
    measured: float | None

    @property
    def error(self) -> float | None:
        if self.simulated is None or not self.measured:
            return None
        return (self.simulated - self.measured) / self.measured


def against(summary: Mapping[str, Any], result: Result) -> list[Row]:
    """Every metric that the measurement has, against summary.json of a run."""
    rows = []
    for metric in (*(f"{name}.{s}" for name in METRICS for s in STATISTICS), *RATES):
        name, _, statistic = metric.partition(".")
        found = summary.get(name)
        simulated = (found or {}).get(statistic) if statistic else found
        if metric in result.values:
            rows.append(Row(metric, simulated, result.values[metric]))
    return rows


def read_summary(directory: Path) -> dict[str, Any]:
    """summary.json of a run's output directory."""
    try:
        found: dict[str, Any] = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    except OSError:
        raise InputError(f"{directory}: is not the output directory of a run (it has no summary.json)") from None
    return found
