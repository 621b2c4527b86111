"""Writing a workload as a file: our own CSV or Parquet (nothing lost), Mooncake JSONL, or the Azure CSV."""

from __future__ import annotations

import csv
import gzip
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from sim.errors import InputError, unknown_name
from sim.workload.base import Ragged, Workload
from sim.workload.rows import IDS, TEXT

_AZURE_EPOCH = np.datetime64("2023-11-16T00:00:00", "ns")  # the day of the original traces; only differences matter


def write_workload(workload: Workload, path: Path, format: str) -> list[str]:
    """Write `workload` to `path` (gzip where it ends in .gz) and return what the format could not hold.

    The file appears when it is complete. Raises `InputError` for an unknown format.
    """
    if format not in WRITERS:
        raise unknown_name("output format", format, WRITERS)
    write, kept = WRITERS[format]
    with replacing(path) as temporary:
        write(workload, temporary, path.suffix == ".gz")
    return [name for name in _present(workload) if name not in kept]


def format_of(path: Path) -> str:
    """The output format that a file name stands for: .parquet, .csv, .jsonl (with or without .gz)."""
    name = path.name.removesuffix(".gz")
    for suffix, format in ((".parquet", "parquet"), (".csv", "csv"), (".jsonl", "mooncake")):
        if name.endswith(suffix):
            return format
    raise InputError(f"{path}: cannot tell the format from the name; give --format (one of {', '.join(WRITERS)})")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that becomes it when all went well."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _text(path: Path, compressed: bool) -> Iterator[IO[str]]:
    if not compressed:
        with path.open("w", encoding="utf-8", newline="") as file:
            yield file
        return
    # no name and no time in the header: equal workloads give equal bytes
    with path.open("wb") as raw, gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed:
        import io

        text = io.TextIOWrapper(packed, encoding="utf-8", newline="")
        yield text
        text.flush()


def _present(workload: Workload) -> list[str]:
    names = ["hash_ids", "output_hash_ids", "priority", "cancel_after", "delay", "closed_loop", *IDS, *TEXT]
    present = [name for name in names if getattr(workload, name) is not None]
    if not np.array_equal(workload.max_output_tokens, workload.num_output_tokens):
        present.append("max_output_tokens")
    return present


def _columns(workload: Workload) -> dict[str, Any]:
    """Columns of our own tables; arrays, lists, or Ragged."""
    later = None if workload.previous is None else workload.previous >= 0
    columns: dict[str, Any] = {}
    if workload.request_id is not None:
        columns["request_id"] = list(workload.request_id)
    columns["arrival_time"] = workload.arrival_time
    for name in ("num_prompt_tokens", "num_output_tokens", "max_output_tokens"):
        columns[name] = getattr(workload, name)
    for name in ("session_id", *TEXT, "priority", "cancel_after"):
        if getattr(workload, name) is not None:
            columns[name] = getattr(workload, name)
    if workload.delay is not None and later is not None:
        columns["delay"] = np.where(later, workload.delay, np.nan)
        _check_sessions(workload)
    if workload.hash_ids is not None:
        columns["hash_ids"] = workload.hash_ids
        if workload.output_hash_ids is not None:
            columns["output_hash_ids"] = workload.output_hash_ids
        columns["hash_block_size"] = np.full(len(workload), workload.hash_block_size)
    if "cancel_after" in columns:
        columns["cancel_after"] = np.where(np.isfinite(columns["cancel_after"]), columns["cancel_after"], np.nan)
    return columns


def _check_sessions(workload: Workload) -> None:
    if workload.session_id is None:
        raise InputError(f"{workload.name}: turns that follow others cannot be written without session ids")


def _write_parquet(workload: Workload, path: Path, compressed: bool) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if compressed:
        raise InputError("Parquet is compressed already: leave .gz out of the name")
    arrays = {name: _arrow(pa, values) for name, values in _columns(workload).items()}
    pq.write_table(pa.table(arrays), path, compression="zstd", row_group_size=131_072)


def _arrow(pa: Any, values: Any) -> Any:
    if isinstance(values, Ragged):
        return pa.LargeListArray.from_arrays(pa.array(values.offsets), pa.array(values.values))
    if isinstance(values, np.ndarray):
        return pa.array(values, from_pandas=values.dtype.kind == "f")
    strings = not all(type(value) is int for value in values)
    return pa.array([str(value) for value in values] if strings else values)


def _write_csv(workload: Workload, path: Path, compressed: bool) -> None:
    columns = {name: _cells(values) for name, values in _columns(workload).items()}
    with _text(path, compressed) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def _cells(values: Any) -> list[Any]:
    """Cells of a column as CSV holds them; floats keep every digit, what is missing is empty."""
    if isinstance(values, Ragged):
        return [" ".join(map(str, values.row(i).tolist())) for i in range(len(values))]
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":
        return ["" if value != value else repr(value) for value in values.tolist()]
    return list(values.tolist() if isinstance(values, np.ndarray) else values)


def _write_mooncake(workload: Workload, path: Path, compressed: bool) -> None:
    """Time stamps in whole milliseconds, as the format has them."""
    if workload.previous is not None:
        raise InputError(f"{workload.name}: sessions cannot be written as mooncake; use csv or parquet")
    milliseconds = np.rint(workload.arrival_time * 1e3).astype(np.int64).tolist()
    prompt, output = workload.num_prompt_tokens.tolist(), workload.num_output_tokens.tolist()
    with _text(path, compressed) as file:
        for i in range(len(workload)):
            row: dict[str, Any] = {"timestamp": milliseconds[i], "input_length": prompt[i], "output_length": output[i]}
            if workload.hash_ids is not None:
                row["hash_ids"] = workload.hash_ids.row(i).tolist()
            file.write(json.dumps(row) + "\n")


def _write_azure(workload: Workload, path: Path, compressed: bool) -> None:
    """Time stamps with seven digits, from midnight of an arbitrary day."""
    if workload.previous is not None:
        raise InputError(f"{workload.name}: sessions cannot be written as azure; use csv or parquet")
    ticks = np.rint(workload.arrival_time * 1e7).astype(np.int64) * 100
    stamps = np.datetime_as_string(_AZURE_EPOCH + ticks.astype("timedelta64[ns]"), unit="ns")
    with _text(path, compressed) as file:
        file.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
        lengths = zip(stamps, workload.num_prompt_tokens.tolist(), workload.num_output_tokens.tolist(), strict=True)
        file.writelines(f"{stamp[:10]} {stamp[11:27]},{prompt},{output}\n" for stamp, prompt, output in lengths)


Writer = Callable[[Workload, Path, bool], None]
_OWN = frozenset({"hash_ids", "output_hash_ids", "priority", "cancel_after", "delay", "max_output_tokens", *IDS, *TEXT})
WRITERS: dict[str, tuple[Writer, frozenset[str]]] = {
    "csv": (_write_csv, _OWN),
    "parquet": (_write_parquet, _OWN),
    "mooncake": (_write_mooncake, frozenset({"hash_ids"})),
    "azure": (_write_azure, cast("frozenset[str]", frozenset())),
}
