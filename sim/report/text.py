"""Numbers as people read them: three significant digits, a unit always."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

NONE = "n/a"
_SPACE = "\N{NO-BREAK SPACE}"  # a number is not parted from its unit


def seconds(value: float | None) -> str:
    """A duration with the unit that fits: 0.42 ms, 123 ms, 1.23 s, 12.3 min, 1.5 h."""
    if value is None or math.isnan(value):
        return NONE
    size = abs(value)
    if size == 0:
        return f"0{_SPACE}s"
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1, 1e3, "ms"), (600, 1, "s"), (7200, 1 / 60, "min")):
        # 0.9996 s would be printed as 1000 ms: leave that to the next unit.
        if size < limit * 0.9995:
            return f"{digits(value * factor)}{_SPACE}{unit}"
    return f"{digits(value / 3600)}{_SPACE}h"


def digits(value: float) -> str:
    """Three significant digits, thousands separated, never an exponent below 10^15."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def count(value: float | None) -> str:
    """A whole number with thousands separated."""
    return NONE if value is None else f"{value:,.0f}"


def rate(value: float | None, unit: str) -> str:
    """A rate with its unit, such as `12.3 req/s`."""
    return NONE if value is None else f"{digits(value)}{_SPACE}{unit}"


def percent(value: float | None) -> str:
    """A share of 1 as a percentage; never rounded up to 100 % or down to 0 %."""
    if value is None or math.isnan(value):
        return NONE
    if 0 < value < 1:
        value = min(max(value, 0.0001), 0.9999)
    text = f"{100 * value:.2f}" if value > 0.99 or value < 0.01 else f"{100 * value:.1f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text}{_SPACE}%"


def yaml_text(values: Mapping[str, Any]) -> str:
    """Values as YAML, in their own order."""
    import yaml

    return str(yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True, width=100))


# Heads of dotted metric names that are durations.
_DURATIONS = ("ttft", "tpot", "itl", "itl_request_mean", "e2e", "queueing_delay", "duration")
_SHARES = ("slo_attainment", "prefix_cache.hit_rate", "kv_cache.mean_usage", "kv_cache.peak_usage", "mean_utilization")
_TITLES = {
    "slo_attainment": "SLO attainment",
    "goodput": "goodput (req/s)",
    "request_throughput": "requests/s",
    "output_token_throughput": "output tok/s",
    "total_token_throughput": "tok/s",
    "cost.price": "USD",
    "num_preemptions": "preemptions",
    "queueing_delay": "queueing",
    "prefix_cache.hit_rate": "prefix hits",
    "tokens_per_gpu": "output tok/s per GPU",
    "tokens_per_user": "tok/s per user",
}


def is_duration(metric: str) -> bool:
    """Whether a dotted metric name is one of seconds."""
    return metric.split(".")[0] in _DURATIONS


def is_share(metric: str) -> bool:
    """Whether a dotted metric name is a share of 1."""
    return metric in _SHARES


def metric_value(metric: str, value: float | None) -> str:
    """A value of a dotted metric name with the unit that fits."""
    if value is None:
        return NONE
    if is_duration(metric):
        return seconds(value)
    return percent(value) if is_share(metric) else digits(value)


def metric_title(metric: str) -> str:
    """A dotted metric name for people: `TTFT p99`, `SLO attainment`."""
    if metric in _TITLES:
        return _TITLES[metric]
    head, _, rest = metric.partition(".")
    name = head.upper() if head in ("ttft", "tpot", "itl", "e2e") else _TITLES.get(head, head)
    return f"{name} {rest}" if rest else name


def signed_value(metric: str, value: float) -> str:
    """A difference of a metric with its sign; of shares in percentage points."""
    if is_share(metric):
        return f"{100 * value:+.3g}{_SPACE}points"
    shown = metric_value(metric, value)
    return f"+{shown}" if value > 0 else shown
