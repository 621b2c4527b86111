"""Every trace format: recognised by its content, read exactly, and bad rows named by line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim.errors import InputError
from sim.seeds import Seeds
from sim.workload.config import WorkloadConfig
from sim.workload.trace import Trace, load_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
MOONCAKE_ROW = {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]}


def read(path: Path, **options: Any) -> Trace:
    return load_trace(path, WorkloadConfig.model_validate({"trace": str(path), **options}), Seeds(1))


def write(folder: Path, text: str, name: str = "trace") -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


def jsonl(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def columns(trace: Trace) -> tuple[list[float], list[int], list[int]]:
    workload = trace.workload
    return workload.arrival_time.tolist(), workload.num_prompt_tokens.tolist(), workload.num_output_tokens.tolist()


CASES = {
    "azure": AZURE + "2023-11-16 18:17:03.5000000,10,1\n2023-11-16 18:17:04.0000000,20,2\n",
    "burstgpt": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,10,1,11,API log\n5.5,GPT-4,20,2,22,API log\n",
    "vidur": "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,10,1\n0.5,20,2\n",
    "sharegpt-lengths": "source,tokenizer,prompt_len,output_len,arrival_s\na,llama,10,1,3.25\na,llama,20,2,3.75\n",
    "splitwise": "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
    "0,2,0,1,1,10,1\n1,2,0,1.5,1,20,2\n",
    "mooncake": jsonl(
        {"timestamp": 1000, "input_length": 10, "output_length": 1, "hash_ids": [7]},
        {"timestamp": 1500, "input_length": 20, "output_length": 2, "hash_ids": [8]},
    ),
    "llmservingsim": jsonl(
        {"input_toks": 10, "output_toks": 1, "arrival_time_ns": 500_000_000},
        {"input_toks": 20, "output_toks": 2, "arrival_time_ns": 1_000_000_000},
    ),
    "vllm-bench": json.dumps(
        {
            "duration": 2.0,
            "input_lens": [10, 20],
            "output_lens": [1, 2],
            "start_times": [7.25, 7.75],
            "errors": ["", ""],
        },
        indent=1,
    ),
    "table": "arrival_time,num_prompt_tokens,num_output_tokens\n9.0,10,1\n9.5,20,2\n",
}


@pytest.mark.parametrize("format", CASES)
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("packed", [False, True])
def test_every_format_is_recognised_and_starts_at_zero(tmp_path: Path, format: str, ends: str, packed: bool) -> None:
    text = CASES[format].rstrip("\n").replace("\n", ends).encode()  # no final newline, as in Azure's code trace
    path = tmp_path / "file.whatever"
    path.write_bytes(gzip.compress(text) if packed else text)
    trace = read(path)
    assert trace.format == format
    assert columns(trace) == ([0.0, 0.5], [10, 20], [1, 2])
    assert any(format in note for note in trace.workload.notes)


@pytest.mark.parametrize("format", CASES)
def test_limit_stops_early(tmp_path: Path, format: str) -> None:
    assert columns(read(write(tmp_path, CASES[format]), limit=1)) == ([0.0], [10], [1])


@pytest.mark.parametrize(
    ("stamps", "unit"),
    [
        (("2023-11-16 18:17:03.9799600", "2023-11-16 18:17:04.0000001"), "ISO"),
        (("2023-11-16T18:17:03.9799600Z", "2023-11-16T18:17:04.0000001Z"), "ISO"),
        (("1700158623979960000", "1700158624000000100"), "epoch time in ns"),
        (("1700158623.9799600", "1700158624.0000001"), "epoch time in s"),
        (("12.9799600", "13.0000001"), "time in s"),
    ],
)
def test_the_time_base_is_found_and_no_digit_is_lost(tmp_path: Path, stamps: tuple[str, str], unit: str) -> None:
    trace = read(write(tmp_path, AZURE + f"{stamps[0]},5,5\n{stamps[1]},5,5\n"))
    assert trace.workload.arrival_time[1] == pytest.approx(0.0200401, abs=1e-9)
    assert any(unit in note for note in trace.workload.notes)


def test_epoch_microseconds_and_a_given_unit(tmp_path: Path) -> None:
    rows = AZURE + "1700158623000000,5,5\n1700158624500000,5,5\n"
    assert read(write(tmp_path, rows)).workload.arrival_time[1] == 1.5
    assert read(write(tmp_path, AZURE + "1000,5,5\n2500,5,5\n"), time_unit="ms").workload.arrival_time[1] == 1.5


def test_hash_ids_of_64_bits_are_exact(tmp_path: Path) -> None:
    big = [2**63 - 1, 2**62 + 1, 2**62 + 2]
    trace = read(write(tmp_path, jsonl({**MOONCAKE_ROW, "hash_ids": big})))
    assert trace.workload.hash_ids is not None
    assert trace.workload.hash_ids.row(0).tolist() == big


def test_unsigned_hash_ids_stay_different(tmp_path: Path) -> None:
    ids = [2**64 - 1, 2**63, 5]
    trace = read(write(tmp_path, jsonl({**MOONCAKE_ROW, "hash_ids": ids})))
    assert trace.workload.hash_ids is not None
    assert len(set(trace.workload.hash_ids.row(0).tolist())) == 3


def test_any_hash_block_size_can_be_given(tmp_path: Path) -> None:
    path = write(tmp_path, jsonl({"timestamp": 0, "input_length": 33, "output_length": 4, "hash_ids": [1, 2, 3]}))
    assert read(path, hash_block_size=16).workload.hash_block_size == 16
    with pytest.raises(
        InputError, match=r"trace:1: hash_ids: expected .* = 1 ids, got 3; hash_block_size: 16 would fit"
    ):
        read(path)


def test_turns_with_delays_follow_their_session(tmp_path: Path) -> None:
    """AIPerf style: input_length of a later turn is what it adds, delay in ms."""
    rows = [
        {"session_id": "a", "timestamp": 0, "input_length": 58, "output_length": 6},
        {"session_id": "a", "input_length": 10, "output_length": 7, "delay": 2000},
        {"session_id": "b", "timestamp": 500, "input_length": 5, "output_length": 8},
    ]
    workload = read(write(tmp_path, jsonl(*rows))).workload
    assert workload.session_id == ["a", "b", "a"]
    assert workload.previous is not None
    assert workload.previous.tolist() == [-1, -1, 0]
    assert workload.num_prompt_tokens.tolist() == [58, 5, 74]
    assert workload.delay is not None
    assert workload.delay.tolist() == [0, 0, 2.0]
    assert workload.hash_ids is not None
    assert workload.output_hash_ids is not None
    known = [*workload.hash_ids.row(0)[:3], *workload.output_hash_ids.row(0)]
    assert workload.hash_ids.row(2)[:4].tolist() == known


def test_token_ids_give_the_prefixes(tmp_path: Path) -> None:
    one = {
        "input_toks": 4,
        "output_toks": 3,
        "arrival_time_ns": 0,
        "input_tok_ids": [1, 2, 3, 4],
        "output_tok_ids": [5, 6, 7],
    }
    two = {
        "input_toks": 5,
        "output_toks": 1,
        "arrival_time_ns": 9,
        "input_tok_ids": [1, 2, 3, 4, 9],
        "output_tok_ids": [5],
    }
    three = {
        "input_toks": 7,
        "output_toks": 1,
        "arrival_time_ns": 9,
        "input_tok_ids": [1, 2, 3, 4, 5, 6, 7],
        "output_tok_ids": [5],
    }
    workload = read(write(tmp_path, jsonl(one, two, three)), hash_block_size=2).workload
    ids, more = workload.hash_ids, workload.output_hash_ids
    assert ids is not None
    assert more is not None
    assert ids.row(0).tolist() == ids.row(1)[:2].tolist()
    assert ids.row(1)[2] != ids.row(2)[2]
    assert more.row(0).tolist() == ids.row(2)[2:3].tolist()


def test_agentic_lines_become_sessions(tmp_path: Path) -> None:
    calls = [
        {"input_toks": 100, "output_toks": 10, "tool_duration_ns": 2_000_000_000},
        {"input_toks": 150, "output_toks": 20, "tool_duration_ns": 0},
    ]
    text = jsonl(
        {"arrival_time_ns": 5, "sub_requests": calls}, {"arrival_time_ns": 1_000_000_005, "sub_requests": calls[:1]}
    )
    workload = read(write(tmp_path, text)).workload
    assert workload.num_prompt_tokens.tolist() == [100, 100, 150]
    assert workload.previous is not None
    assert workload.previous.tolist() == [-1, -1, 0]
    assert workload.delay is not None
    assert workload.delay[2] == 2.0


def test_sharegpt_text_is_counted_by_characters(tmp_path: Path) -> None:
    conversation = {
        "id": "x",
        "conversations": [
            {"from": "human", "value": "a" * 40},
            {"from": "gpt", "value": "b" * 20},
            {"from": "human", "value": "c" * 8},
            {"from": "gpt", "value": "d" * 4},
            {"from": "human", "value": "never answered"},
        ],
    }
    path = write(tmp_path, json.dumps([conversation]))
    workload = read(path).workload
    assert workload.num_prompt_tokens.tolist() == [10, 17]  # 40 / 4; then 10 + 5 + 2
    assert workload.num_output_tokens.tolist() == [5, 1]
    assert read(path, chars_per_token=2.0).workload.num_output_tokens.tolist() == [10, 2]
    assert not read(path).has_times


def test_failed_requests_of_a_benchmark_are_counted(tmp_path: Path) -> None:
    result = {
        "input_lens": [5, 6],
        "output_lens": [1, 9],
        "start_times": [1.0, 2.0],
        "errors": ["", "timeout"],
        "max_concurrency": 8,
    }
    trace = read(write(tmp_path, json.dumps(result)))
    assert (trace.num_failed_rows, trace.workload.num_prompt_tokens.tolist()) == (1, [5])
    assert "max_concurrency 8" in trace.workload.warnings[0]


def test_a_benchmark_without_details_says_what_is_missing(tmp_path: Path) -> None:
    text = json.dumps({"total_input_tokens": 5, "request_throughput": 2.0})
    with pytest.raises(InputError, match="--save-detailed"):
        read(write(tmp_path, text))


def test_any_table_is_read_by_naming_its_columns(tmp_path: Path) -> None:
    path = write(tmp_path, "suite,at,in,out\na,0,5,1\nb,1,6,2\na,2500,7,3\n")
    names = {"num_prompt_tokens": "in", "num_output_tokens": "out", "arrival_time": "at"}
    trace = read(path, columns=names, where={"suite": "a"}, time_unit="ms")
    assert columns(trace) == ([0.0, 2.5], [5, 7], [1, 3])
    with pytest.raises(InputError, match="no column 'suit' \\(did you mean 'suite'"):
        read(path, columns=names, where={"suit": "a"})


def servegen(folder: Path, rows: str, lengths: dict[str, Any]) -> Path:
    write(folder, json.dumps(lengths), "chunk-3-dataset.json")
    return write(folder, rows, "chunk-3-trace.csv")


def test_servegen_windows_have_their_rates_and_lengths(tmp_path: Path) -> None:
    lengths = {
        "0": {"input_tokens": "{}", "output_tokens": "{}"},
        "600": {"input_tokens": "{7: 0.25, 9: 0.75}", "output_tokens": "{3: 1.0}"},
    }
    path = servegen(tmp_path, "0,2.0,1.0,Gamma,1.0,0.5\n600,0,0,,0,0\n1200,0.5,3.0,Weibull,0.5,0.5\n", lengths)
    workload = read(path).workload
    counts = np.histogram(workload.arrival_time, bins=[0, 599, 1190, 1801])[0]
    assert counts.tolist() == [pytest.approx(1200, abs=12), pytest.approx(0, abs=12), 300]
    assert np.mean(workload.num_prompt_tokens == 9) == pytest.approx(0.75, abs=0.04)
    assert set(workload.num_output_tokens) == {3}
    assert len(read(path, limit=100).workload) == 100
    assert len(read(path, start=1200).workload) == 300
    assert len(read(tmp_path).workload) == 1500  # the folder: all its clients


def test_servegen_without_its_lengths_names_the_file_it_needs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"chunk-3-dataset\.json"):
        read(write(tmp_path, "0,2.0,1.0,Gamma,1.0,0.5\n", "chunk-3-trace.csv"))


BAD = [
    ("", r"trace: is empty"),
    ("\n \n", r"trace: is empty"),
    (AZURE, r"holds no requests"),
    ("a,b,c\n1,2,3\n", r"format not recognised \(a csv file with: a, b, c\); known formats: table, azure"),
    (AZURE + "2023-11-16 18:17:03.9,4808\n", r"trace:2: expected 3 fields as in the header, got 2"),
    (AZURE + "2023-11-16 18:17:03.9,4808,1\n\n2023-11-16 18:17:04.9,x,1\n", r"trace:4: contexttokens: .* got 'x'"),
    (AZURE + "2023-11-16 18:17:03.9,-5,1\n", r"trace:2: contexttokens: expected an integer >= 0, got '-5'"),
    (AZURE + "2023-11-16 18:17:03.9,5,1.5\n", r"trace:2: generatedtokens: .* got '1.5'"),
    (AZURE + "2023-11-16 18:17:03.9,5,nan\n", r"trace:2: generatedtokens: .* got 'nan'"),
    (AZURE + "2023-11-16 18:17:03.9,5,\n", r"trace:2: generatedtokens: .* got nothing"),
    (AZURE + "2023-11-16 18:17:03.9,5,1\n16.11.2023,5,1\n", r"trace:3: timestamp: expected a time stamp like"),
    (AZURE + "2023-11-16 18:17:03.9,5,1\n2023-13-16 18:17:03.9,5,1\n", r"trace:3: timestamp: expected a time stamp"),
    (AZURE + "5,5,1\nnow,5,1\n", r"trace:3: timestamp: expected a number >= 0, got 'now'"),
    (AZURE + '5,5,"1\n', r"is not CSV"),
    (jsonl(MOONCAKE_ROW) + "{broken\n", r"trace:2: is not a JSON object"),
    (jsonl(MOONCAKE_ROW) + "[1]\n", r"trace:2: expected a JSON object"),
    (jsonl(MOONCAKE_ROW, {"timestamp": 1, "input_length": 3}), r"trace:2: missing key 'output_length'"),
    (jsonl({**MOONCAKE_ROW, "input_length": -3}), r"trace:1: input_length: expected an integer >= 0, got -3"),
    (jsonl({**MOONCAKE_ROW, "input_length": True}), r"trace:1: input_length: .* got True"),
    (jsonl({**MOONCAKE_ROW, "hash_ids": [1, 2]}), r"trace:1: hash_ids: .*ceil\(1100 / 512\) = 3 ids, got 2"),
    (jsonl({**MOONCAKE_ROW, "hash_ids": [1, 2, 3.5]}), r"trace:1: hash_ids: expected 64-bit integers, got 3.5"),
    (jsonl({**MOONCAKE_ROW, "hash_ids": [1, 2, 2**64]}), r"trace:1: hash_ids: expected 64-bit integers"),
    (jsonl(MOONCAKE_ROW, {**MOONCAKE_ROW, "hash_ids": None}), r"trace:2: hash_ids: expected a list of integers"),
    (jsonl({**MOONCAKE_ROW, "timestamp": "soon"}), r"trace:1: timestamp: expected a time in ms, got 'soon'"),
    ("num_prompt_tokens,num_output_tokens,max_output_tokens\n5,9,8\n", r"trace:2: max_output_tokens 8 is below"),
]


@pytest.mark.parametrize(("text", "message"), BAD, ids=range(len(BAD)))
def test_a_bad_file_is_refused_with_file_line_and_expectation(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(write(tmp_path, text))


def test_missing_columns_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"trace:1: missing column generatedtokens; found: timestamp, contexttokens"):
        read(write(tmp_path, "TIMESTAMP,ContextTokens\n1,2\n"), format="azure")


def test_an_unknown_format_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"unknown trace format 'azur' \(did you mean 'azure'\?\)"):
        read(write(tmp_path, CASES["azure"]), format="azur")


def test_text_that_is_not_utf8_is_named_by_line(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(CASES["azure"].encode() + b"2023-11-16 18:17:05.0,5,\xff\n")
    with pytest.raises(InputError, match="trace:4: is not UTF-8 text"):
        read(path)


def test_cut_and_foreign_compression_is_said(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(CASES["azure"].encode() * 50)[:-20])
    with pytest.raises(InputError, match="broken gzip file"):
        read(path)
    path.write_bytes(b"\x28\xb5\x2f\xfd1234")
    with pytest.raises(InputError, match="zstd-compressed"):
        read(path)


def test_a_missing_file_suggests_its_neighbour(tmp_path: Path) -> None:
    write(tmp_path, CASES["azure"], "azure_conv.csv")
    with pytest.raises(InputError, match=r"no such file \(did you mean 'azure_conv\.csv'"):
        read(tmp_path / "azure_con.csv")


def test_numbers_written_as_floats_are_taken_where_they_are_whole(tmp_path: Path) -> None:
    assert read(write(tmp_path, AZURE + "1,5.0,3.0\n")).workload.num_prompt_tokens.tolist() == [5]


def test_a_byte_order_mark_and_blanks_in_the_header_do_no_harm(tmp_path: Path) -> None:
    path = write(tmp_path, "\ufeffTIMESTAMP, ContextTokens ,GeneratedTokens\n1,5,3\n")
    assert read(path).format == "azure"
