"""Numbers as people read them: three significant digits, a unit always."""

from __future__ import annotations

import math

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
