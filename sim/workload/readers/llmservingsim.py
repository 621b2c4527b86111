"""LLMServingSim workloads (JSONL): input_toks, output_toks, arrival_time_ns; token ids and sub_requests where present.

Token ids give real prefixes (hashed in blocks of 16 unless told otherwise). An agentic line holds `sub_requests`
[{input_toks, output_toks, tool_duration_ns}]: each comes tool_duration_ns after the one before it ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sim.workload.base import Ragged
from sim.workload.prefix import TokenChain, ragged
from sim.workload.raw import Chunk, Facts, Reader, ReadOptions
from sim.workload.textfile import Head, Records, Source, fields, integers, numbers, read_jsonl
from sim.workload.timebase import TimeBase


def _detect(head: Head) -> bool:
    return (
        head.kind == "jsonl" and "arrival_time_ns" in head.names and bool({"input_toks", "sub_requests"} & head.names)
    )


def _read(source: Source, options: ReadOptions, facts: Facts) -> Iterator[Chunk]:
    clock = TimeBase(source, facts, "arrival_time_ns", "ns", "ns")
    facts.hash_block_size = options.hash_block_size or 16
    chain = TokenChain(facts.hash_block_size)
    first_session = 0
    for records in read_jsonl(source, options.chunk_rows()):
        arrival = clock.seconds(fields(source, records, "arrival_time_ns"), records.line)
        flat, after, session = _flatten(source, records, arrival.tolist(), first_session)
        first_session += len(records.rows)
        yield _chunk(source, chain, flat, after, session)


def _flatten(
    source: Source, records: Records, arrival: list[float], first_session: int
) -> tuple[Records, list[tuple[float, Any]], list[int]]:
    """One record a request; beside it (arrival or nan, duration of the tool call before it in ns) and its session."""
    flat, after, sessions = Records([], []), [], []
    for i, (line, row) in enumerate(zip(records.line, records.rows, strict=True)):
        calls = row.get("sub_requests", [row])
        if not isinstance(calls, list) or not calls or not all(isinstance(call, dict) for call in calls):
            raise source.error(line, "sub_requests: expected a list of objects with input_toks and output_toks")
        pause: Any = None
        for turn, call in enumerate(calls):
            flat.line.append(line)
            flat.rows.append(call)
            after.append((arrival[i] if turn == 0 else np.nan, pause))
            sessions.append(first_session + i)
            pause = call.get("tool_duration_ns", 0)
    return flat, after, sessions


def _chunk(
    source: Source, chain: TokenChain, records: Records, after: list[tuple[float, Any]], sessions: list[int]
) -> Chunk:
    line = np.array(records.line, dtype=np.int64)
    chunk = Chunk(
        line=line,
        num_prompt_tokens=integers(source, "input_toks", fields(source, records, "input_toks"), line),
        num_output_tokens=integers(source, "output_toks", fields(source, records, "output_toks"), line),
        arrival_time=np.array([arrival for arrival, _ in after]),
    )
    if any(np.isnan(arrival) for arrival, _ in after):
        chunk.delay = numbers(source, "tool_duration_ns", [pause for _, pause in after], line) / 1e9
        chunk.columns["session_id"] = list(sessions)
    if all("input_tok_ids" in row for row in records.rows):
        chunk.hash_ids, chunk.output_hash_ids = _token_hashes(source, chain, records)
    return chunk


def _token_hashes(source: Source, chain: TokenChain, records: Records) -> tuple[Ragged, Ragged]:
    prompts, outputs = [], []
    for line, row in zip(records.line, records.rows, strict=True):
        prompt, output = row["input_tok_ids"], row.get("output_tok_ids", [])
        for name, ids, expected in (("input_tok_ids", prompt, row["input_toks"]),):
            if not isinstance(ids, list) or len(ids) != expected:
                raise source.error(line, f"{name}: expected a list of input_toks = {expected} token ids")
        ids, more = chain.prompt_and_output(prompt, output[: row["output_toks"]])
        prompts.append(ids)
        outputs.append(more)
    return ragged(prompts), ragged(outputs)


LLMSERVINGSIM = Reader("LLMServingSim workload (JSONL)", _detect, _read)
