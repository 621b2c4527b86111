"""summary.json: definitions of contract.md against token-by-token arithmetic, nulls with reasons, warm-up, groups."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from sim.metrics import measure, requests_frame, summarize
from tests.unit.fake_run import FakeRun, fake_run

NAMES = """
num_requests num_finished num_rejected num_cancelled num_timed_out num_failed num_unservable num_prompt_tokens
num_output_tokens duration ttft tpot itl itl_request_mean e2e queueing_delay request_throughput
output_token_throughput total_token_throughput goodput slo_attainment num_preemptions num_recomputed_tokens
num_steps kv_cache prefix_cache replicas cost stability warnings versions
"""
KEYS = NAMES.split()


def summary_of(run: FakeRun):
    return summarize(run.result, run.workload, run.config)


def finished_rows(run: FakeRun, skip: int = 0):
    return [row for row in range(skip, len(run.tokens)) if run.result.requests["status"][row] == 1]


@pytest.fixture(params=range(3), name="run")
def _run(request):
    return fake_run(request.param)


def test_every_key_of_the_contract_is_there(run):
    summary = summary_of(run)
    assert [key for key in KEYS if key not in summary] == []
    assert set(summary["kv_cache"]) >= {
        "num_blocks",
        "block_size",
        "mean_usage",
        "peak_usage",
        "token_share",
        "reserved_share",
        "internal_share",
        "external_share",
    }
    assert set(summary["prefix_cache"]) >= {
        "enabled",
        "num_lookup_tokens",
        "num_hit_tokens",
        "hit_rate",
        "saved_prefill_seconds",
        "num_evicted_blocks",
    }
    assert set(summary["cost"]) == {"gpu_hours", "price", "energy_kwh", "carbon_kg"}


def test_the_summary_is_plain_json_without_nan_and_the_same_bytes_each_time(run):
    text = json.dumps(summary_of(run), allow_nan=False)
    assert text == json.dumps(summary_of(run), allow_nan=False)


def test_sharing_the_measured_columns_changes_nothing(run):
    measured = measure(run.result, run.workload, run.config)
    assert summarize(run.result, run.workload, run.config, measured) == summary_of(run)
    frame = requests_frame(run.result, run.workload, run.config, measured)
    assert frame.equals(requests_frame(run.result, run.workload, run.config))


def test_pooled_itl_has_the_quantiles_of_all_gaps_of_finished_requests(run):
    gaps = np.concatenate([np.diff(run.tokens[row]) for row in finished_rows(run)])
    itl = summary_of(run)["itl"]
    for name, q in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)):
        assert itl[name] == np.quantile(gaps, q)
    assert (itl["min"], itl["max"]) == (gaps.min(), gaps.max())
    assert itl["mean"] == pytest.approx(gaps.mean(), rel=1e-12)
    assert itl["std"] == pytest.approx(gaps.std(), rel=1e-9)


def test_latencies_are_those_of_finished_requests(run):
    rows, summary = finished_rows(run), summary_of(run)
    arrival = run.result.requests["arrival_time"]
    ttft = np.array([run.tokens[row][0] - arrival[row] for row in rows])
    e2e = np.array([run.tokens[row][-1] - arrival[row] for row in rows])
    means = np.array([np.diff(run.tokens[row]).mean() for row in rows if len(run.tokens[row]) > 1])
    assert summary["ttft"]["p99"] == np.quantile(ttft, 0.99)
    assert summary["e2e"]["p90"] == np.quantile(e2e, 0.9)
    assert summary["tpot"]["mean"] == pytest.approx(means.mean(), rel=1e-9)
    assert summary["itl_request_mean"]["p50"] == pytest.approx(np.quantile(means, 0.5), rel=1e-9)


def test_counts_and_throughputs_follow_from_the_listed_tokens(run):
    rows, summary, requests = finished_rows(run), summary_of(run), run.result.requests
    output = sum(len(run.tokens[row]) for row in rows)
    duration = np.nanmax(requests["finish_time"]) - requests["arrival_time"].min()
    assert summary["num_output_tokens"] == output
    assert summary["num_prompt_tokens"] == run.workload.num_prompt_tokens[rows].sum()
    assert summary["duration"] == duration
    assert summary["output_token_throughput"] == output / duration
    assert summary["request_throughput"] == len(rows) / duration
    ended = sum(summary[f"num_{how}"] for how in ("finished", "rejected", "cancelled", "timed_out"))
    assert ended == summary["num_requests"] == len(run.tokens)


def test_attainment_is_over_all_offered_requests_and_goodput_is_its_rate(run):
    good, arrival = 0, run.result.requests["arrival_time"]
    for row in finished_rows(run):
        tokens = run.tokens[row]
        tpot = (tokens[-1] - tokens[0]) / (len(tokens) - 1) if len(tokens) > 1 else 0.0
        good += tokens[0] - arrival[row] <= 1.0 and tpot <= 0.05
    summary = summary_of(run)
    assert 0 < good < len(finished_rows(run))
    assert summary["slo_attainment"] == good / len(run.tokens)
    assert summary["goodput"] == good / summary["duration"]
    assert summary["slo"]["met"] is False


def test_warm_up_leaves_requests_out_of_every_statistic():
    run = fake_run(4, metrics=SimpleNamespace(warmup_requests=20, warmup_duration=0.0))
    rows, summary = finished_rows(run, skip=20), summary_of(run)
    gaps = np.concatenate([np.diff(run.tokens[row]) for row in rows])
    assert summary["num_requests"] == 40
    assert summary["num_finished"] == len(rows)
    assert summary["itl"]["max"] == gaps.max()
    assert summary["num_preemptions"] == run.result.requests["num_preemptions"][20:].sum()
    assert len(requests_frame(run.result, run.workload, run.config)) == 60


def test_warm_up_by_time_leaves_out_who_arrives_before_it():
    run = fake_run(4, metrics=SimpleNamespace(warmup_requests=0, warmup_duration=6.5))
    summary = summary_of(run)
    assert summary["num_requests"] == (run.result.requests["arrival_time"] >= 6.5).sum()
    assert any("warm-up leaves only" in line for line in summary["warnings"])


def test_kv_shares_are_time_weighted_and_add_up_to_one(run):
    kv = summary_of(run)["kv_cache"]
    end = run.result.end_time
    assert kv["num_blocks"] == 202
    assert kv["block_size"] == 16
    assert kv["mean_usage"] == 2 * 250.0 / (2 * 100 * end)
    assert kv["peak_usage"] == 0.8
    assert kv["token_share"] == 3600 / (250 * 16)
    assert sum(kv[f"{part}_share"] for part in ("token", "reserved", "internal", "external")) == 1.0


def test_prefix_hits_are_those_of_the_first_admissions(run):
    requests, cache = run.result.requests, summary_of(run)["prefix_cache"]
    scheduled = ~np.isnan(requests["first_scheduled_time"])
    assert cache["num_lookup_tokens"] == run.workload.num_prompt_tokens[scheduled].sum()
    assert cache["num_hit_tokens"] == requests["num_cached_tokens"][scheduled].sum()
    assert cache["hit_rate"] == cache["num_hit_tokens"] / cache["num_lookup_tokens"]
    assert cache["saved_prefill_seconds"] == np.nansum(requests["saved_prefill_seconds"])
    assert cache["num_evicted_blocks"] == 14


def test_prefix_metrics_are_null_with_a_reason_where_prompts_have_no_ids(run):
    run.workload = replace(run.workload, hash_ids=None)
    summary = summary_of(run)
    assert summary["prefix_cache"]["hit_rate"] is None
    assert summary["prefix_cache"]["num_hit_tokens"] is None
    assert any("no prefix ids" in line for line in summary["warnings"])


def test_price_is_gpu_hours_times_the_given_price(run):
    cost = summary_of(run)["cost"]
    assert cost["gpu_hours"] == pytest.approx(4 * run.result.end_time / 3600)
    assert cost["price"] == pytest.approx(2.0 * cost["gpu_hours"])


def test_a_price_that_nobody_knows_is_null_with_a_reason(run):
    run.result.replicas[0].gpu = "no-such-gpu"
    summary = summary_of(run)
    assert summary["cost"]["price"] is None
    assert any("no price is known for no-such-gpu" in line for line in summary["warnings"])


def test_without_an_slo_goodput_is_null_with_a_reason():
    summary = summary_of(fake_run(1, slo=None))
    assert summary["goodput"] is summary["slo_attainment"] is summary["slo"] is None
    assert any("no slo" in line for line in summary["warnings"])


def test_a_run_without_a_finished_request_has_null_latencies_and_says_so(run):
    run.result.requests["status"][:] = 2
    summary = summary_of(run)
    assert set(summary["ttft"].values()) == {None}
    assert summary["itl"]["p99"] is None
    assert summary["slo_attainment"] == 0.0
    assert any("ttft, tpot, e2e" in line and "null" in line for line in summary["warnings"])
    json.dumps(summary, allow_nan=False)


def test_a_run_in_which_nothing_arrived_is_still_a_summary():
    run = fake_run(1, num_requests=4)
    for name in ("arrival_time", "admission_time", "first_scheduled_time", "first_token_time", "finish_time"):
        run.result.requests[name] = np.full(4, np.nan)
    run.result.requests["status"][:] = 0
    run.result.spans = []
    summary = summary_of(run)
    assert summary["num_requests"] == 0
    assert summary["duration"] is None
    json.dumps(summary, allow_nan=False)


def test_classes_and_tenants_partition_the_requests(run):
    summary = summary_of(run)
    assert list(summary["request_classes"]) == ["chat", "code"]
    assert list(summary["tenants"]) == ["tenant-0", "tenant-1", "tenant-2"]
    for groups in (summary["request_classes"], summary["tenants"]):
        assert sum(group["num_requests"] for group in groups.values()) == summary["num_requests"]
        assert sum(group["num_output_tokens"] for group in groups.values()) == summary["num_output_tokens"]


def test_fairness_is_jain_over_the_tokens_served_to_tenants(run):
    served = np.zeros(3)
    for row in finished_rows(run):
        served[row % 3] += run.workload.num_prompt_tokens[row] + len(run.tokens[row])
    expected = served.sum() ** 2 / (3 * (served**2).sum())
    assert summary_of(run)["fairness"]["jain_index_tokens"] == pytest.approx(expected)


def test_a_workload_without_classes_has_no_class_block(run):
    run.workload = replace(run.workload, request_class=None, tenant=None)
    summary = summary_of(run)
    assert not {"request_classes", "tenants", "fairness"} & set(summary)


def test_many_tenants_are_cut_to_the_largest_and_the_summary_says_so():
    run = fake_run(1, num_requests=300)
    run.workload = replace(run.workload, tenant=[f"t{min(i, 250)}" for i in range(300)])
    summary = summary_of(run)
    assert len(summary["tenants"]) == 100
    assert "t250" in summary["tenants"]
    assert any("100 of 251" in line for line in summary["warnings"])


def test_times_that_contradict_each_other_are_reported():
    run = fake_run(1)
    row = finished_rows(run)[0]
    run.result.requests["transfer_duration"][row] = 1e6
    lines = summary_of(run)["warnings"]
    assert any(f"decode_duration is negative for 1 requests (first: row {row})" in line for line in lines)


def test_warnings_of_workload_and_engine_come_first_and_once(run):
    run.workload.warnings.append("times are in whole seconds")
    run.result.warnings += ["times are in whole seconds", "roofline cost model"]
    assert summary_of(run)["warnings"][:2] == ["times are in whole seconds", "roofline cost model"]


def test_versions_name_the_package_and_the_profiles(run):
    versions = summary_of(run)["versions"]
    assert set(versions) == {"servesim", "profiles"}
    assert len(versions["profiles"]) == 12
