"""`servesim trace`: output, JSON, exit codes, files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sim.cli.main import main

ROWS = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:17:{i // 2:02d}.{i % 2 * 5}000000,{100 + i},{10 + i % 7}\n" for i in range(100)
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(ROWS)
    return path


def run(*arguments: object) -> int:
    """The exit code of `servesim trace ...`."""
    with pytest.raises(SystemExit) as leaving:
        main(["trace", *map(str, arguments)])
    return int(leaving.value.code or 0)


def run_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    assert run(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_describe_prints_a_table_and_notes(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("describe", trace) == 0
    out = capsys.readouterr().out
    assert "trace.csv: 100 requests" in out
    assert "2.00 requests per second" in out
    assert "note: format azure" in out


def test_describe_as_json(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    described = run_json(capsys, "describe", trace, "--limit", 50, "--set", "rate_scale=2")
    assert described["num_requests"] == 50
    assert described["arrivals"]["rate"] == pytest.approx(4.0)
    assert described["prefix"] is None


def test_check_says_ok_or_names_the_line(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_json(capsys, "check", trace)["ok"] is True
    trace.write_text(ROWS + "2023-11-16 18:19:00.0000000,5,many\n")
    assert run("check", trace) == 2
    captured = capsys.readouterr()
    assert captured.err.strip().endswith("trace.csv:102: generatedtokens: expected an integer >= 0, got 'many'")
    assert "Traceback" not in captured.err


@pytest.mark.parametrize("name", ["out.csv", "out.parquet", "out.jsonl", "out.csv.gz"])
def test_convert_writes_what_describe_reads_alike(trace: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    before = run_json(capsys, "describe", trace)
    written = run_json(capsys, "convert", trace, trace.parent / name)
    assert written["num_requests"] == 100
    after = run_json(capsys, "describe", trace.parent / name)
    for key in ("num_requests", "prompt_tokens", "output_tokens", "arrivals"):
        assert after[key] == before[key]


def test_synthesize_in_two_steps_gives_the_bytes_of_one(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = trace.parent
    assert run("synthesize", trace, "-o", folder / "a.csv", "-n", 60, "--seed", 4, "--to", "azure") == 0
    assert run("synthesize", trace, "--statistics", folder / "s.json") == 0
    assert run("synthesize", folder / "s.json", "-o", folder / "b.csv", "-n", 60, "--seed", 4, "--to", "azure") == 0
    assert (folder / "a.csv").read_bytes() == (folder / "b.csv").read_bytes()
    capsys.readouterr()
    assert run_json(capsys, "describe", folder / "a.csv")["num_requests"] == 60


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--set", "failed_row=drop"), "did you mean 'failed_rows'?"),
        (("--set", "limit=[1"), "the value is not YAML"),
        (("--set", "limit=0"), "workload.limit: Input should be greater than or equal to 1 (got 0)"),
        (("--format", "azur"), "unknown trace format 'azur' (did you mean 'azure'?)"),
    ],
)
def test_wrong_options_are_explained(
    trace: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert run("describe", trace, *arguments) == 2
    assert message in capsys.readouterr().err


def test_synthesize_needs_something_to_write(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("synthesize", trace) == 2
    assert "--out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "source", "arguments"),
    [
        ("azure_chat_like.csv", "azure_conv_2023", ("-n", 2000, "--to", "azure")),
        ("azure_code_like.csv", "azure_code_2023", ("-n", 1000, "--to", "azure")),
        ("mooncake_like.jsonl", "mooncake_conversation", ("-n", 600)),
    ],
)
def test_shipped_traces_are_what_their_statistics_give(
    repository: Path, tmp_path: Path, name: str, source: str, arguments: tuple[object, ...]
) -> None:
    """The commands of traces/README.md give the files that ship; columns and block ids to the byte."""
    statistics = repository / f"traces/statistics/{source}.json"
    assert run("synthesize", statistics, *arguments, "--seed", 1, "-o", tmp_path / name) == 0
    assert (tmp_path / name).read_text() == (repository / "traces" / name).read_text()
