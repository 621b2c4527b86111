"""Time stamps of traces to seconds: ISO stamps, epoch numbers, or the format's own unit; the first stamp decides."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.workload.raw import Facts, TimeUnit
from sim.workload.textfile import Source, numbers

if TYPE_CHECKING:
    from sim.units import FloatArray, IntArray

_ISO = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?\s*(Z|UTC|[+-]00:?00)?$")
_ZONE = re.compile(r"\s*(Z|UTC|[+-]00:?00)$")
_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_EPOCHS = ((10**17, "ns"), (10**14, "us"), (10**11, "ms"), (10**8, "s"))  # seconds since 1970 for years 1973 to 5138


class TimeBase:
    """Turns the time column of one file into seconds from its first row.

    Numbers of 10^8 and more are epoch times, in the unit that puts them between the years 1973 and 5138; smaller ones
    have the unit of the format. Whole nanoseconds are subtracted as integers, so no digit is lost to an epoch.
    """

    def __init__(self, source: Source, facts: Facts, name: str, unit: str, given: TimeUnit = "auto") -> None:
        self._source, self._facts, self._name = source, facts, name
        self._unit = unit if given == "auto" else given
        self._given = given != "auto"
        self._iso: bool | None = None
        self._plain = False  # small numbers of seconds: floats as written, so that our tables come back exactly
        self._first = 0.0
        self._origin: int | None = None

    def seconds(self, values: Sequence[Any], line: Sequence[int] | IntArray) -> FloatArray:
        """Seconds from the first row ever given; may be negative where the file is not sorted."""
        if not len(values):
            return np.zeros(0)
        if self._iso is None:
            self._recognise(values[0])
        if self._plain:
            return self._plain_seconds(values, line)
        nanoseconds = self._iso_nanoseconds(values, line) if self._iso else self._scaled(values, line)
        if self._origin is None:
            self._origin = int(nanoseconds[0])
        return (nanoseconds - self._origin) / 1e9

    def _recognise(self, first: Any) -> None:
        self._iso = isinstance(first, str) and _ISO.match(first.strip()) is not None
        if self._iso:
            self._facts.note(f"{self._name}: ISO time stamps (UTC)")
            return
        number = _decimal(first)
        if not self._given and number is not None:
            self._unit = next((unit for least, unit in _EPOCHS if abs(number) >= least), self._unit)
        self._first = float(number) if number is not None else 0.0
        self._plain = self._unit == "s" and abs(self._first) < 10**8
        epoch = number is not None and abs(number) * _NANOSECONDS[self._unit] >= 10**17
        self._facts.note(f"{self._name}: {'epoch time' if epoch else 'time'} in {self._unit}")

    def _plain_seconds(self, values: Sequence[Any], line: Sequence[int] | IntArray) -> FloatArray:
        seconds = numbers(self._source, self._name, values, line)
        if np.isnan(seconds).any():
            at = int(np.argmax(np.isnan(seconds)))
            raise self._source.error(int(line[at]), f"{self._name}: expected a time in s, got nothing")
        return seconds - self._first

    def _iso_nanoseconds(self, values: Sequence[Any], line: Sequence[int] | IntArray) -> IntArray:
        try:
            if all(_ISO.match(value.strip()) for value in values):
                stamps = [_ZONE.sub("", value.strip()) for value in values]
                return np.array(stamps, dtype="datetime64[ns]").astype(np.int64)
        except (ValueError, AttributeError):
            pass
        for number, value in zip(line, values, strict=True):
            if not _is_iso(value):
                raise self._source.error(
                    int(number), f"{self._name}: expected a time stamp like 2023-11-16 18:17:03.9799600, got {value!r}"
                )
        raise AssertionError("a bad time stamp was seen but not found")

    def _scaled(self, values: Sequence[Any], line: Sequence[int] | IntArray) -> IntArray:
        scale = _NANOSECONDS[self._unit]
        if all(type(value) is int for value in values):
            exact = [value * scale for value in values]
        else:
            exact = [self._exact(value, scale, number) for value, number in zip(values, line, strict=True)]
        try:
            return np.array(exact, dtype=np.int64)
        except OverflowError:
            at = next(i for i, value in enumerate(exact) if abs(value) >= 2**63)
            raise self._source.error(
                int(line[at]), f"{self._name}: {values[at]!r} {self._unit} is beyond 292 years"
            ) from None

    def _exact(self, value: Any, scale: int, line: int) -> int:
        number = _decimal(value)
        if number is None:
            raise self._source.error(int(line), f"{self._name}: expected a time in {self._unit}, got {value!r}")
        return round(number * scale)


def _decimal(value: Any) -> Decimal | None:
    """The exact decimal value of a number as written; None where it is not a finite number."""
    if isinstance(value, bool):
        return None
    try:
        number = Decimal(value.strip() if isinstance(value, str) else repr(value))
    except (InvalidOperation, AttributeError):
        return None
    return number if number.is_finite() else None


def _is_iso(value: Any) -> bool:
    try:
        np.datetime64(_ZONE.sub("", value.strip()), "ns")
        return _ISO.match(value.strip()) is not None
    except (ValueError, AttributeError):
        return False
