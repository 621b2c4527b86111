"""What a measurement leaves behind: raw samples as they come, and tables of medians in the form that `fit` reads."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from sim.calibration.measure.bench import Operation
    from sim.calibration.measure.timing import Timed

RAW_COLUMNS = (
    *("pass", "order", "table", "backend", "shape", "cold", "launches", "possible", "repeat", "seconds"),
    "noise_floor",
)
FIXED_COLUMNS: Mapping[str, dict[str, str]] = {
    "gemm": {"dtype": "bfloat16"},
    "attention_decode": {"kv_dtype": "bfloat16"},
    "attention_prefill": {"dtype": "bfloat16", "kv_dtype": "bfloat16"},
    "vidur_mlp_ops": {},
    "steps": {},
}


class RawWriter:
    """Appends every sample to a CSV at once, so that an interrupted measurement keeps what it has."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", newline="")
        self._writer = csv.writer(self._file)
        self._writer.writerow(RAW_COLUMNS)

    def add(
        self, number: int, order: int, operation: Operation, backend: str, timed: Timed, possible: bool, noise: float
    ) -> None:
        """All repeats of one point; `noise` is the spread of the probe so far."""
        shape = " ".join(f"{key}={value}" for key, value in operation.shape.items())
        head = (number, order, operation.table, backend, shape, int(timed.cold), timed.num_launches, int(possible))
        for repeat, seconds in enumerate(timed.seconds):
            self._writer.writerow((*head, repeat, f"{seconds:.6e}", f"{noise:.4f}"))
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_raw(path: Path) -> pd.DataFrame:
    """Raw samples. `InputError` for a file that is none or holds impossible seconds."""
    import pandas as pd

    try:
        frame = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as raw samples ({error})") from None
    missing = [column for column in RAW_COLUMNS if column not in frame]
    if missing:
        raise InputError(f"{path}: not raw samples of `calibrate measure`: column {missing[0]} is missing")
    bad = frame.index[~(frame["seconds"] > 0)]
    if len(bad):
        raise InputError(f"{path}: row {bad[0] + 2}: seconds must be positive (got {frame['seconds'][bad[0]]!r})")
    return frame


def medians(raw: pd.DataFrame) -> pd.DataFrame:
    """One row a point: table, backend, shape, seconds (median over all passes and repeats), spread of the repeats."""
    rows = [_median_row(key, part) for key, part in raw[raw.possible == 1].groupby(["table", "backend", "shape"])]
    import pandas as pd

    return pd.DataFrame(rows, columns=["table", "backend", "shape", "seconds", "spread", "num_samples"])


def _median_row(key: Any, part: pd.DataFrame) -> tuple[Any, ...]:
    low, middle, high = np.quantile(part.seconds.to_numpy(dtype=float), [0.1, 0.5, 0.9])
    return (*key, float(middle), float((high - low) / middle), len(part))


def parse_shape(text: str) -> dict[str, int | str]:
    """The coordinates of a raw row."""
    pairs = (item.split("=", 1) for item in text.split())
    return {key: int(value) if value.lstrip("-").isdigit() else value for key, value in pairs}


def tables_of(points: pd.DataFrame, gpu: str, source: str) -> dict[str, pd.DataFrame]:
    """Tables by name, with the columns of `sim.calibration.tables`; uneven decodes stand in `decode_uneven`."""
    import pandas as pd

    tables: dict[str, pd.DataFrame] = {}
    for name, part in points.groupby("table"):
        shapes = pd.DataFrame([parse_shape(text) for text in part["shape"]])
        frame = shapes.assign(gpu=gpu, backend=part.backend.to_numpy(), source=source)
        frame = frame.assign(time_us=part.seconds.to_numpy() * 1e6, spread=part.spread.to_numpy())
        for column, value in FIXED_COLUMNS[str(name)].items():
            frame[column] = value
        tables[str(name)] = frame
    decode = tables.get("attention_decode")
    if decode is not None and "contexts" in decode:
        uneven = decode["contexts"].notna()
        tables["decode_uneven"] = decode[uneven]
        tables["attention_decode"] = decode[~uneven].drop(columns="contexts")
    return tables


def write_tables(tables: Mapping[str, pd.DataFrame], folder: Path) -> None:
    """Write each table as CSV, each at once."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, frame in tables.items():
        write_text(folder / f"{name}.csv", frame.to_csv(index=False, float_format="%.6g"))


def write_rows(path: Path, rows: Sequence[Any], columns: Iterable[str]) -> None:
    """Write named tuples as CSV at once."""
    lines = [",".join(columns), *(",".join(str(value) for value in row) for row in rows)]
    write_text(path, "\n".join(lines) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file by way of a temporary name."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None
