"""requests.parquet: columns, parts of a latency, gaps between deliveries."""

from __future__ import annotations

import time
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest

from sim.deliveries import pooled_gaps, request_gaps
from sim.measured import PARTS
from sim.metrics import requests_frame
from sim.result import DecodeSpans
from tests.unit.fake_run import fake_run

NAMES = """
request_id session_id tenant request_class priority adapter model status reject_reason arrival_time
admission_time first_scheduled_time first_token_time finish_time num_prompt_tokens num_output_tokens
max_output_tokens num_cached_tokens num_preemptions num_recomputed_tokens prefill_replica decode_replica ttft
tpot e2e max_itl queueing_delay admission_delay waiting_duration prefill_duration transfer_duration
decode_duration preempted_duration client_latency interference_duration
"""
COLUMNS = NAMES.split()
CLIENT = SimpleNamespace(base_latency=0.0123, latency_per_running_sequence=0.00007)


@pytest.fixture(params=range(5), name="run")
def _run(request):
    return fake_run(request.param, client=CLIENT)


def frame_of(run):
    return requests_frame(run.result, run.workload, run.config)


def test_the_columns_are_those_of_the_contract_in_its_order(run):
    assert list(frame_of(run).columns) == COLUMNS


def test_parts_add_up_to_e2e_exactly(run):
    frame = frame_of(run)
    done = frame[frame.status == "finished"]
    assert len(done) > 10
    assert (sum(done[part] for part in PARTS) == done.e2e).all()


def test_parts_of_every_ended_request_add_up_to_its_time_in_the_system(run):
    frame = frame_of(run)
    assert set(frame.status) == {"finished", "rejected", "cancelled", "timed_out"}
    total = sum(frame[part] for part in PARTS)
    assert (total == frame.finish_time - frame.arrival_time + frame.client_latency).all()
    assert (frame[list(PARTS)] >= 0).all().all()


def test_parts_before_the_first_token_add_up_to_ttft_exactly(run):
    frame = frame_of(run)
    before = run.result.requests["preempted_before_first_token"]
    parts = ["admission_delay", "waiting_duration", "prefill_duration", "client_latency"]
    came = frame.first_token_time.notna()
    assert ((sum(frame[part] for part in parts) + before)[came] == frame.ttft[came]).all()


def test_latencies_agree_with_the_listed_tokens(run):
    frame = frame_of(run)
    for row, tokens in enumerate(run.tokens):
        latency = frame.client_latency[row]
        assert frame.num_output_tokens[row] == len(tokens)
        if not tokens:
            assert np.isnan(frame.ttft[row])
            continue
        assert frame.ttft[row] == tokens[0] - frame.arrival_time[row] + latency
        assert latency == pytest.approx(CLIENT.base_latency + CLIENT.latency_per_running_sequence * 4.5, abs=4e-4)
        if frame.status[row] == "finished":
            assert frame.e2e[row] == tokens[-1] - frame.arrival_time[row] + latency
        if frame.status[row] == "finished" and len(tokens) > 1:
            assert frame.tpot[row] == (tokens[-1] - tokens[0]) / (len(tokens) - 1)
        else:
            assert np.isnan(frame.tpot[row])


def test_the_largest_gap_of_each_request_is_that_of_its_listed_tokens(run):
    frame = frame_of(run)
    for row, tokens in enumerate(run.tokens):
        if len(tokens) > 1:
            assert frame.max_itl[row] == np.diff(tokens).max()
        else:
            assert np.isnan(frame.max_itl[row])


def test_the_mean_gap_of_each_request_is_that_of_its_listed_tokens(run):
    gaps = request_gaps(run.result.requests["first_token_time"], run.result.spans)
    expected = [np.nan if len(t) < 2 else (t[-1] - t[0]) / (len(t) - 1) for t in run.tokens]
    assert np.array_equal(gaps.mean_itl, expected, equal_nan=True)


def test_pooled_gaps_are_those_of_the_listed_tokens_of_the_counted_requests(run):
    counted = np.arange(len(run.tokens)) % 3 > 0
    gaps = request_gaps(run.result.requests["first_token_time"], run.result.spans)
    values, multiplicities = pooled_gaps(gaps, run.result.spans, counted)
    expected = np.sort(np.concatenate([np.diff(t) for t, c in zip(run.tokens, counted, strict=True) if c and t]))
    assert np.array_equal(np.repeat(values, multiplicities), expected)


def test_a_run_without_decodes_has_no_gaps():
    nothing = np.empty(0, dtype=np.int64)
    spans = DecodeSpans(np.empty(0), np.empty(0), nothing, nothing, nothing, nothing, np.empty(0))
    gaps = request_gaps(np.array([1.0, np.nan]), [spans])
    assert np.isnan(gaps.max_itl).all()
    assert len(pooled_gaps(gaps, [spans], np.array([True, True]))[0]) == 0


def test_ids_are_integers_when_all_are_and_texts_otherwise():
    run = fake_run(1, num_requests=3)
    object.__setattr__(run.workload, "request_id", [7, 8, 9])
    assert frame_of(run).request_id.tolist() == [7, 8, 9]
    object.__setattr__(run.workload, "request_id", [7, "b", 9])
    assert frame_of(run).request_id.tolist() == ["7", "b", "9"]


def test_the_model_of_the_only_pool_stands_in_the_table():
    assert set(frame_of(fake_run(1)).model) == {"llama-3.1-8b"}


def test_a_million_requests_of_256_tokens_take_seconds_and_little_memory():
    """Cohort of about 100: each of a million requests decodes 256 of 2.6 million steps."""
    rng = np.random.default_rng(0)
    size, length = 1_000_000, 256
    ends = np.cumsum(np.rint(rng.uniform(0.01, 0.03, 2_600_000) * 2**30) / 2**30)
    first = np.sort(rng.integers(1, len(ends) - length, size))
    nothing = np.empty(0, dtype=np.int64)
    spans = DecodeSpans(ends, ends, np.arange(size), first, first + length - 1, nothing, np.empty(0))
    first_token = ends[first - 1]
    tracemalloc.start()
    began = time.perf_counter()
    gaps = request_gaps(first_token, [spans])
    pooled_gaps(gaps, [spans], np.ones(size, dtype=bool))
    seconds, peak = time.perf_counter() - began, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert gaps.max_itl[5] == np.diff(np.append(first_token[5], ends[first[5] : first[5] + length])).max()
    assert seconds < 10  # 1 to 2 s on a quiet core
    assert peak < 500e6
