"""The output directory of a run: every file written beside the target first, then moved into place at once.

Bytes are reproducible: JSON with fixed key order and repr floats, Parquet with zstd, a fixed row-group size and no
metadata but the schema.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import pyarrow as pa

ROW_GROUP_SIZE = 131_072
_MARKS = ("summary.json", "config.yaml", "run.json")


@contextmanager
def output_directory(target: Path) -> Iterator[Path]:
    """A folder to write into that becomes `target` when the block ends without an error, and vanishes otherwise.

    A run that is there already is replaced; other files in it (notes, say) stay. `InputError` when `target` is a file,
    or a folder that has files and is not a run's.
    """
    check_target(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Not under the target's own name: nothing half-written may be taken for a run.
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    except OSError as error:
        raise InputError(f"{target}: cannot be written ({error.strerror})") from None
    folder.chmod(0o777 & ~_umask())
    try:
        yield folder
        _replace(folder, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file; it appears whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8", newline="\n")
    os.replace(temporary, path)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write JSON: keys in the given order, floats as `repr` gives them, NaN refused."""
    write_text(path, json_text(values))


def json_text(values: Mapping[str, Any]) -> str:
    """The text of a JSON file, with a line break at the end."""
    return json.dumps(values, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def write_frame(path: Path, frame: pd.DataFrame) -> None:
    """Write a DataFrame as Parquet, without its index."""
    import pyarrow as pa

    _write_table(path, pa.Table.from_pandas(frame, preserve_index=False))


def write_columns(path: Path, columns: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write equally long arrays as Parquet."""
    import pyarrow as pa

    _write_table(path, pa.table({name: pa.array(column) for name, column in columns.items()}))


def _write_table(path: Path, table: pa.Table) -> None:
    import pyarrow.parquet as pq

    temporary = path.with_name(f".{path.name}.tmp")
    pq.write_table(
        _plain(table),
        temporary,
        compression="zstd",
        row_group_size=ROW_GROUP_SIZE,
        store_schema=False,
    )
    os.replace(temporary, path)


def _plain(table: pa.Table) -> pa.Table:
    """Without the metadata of pandas, and with text where a column has no value at all to tell its type."""
    import pyarrow as pa

    fields = []
    for field in table.schema:
        empty = pa.types.is_null(field.type) or pa.types.is_large_string(field.type)
        fields.append(pa.field(field.name, pa.string() if empty else field.type))
    return table.cast(pa.schema(fields))


def check_target(target: Path) -> None:
    """`InputError` when `target` cannot become the output of a run; asked before a long run, too."""
    if target.exists() and not target.is_dir():
        raise InputError(f"{target}: is a file; --out names a folder")
    if target.is_dir():
        names = {entry.name for entry in target.iterdir()}
        if names and not names.intersection(_MARKS):
            raise InputError(f"{target}: has files but is not the output of a run; give another folder with --out")
    there = next(folder for folder in (target.absolute().parent, *target.absolute().parents) if folder.exists())
    try:
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        raise InputError(f"{target}: cannot be written ({there}: {error.strerror})") from None


def _replace(folder: Path, target: Path) -> None:
    """Move `folder` to `target`. What stood there is set aside first, and is put back if the move fails."""
    if not target.exists():
        os.rename(folder, target)
        return
    _keep_foreign_files(target, folder)
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".old", dir=target.parent))
    os.rename(target, aside / "run")
    try:
        os.rename(folder, target)
    except OSError:
        os.rename(aside / "run", target)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _keep_foreign_files(target: Path, folder: Path) -> None:
    for entry in target.iterdir():
        if entry.name not in OUTPUT_FILES and not (folder / entry.name).exists():
            copy = shutil.copytree if entry.is_dir() else shutil.copy2
            copy(entry, folder / entry.name)


OUTPUT_FILES = (
    "summary.json",
    "run.json",
    "requests.parquet",
    "timeline.parquet",
    "steps.parquet",
    "routing.parquet",
    "config.yaml",
    "trace.json",
    "report.html",
)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
