"""The output directory: atomic, reproducible, and careful with what is there already."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from sim.errors import InputError
from sim.output import check_target, output_directory, write_columns, write_frame, write_json, write_text

FRAME = pd.DataFrame(
    {
        "request_id": [0, 1, 2],
        "ttft": [0.1, math.nan, 0.3],
        "status": ["finished", "rejected", "finished"],
        "tenant": [None, None, None],
        "reject_reason": [None, "full", None],
    }
)


def test_a_directory_appears_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "out" / "run"
    with output_directory(target) as folder:
        write_json(folder / "summary.json", {"a": 1})
        assert not target.exists()
    assert [path.name for path in target.iterdir()] == ["summary.json"]
    assert [path.name for path in target.parent.iterdir()] == ["run"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_nothing_is_left_of_a_run_that_failed(tmp_path: Path, error: type[BaseException]) -> None:
    target = tmp_path / "run"
    with pytest.raises(error):
        _fail_half_way(target, error)
    assert list(tmp_path.iterdir()) == []


def _fail_half_way(target: Path, error: type[BaseException]) -> None:
    with output_directory(target) as folder:
        write_json(folder / "summary.json", {"a": 2})
        raise error


def test_a_failed_run_leaves_the_earlier_one(tmp_path: Path) -> None:
    target = tmp_path / "run"
    with output_directory(target) as folder:
        write_json(folder / "summary.json", {"a": 1})
    with pytest.raises(RuntimeError):
        _fail_half_way(target, RuntimeError)
    assert json.loads((target / "summary.json").read_text()) == {"a": 1}


def test_a_run_is_replaced_but_other_files_in_it_stay(tmp_path: Path) -> None:
    target = tmp_path / "run"
    with output_directory(target) as folder:
        write_json(folder / "summary.json", {"a": 1})
        write_text(folder / "report.html", "old")
    (target / "notes").mkdir()
    (target / "notes" / "mine.txt").write_text("keep")
    with output_directory(target) as folder:
        write_json(folder / "summary.json", {"a": 2})
    assert json.loads((target / "summary.json").read_text()) == {"a": 2}
    assert (target / "notes" / "mine.txt").read_text() == "keep"
    assert not (target / "report.html").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_folder_that_is_not_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="is not the output of a run"):
        check_target(tmp_path)
    with pytest.raises(InputError, match="is a file"):
        check_target(tmp_path / "thesis.tex")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"), output_directory(tmp_path / "file" / "run"):
        pass


def test_json_refuses_nan_and_keeps_every_bit_of_a_float(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": 0.1 + 0.2})
    assert json.loads((tmp_path / "a.json").read_text())["x"] == 0.1 + 0.2
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "b.json", {"x": math.nan})


def test_the_same_frame_gives_the_same_bytes(tmp_path: Path) -> None:
    write_frame(tmp_path / "a.parquet", FRAME)
    write_frame(tmp_path / "b.parquet", FRAME.set_index(pd.Index([9, 8, 7])).copy())
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_a_frame_is_read_back_with_nulls_and_text_columns(tmp_path: Path) -> None:
    write_frame(tmp_path / "a.parquet", FRAME)
    table = pq.read_table(tmp_path / "a.parquet")
    assert table.column_names == list(FRAME.columns)
    assert {str(table.schema.field(name).type) for name in ("status", "tenant", "reject_reason")} == {"string"}
    assert table.schema.metadata is None
    assert table["tenant"].null_count == 3
    assert table["reject_reason"].to_pylist() == [None, "full", None]


def test_arrays_are_written_in_row_groups_of_a_fixed_size(tmp_path: Path) -> None:
    columns = {"time": np.arange(300_000, dtype=np.float64), "waiting": np.zeros(300_000, dtype=np.int64)}
    write_columns(tmp_path / "a.parquet", columns)
    file = pq.ParquetFile(tmp_path / "a.parquet")
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [131_072, 131_072, 37_856]
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    assert np.array_equal(file.read()["time"].to_numpy(), columns["time"])
