"""Reading the files of measured runs: CSV with or without gzip, checked for the columns that a reader needs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.errors import InputError, nearest

if TYPE_CHECKING:
    import pandas as pd


def read_table(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """The CSV file with at least `columns`. `InputError` names the file and what is wrong."""
    import pandas as pd

    if not path.is_file():
        raise InputError(f"{path}: no such file; --data names a folder with the measured runs (blis_training/ ...)")
    try:
        frame = pd.read_csv(path, low_memory=False)
    except (OSError, ValueError, EOFError) as error:  # pandas' parser errors are ValueErrors
        raise InputError(f"{path}: cannot be read as CSV ({str(error).splitlines()[0]})") from None
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise InputError(f"{path}: has no column '{missing[0]}'{nearest(missing[0], map(str, frame.columns))}")
    return frame


def present(value: Any) -> bool:
    """Whether a cell holds something."""
    return value is not None and value == value


def integer(value: Any) -> int | None:
    """A cell as an integer, None for an empty one."""
    return int(value) if present(value) else None
