"""Written traces come back as they were; files appear whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim.errors import InputError
from sim.seeds import Seeds
from sim.workload.base import Workload
from sim.workload.config import WorkloadConfig, build_workload
from sim.workload.convert import format_of, write_workload
from sim.workload.trace import load_trace

GENERATED: dict[str, Any] = {
    "num_requests": 200,
    "arrivals": {"process": "constant", "rate": 3.0},
    "prompt_tokens": {"distribution": "uniform", "min": 5, "max": 900},
    "output_tokens": {"distribution": "uniform", "min": 1, "max": 90},
}


def build(**more: Any) -> Workload:
    return build_workload(WorkloadConfig.model_validate({**GENERATED, **more}), Seeds(1), Path())


def read(path: Path, **options: Any) -> Workload:
    return load_trace(path, WorkloadConfig.model_validate({"trace": str(path), **options}), Seeds(1)).workload


def assert_same(one: Workload, two: Workload) -> None:
    for name in ("arrival_time", "num_prompt_tokens", "num_output_tokens", "max_output_tokens", "priority", "previous"):
        first, second = getattr(one, name), getattr(two, name)
        assert (first is None) == (second is None), name
        assert first is None or np.array_equal(first, second), name
    for name in ("tenant", "request_class"):
        assert getattr(one, name) == getattr(two, name)
    for name in ("hash_ids", "output_hash_ids"):
        first, second = getattr(one, name), getattr(two, name)
        assert (first is None) == (second is None), name
        assert first is None or np.array_equal(first.values, second.values), name
    assert one.hash_ids is None or one.hash_block_size == two.hash_block_size


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"tenants": {"a": 1, "b": 1}, "classes": {"x": 1}, "priorities": {3: 1, -1: 1}},
        {"max_output_tokens": {"factor": 1.7}},
        {"prefix": {"groups": 3, "tokens": 64}},
        {"sessions": {"turns": 3, "think_time": {"distribution": "exponential", "mean": 2}}},
    ],
    ids=["plain", "labels", "declared", "prefix", "sessions"],
)
def test_our_own_formats_lose_nothing(tmp_path: Path, name: str, more: dict[str, Any]) -> None:
    """To the last bit, session links and block ids included."""
    workload = build(**more)
    assert write_workload(workload, tmp_path / name, format_of(tmp_path / name)) == []
    assert_same(workload, read(tmp_path / name))


def test_cancellations_come_back(tmp_path: Path) -> None:
    workload = build(cancel_after={"fraction": 0.5, "after": 2.5})
    write_workload(workload, tmp_path / "t.csv", "csv")
    back = read(tmp_path / "t.csv").cancel_after
    assert back is not None
    assert np.array_equal(np.nan_to_num(back, nan=np.inf), workload.cancel_after)  # type: ignore[arg-type]


def test_mooncake_keeps_ids_and_milliseconds(tmp_path: Path) -> None:
    workload = build(prefix={"groups": 2, "tokens": 512})
    assert write_workload(workload, tmp_path / "t.jsonl", "mooncake") == []
    back = read(tmp_path / "t.jsonl")
    assert back.hash_ids is not None
    assert np.array_equal(back.hash_ids.values, workload.hash_ids.values)  # type: ignore[union-attr]
    assert back.arrival_time == pytest.approx(workload.arrival_time, abs=0.0006)


def test_azure_keeps_a_ten_millionth_of_a_second_and_names_what_it_cannot_hold(tmp_path: Path) -> None:
    workload = build(prefix={"tokens": 64}, tenants={"a": 1})
    assert write_workload(workload, tmp_path / "t.csv", "azure") == ["hash_ids", "tenant"]
    back = read(tmp_path / "t.csv")
    assert back.arrival_time == pytest.approx(workload.arrival_time, abs=1e-7)
    assert np.array_equal(back.num_output_tokens, workload.num_output_tokens)


@pytest.mark.parametrize("name", ["t.csv.gz", "t.parquet"])
def test_equal_workloads_give_equal_bytes(tmp_path: Path, name: str) -> None:
    for folder in ("one", "two"):
        write_workload(build(), tmp_path / folder / name, format_of(Path(name)))
    assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("old")
    sessions = build(sessions={"turns": 2, "think_time": 1})
    with pytest.raises(InputError, match="sessions cannot be written as mooncake"):
        write_workload(sessions, path, "mooncake")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["t.jsonl"]


def test_unknown_formats_and_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown output format 'cvs' \\(did you mean 'csv'"):
        write_workload(build(), tmp_path / "t", "cvs")
    with pytest.raises(InputError, match="cannot tell the format from the name"):
        format_of(Path("trace.txt"))
