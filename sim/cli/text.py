"""Numbers as people read them on a terminal: durations, counts, shares, rates."""

from __future__ import annotations

NOTHING = "-"


def seconds(value: float | None) -> str:
    """A latency with its unit, three significant digits: `412 ms`, `1.27 s`, `95.0 s`."""
    if value is None:
        return NOTHING
    if value == 0:
        return "0 s"
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms")):
        if abs(value) < limit:
            return f"{significant(value * factor)} {unit}"
    return f"{significant(value)} s"


def significant(value: float | None, digits: int = 3) -> str:
    """At least `digits` significant digits without an exponent: `0.0123`, `1.27`, `95.0`, `1,234`."""
    if value is None:
        return NOTHING
    if value == 0:
        return "0"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])
    return f"{value:,.{max(digits - 1 - exponent, 0)}f}"


def clock(value: float) -> str:
    """A span as hours, minutes and seconds: `1:02:03`, `2:05`."""
    total = round(value)
    hours, minutes, rest = total // 3600, total // 60 % 60, total % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def span(value: float) -> str:
    """A span of time: `1.37 s` below a minute, `2:05` above."""
    return seconds(value) if value < 60 else clock(value)


def share(value: float | None) -> str:
    """A share as a percentage: `99.2 %`."""
    return NOTHING if value is None else f"{100 * value:.1f} %"


def count(value: int | None) -> str:
    """A count with thousands separators."""
    return NOTHING if value is None else f"{value:,}"


def plural(number: int, noun: str) -> str:
    """`1 replica`, `4 replicas`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
