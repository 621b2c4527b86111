"""Trace files as text: gzip, encoding, what they look like, and rows with the numbers an editor shows."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, cast

import numpy as np

from sim.errors import InputError, nearest

if TYPE_CHECKING:
    from sim.units import FloatArray, IntArray

HEAD_CHARS = 65_536
_BAD_GZIP = (gzip.BadGzipFile, EOFError, zlib.error)


@dataclass(frozen=True)
class Source:
    """A trace file on disk, compressed or not."""

    path: Path

    def error(self, line: int | None, message: str) -> InputError:
        """An `InputError` that names the file and, where known, the line."""
        where = str(self.path) if line is None else f"{self.path}:{line}"
        return InputError(f"{where}: {message}")

    def open_bytes(self) -> IO[bytes]:
        """The content, decompressed if it is gzip (by its first bytes, not its name)."""
        magic = self._magic()
        if magic == b"\x28\xb5\x2f\xfd":
            raise self.error(None, "is zstd-compressed; decompress it first (gzip is read as it is)")
        return cast("IO[bytes]", gzip.open(self.path) if magic[:2] == b"\x1f\x8b" else self.path.open("rb"))

    def _magic(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                return file.read(4)
        except IsADirectoryError:
            raise self.error(None, "is a directory; a trace file was expected") from None
        except FileNotFoundError:
            raise self.error(None, f"no such file{_nearest_file(self.path)}") from None
        except OSError as error:
            raise self.error(None, error.strerror or str(error)) from None

    def open_text(self) -> IO[str]:
        return io.TextIOWrapper(self.open_bytes(), encoding="utf-8-sig", newline="")

    def lines(self) -> Iterator[str]:
        """Lines of text with their ends; bad encoding and broken gzip become errors with the line."""
        with self.open_text() as file:
            try:
                yield from file
            except UnicodeDecodeError:
                raise self.error(self._undecodable_line(), "is not UTF-8 text") from None
            except _BAD_GZIP as error:
                raise self.error(None, f"broken gzip file: {error}") from None

    def text(self) -> str:
        return "".join(self.lines())

    def _undecodable_line(self) -> int | None:
        with self.open_bytes() as file:
            for number, line in enumerate(file, 1):
                try:
                    line.decode("utf-8")
                except UnicodeDecodeError:
                    return number
        return None


def _nearest_file(path: Path) -> str:
    folder = path.parent
    return nearest(path.name, [p.name for p in folder.iterdir()]) if folder.is_dir() else ""


@dataclass(frozen=True)
class Head:
    """The beginning of a file, for detection."""

    path: Path
    kind: Literal["csv", "json", "jsonl", "parquet", "directory"]
    names: frozenset[str]  # header of a CSV (lower case), keys seen in JSON, columns of a Parquet file
    first_line: str = ""


def read_head(source: Source) -> Head:
    """Look at the first line (and the first 64 Ki characters of JSON); an empty file is an error."""
    if source.path.is_dir():
        return Head(source.path, "directory", frozenset(p.name for p in source.path.iterdir()))
    with source.open_bytes() as file:
        try:
            start = file.read(4)
        except _BAD_GZIP as error:
            raise source.error(None, f"broken gzip file: {error}") from None
    if start == b"PAR1":
        return _parquet_head(source)
    if not start.strip() and not source.text().strip():
        raise source.error(None, "is empty")
    return _text_head(source)


def _parquet_head(source: Source) -> Head:
    import pyarrow
    import pyarrow.parquet

    try:
        names = pyarrow.parquet.read_schema(source.path).names
    except pyarrow.ArrowException as error:
        raise source.error(None, f"broken Parquet file: {error}") from None
    return Head(source.path, "parquet", frozenset(name.lower() for name in names))


def _text_head(source: Source) -> Head:
    lines = source.lines()
    first = next((line for line in lines if line.strip()), "")
    if not first.lstrip().startswith(("{", "[")):
        return Head(source.path, "csv", frozenset(_header_names(first)), first)
    try:
        value = json.loads(first)
        if isinstance(value, dict):
            return Head(source.path, "jsonl", frozenset(value), first)
    except ValueError:
        pass
    text = first[:HEAD_CHARS]
    while len(text) < HEAD_CHARS and (line := next(lines, "")):
        text += line
    return Head(source.path, "json", frozenset(re.findall(r'"([^"\\]{1,60})"\s*:', text)), first)


def _header_names(line: str) -> list[str]:
    return [name.strip().lower() for name in next(csv.reader([line]), [])]


@dataclass
class Table:
    """Rows of a CSV file by column, as strings."""

    line: IntArray
    columns: dict[str, Sequence[str]]


def read_csv(
    source: Source,
    needed: Mapping[str, Sequence[str]],
    optional: Mapping[str, Sequence[str]],
    chunk_rows: int,
    where: Mapping[str, str] | None = None,
) -> Iterator[Table]:
    """Chunks of a CSV file with a header.

    `needed` and `optional` map our name to the header names that it may have (lower case). Rows whose column does not
    have the value that `where` asks for are left out. Missing columns and rows of another width are errors.
    """
    reader = csv.reader(source.lines(), strict=True)
    header = _next_row(source, reader)
    while header is not None and not any(header):
        header = _next_row(source, reader)
    if header is None:
        raise source.error(None, "is empty")
    names = [name.strip().lower() for name in header]
    index = _locate(source, reader.line_num, names, needed, optional)
    wanted = _wanted(source, names, where or {})
    while (rows := _rows(source, reader, len(names), chunk_rows, wanted)).cells:
        columns = list(zip(*rows.cells, strict=True))
        yield Table(np.array(rows.line, dtype=np.int64), {ours: columns[i] for ours, i in index.items()})


def _locate(
    source: Source,
    line: int,
    names: list[str],
    needed: Mapping[str, Sequence[str]],
    optional: Mapping[str, Sequence[str]],
) -> dict[str, int]:
    index = {}
    for ours, accepted in {**needed, **optional}.items():
        found = next((names.index(name) for name in accepted if name in names), None)
        if found is not None:
            index[ours] = found
    missing = [accepted[0] for ours, accepted in needed.items() if ours not in index]
    if missing:
        raise source.error(line, f"missing column {', '.join(missing)}; found: {', '.join(names)}")
    return index


def _wanted(source: Source, names: list[str], where: Mapping[str, str]) -> list[tuple[int, str]]:
    for name in where:
        if name.lower() not in names:
            raise source.error(None, f"where: no column '{name}'{nearest(name, names)}; found: {', '.join(names)}")
    return [(names.index(name.lower()), value) for name, value in where.items()]


@dataclass
class _CsvRows:
    line: list[int]
    cells: list[list[str]]


def _rows(source: Source, reader: Any, width: int, num: int, wanted: list[tuple[int, str]]) -> _CsvRows:
    """The next `num` rows that are wanted; fewer only at the end of the file."""
    rows = _CsvRows([], [])
    try:
        for row in reader:
            if len(row) != width:
                if not row:
                    continue
                text = ",".join(row)[:80]
                raise source.error(reader.line_num, f"expected {width} fields as in the header, got {len(row)}: {text}")
            if wanted and any(row[i] != value for i, value in wanted):
                continue
            rows.cells.append(row)
            rows.line.append(reader.line_num)
            if len(rows.cells) == num:
                break
    except csv.Error as error:
        raise source.error(reader.line_num, f"is not CSV: {error}") from None
    return rows


def _next_row(source: Source, reader: Any) -> list[str] | None:
    try:
        return cast("list[str] | None", next(reader, None))
    except csv.Error as error:
        raise source.error(reader.line_num, f"is not CSV: {error}") from None


@dataclass
class Records:
    """JSON objects of a file with their line numbers."""

    line: list[int]
    rows: list[dict[str, Any]]


def read_jsonl(source: Source, chunk_rows: int) -> Iterator[Records]:
    """Chunks of a file with one JSON object a line; blank lines are skipped."""
    chunk = Records([], [])
    for number, line in enumerate(source.lines(), 1):
        if not line.strip():
            continue
        chunk.line.append(number)
        chunk.rows.append(_json_object(source, number, line))
        if len(chunk.rows) >= chunk_rows:
            yield chunk
            chunk = Records([], [])
    if chunk.rows:
        yield chunk


def _json_object(source: Source, number: int, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise source.error(number, f"is not a JSON object: {error}") from None
    if not isinstance(value, dict):
        raise source.error(number, f"expected a JSON object {{...}}, got {line.strip()[:60]}")
    return value


def read_json(source: Source) -> Any:
    """The whole file as one JSON value."""
    try:
        return json.loads(source.text())
    except json.JSONDecodeError as error:
        raise source.error(error.lineno, f"is not JSON: {error.msg} (column {error.colno})") from None


def integers(
    source: Source, name: str, values: Sequence[Any], line: Sequence[int] | IntArray, least: int = 0
) -> IntArray:
    """Whole numbers >= `least` from strings or JSON numbers, exact over 64 bits; 5.0 is taken for 5."""
    try:
        kinds = set(map(type, values))
        # the common cases without a call of ours per value
        plain: Any = values if kinds == {int} else map(int if kinds == {str} else _integer, values)
        array = _int64(plain)
        if not len(array) or int(array.min()) >= least:
            return array
    except (ValueError, TypeError, OverflowError):
        pass
    for number, value in zip(line, values, strict=True):
        if not _is_integer(value, least):
            raise source.error(int(number), f"{name}: expected an integer >= {least}, got {_shown(value)}")
    return _int64(map(_integer, values))


def _int64(values: Any) -> IntArray:
    return np.array(list(values), dtype=np.int64)


def _integer(value: Any) -> int:
    if type(value) is int:
        return int(value)
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            return _whole(float(value))
    if isinstance(value, float):
        return _whole(value)
    if isinstance(value, np.integer):
        return int(value)
    raise ValueError(value)


def _whole(value: float) -> int:
    if not value.is_integer() or abs(value) >= 2**53:
        raise ValueError(value)
    return int(value)


def _is_integer(value: Any, least: int) -> bool:
    try:
        return least <= _integer(value) < 2**63
    except (ValueError, TypeError, OverflowError):
        return False


def numbers(source: Source, name: str, values: Sequence[Any], line: Sequence[int] | IntArray) -> FloatArray:
    """Finite real numbers >= 0 from strings or JSON numbers; empty strings and None become nan."""
    try:
        if set(map(type, values)) <= {str, int, float}:
            result = np.array(list(map(float, values)))
            if np.isfinite(result).all() and (not len(result) or result.min() >= 0):
                return result
    except ValueError:
        pass
    result = np.empty(len(values))
    for i, value in enumerate(values):
        number = _number(value)
        if number is None or number < 0 or np.isinf(number):
            raise source.error(int(line[i]), f"{name}: expected a number >= 0, got {_shown(value)}")
        result[i] = number
    return result


def _number(value: Any) -> float | None:
    if value is None or value == "":
        return float("nan")
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _shown(value: Any) -> str:
    text = repr(value)
    return "nothing" if value in ("", None) else text if len(text) <= 60 else text[:57] + "..."


def fields(source: Source, records: Records, name: str) -> list[Any]:
    """The value of key `name` in every record; a record without it is an error."""
    try:
        return [row[name] for row in records.rows]
    except KeyError:
        line = next(n for n, row in zip(records.line, records.rows, strict=True) if name not in row)
        raise source.error(line, f"missing key '{name}'") from None
