"""Measured runs with prefill and decode on separate GPUs: readers, step times, and errors where the data are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sim.cost import build_cost_model
from sim.cost.base import BatchShape
from sim.errors import InputError
from sim.hardware import load_gpu
from sim.model import load_model
from sim.validation import distserve, distserve_engine, distserve_placement, suite
from sim.validation.distserve_engine import MODEL, STEP_OVERHEAD, Placement, placement_of
from sim.validation.scores import by_set, scores

COEFFICIENTS = """backend,gpu,model,tp,phase,a,b,c,large_small_bs_threshold
distserve,A100-80GB,facebook/opt-13b,2,prefill,15.0,0.07,2.5e-06,95
distserve,A100-80GB,facebook/opt-13b,2,decoding_smallbs,13.0,0.0003,0.06,95
distserve,A100-80GB,facebook/opt-13b,2,decoding_largebs,11.0,0.0004,0.09,95
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a100_profile_coefficients.csv").write_text(COEFFICIENTS, encoding="utf-8")
    rows = "model,tp,pp,max_num_tokens\nfacebook/opt-13b,2,1,163008\n"
    (tmp_path / "max_num_tokens.csv").write_text(rows, encoding="utf-8")
    return tmp_path


def test_step_times_are_the_published_polynomials(folder: Path) -> None:
    section = distserve_engine.cost_section(folder, 2)
    params = {key: value for key, value in section.items() if key != "kind"}
    cost = build_cost_model(section["kind"], params, model=load_model(MODEL), gpu=load_gpu("cpu"))
    lengths = (3, 700, 1800)
    tokens, pairs = sum(lengths), sum(n * (n + 1) // 2 for n in lengths)
    published = 15.0 + 0.07 * tokens + 2.5e-6 * sum(n * n for n in lengths)
    prompts = BatchShape(num_prefill_tokens=tokens, num_prefill_sequences=3, prefill_pairs=pairs)
    assert cost.step_time(prompts) - STEP_OVERHEAD == pytest.approx(1e-3 * published, rel=1e-12)
    for num, (a, b, c) in ((1, (13.0, 3e-4, 0.06)), (94, (13.0, 3e-4, 0.06)), (95, (11.0, 4e-4, 0.09))):
        decodes = BatchShape(num_decode_sequences=num, decode_context=900 * num)
        assert cost.step_time(decodes) - STEP_OVERHEAD == pytest.approx(1e-3 * (a + b * 900 * num + c * num))


def test_a_placement_gives_two_pools(folder: Path) -> None:
    assert placement_of("c21d12") == Placement((2, 1), (1, 2))
    assert placement_of("unlabelled") is None
    assert Placement((2, 1), (1, 2)).num_gpus == 4
    cluster = distserve_engine.cluster(folder, Placement((2, 1), (2, 1)))
    assert [pool["role"] for pool in cluster["pools"]] == ["prefill", "decode"]
    assert [pool["kv_cache"]["num_blocks"] for pool in cluster["pools"]] == [163008 // 16 + 1] * 2


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        (Placement((2, 2), (2, 1)), "pipelined prompts are not modelled"),
        (Placement((2, 1), (1, 1)), "has no facebook/opt-13b on 1 x 1 GPUs"),
    ],
)
def test_what_cannot_be_simulated_says_why(folder: Path, placement: Placement, message: str) -> None:
    with pytest.raises(InputError, match=message):
        distserve_engine.cluster(folder, placement)


@pytest.mark.shared_data
def test_split_runs_within_15_per_cent(shared_data: Path) -> None:
    """The shorter runs, overloaded ones among them; the median over all runs stands in experiments/validation."""
    found = distserve.collect(shared_data / "e2e" / "distserve")
    split = [case for case in found.cases if distserve.SPLIT in case.groups]
    assert len(split) >= 12
    predictions, failed = suite.run([case for case in split if "-300-" in case.name])
    assert not failed
    errors = {item.metric: item.median for item in scores(predictions, by_set)}
    for metric in ("ttft.mean", "ttft.p90", "tpot.mean", "tpot.p50", "e2e.mean"):
        assert errors[metric] < 0.15, metric


def test_candidates_are_all_placements_on_four_gpus() -> None:
    """Prompts on one or two GPUs; four leave none for decoding."""
    found = distserve_placement.candidates()
    assert len(found) == len(set(found)) == 6
    assert {placement.prefill for placement in found} == {(1, 1), (2, 1)}
    assert max(placement.num_gpus for placement in found) == 4


@pytest.mark.shared_data
def test_the_published_placement_wins_at_the_published_rate(shared_data: Path) -> None:
    """1.56 requests/s a GPU: met on 2 + 1 GPUs, met by no other kind of placement; the full search: the experiment."""
    lengths = distserve_placement.read_lengths(shared_data)
    assert len(lengths.prompt) == 1600

    def met(prefill: int, decode: int, per_gpu: float) -> bool:
        placement = Placement((prefill, 1), (decode, 1))
        rate = per_gpu * placement.num_gpus
        return distserve_placement.attainment(shared_data, lengths, placement, rate, 300, 2) >= 0.9

    assert met(2, 1, 1.5625)
    assert not met(2, 1, 1.875)
    assert not met(2, 2, 1.5625)
    assert not met(1, 1, 1.5625)
    assert not met(1, 2, 1.5625)


@pytest.mark.shared_data
def test_a_prompt_alone_nearly_takes_the_target_on_one_gpu(shared_data: Path) -> None:
    """Why prompts go to two GPUs: nine tenths of them are computed within 192 ms on one, within 126 ms on two."""
    prompts = distserve_placement.read_lengths(shared_data).prompt
    for tensor, most in ((1, 0.1924), (2, 0.1264)):
        section = distserve_engine.cost_section(shared_data / "e2e" / "distserve", tensor)
        params = {key: value for key, value in section.items() if key != "kind"}
        cost = build_cost_model(section["kind"], params, model=load_model(MODEL), gpu=load_gpu("cpu"))
        seconds = [cost.step_time(BatchShape(n, 1, n * (n + 1) // 2, n, 0, 0, n)) for n in prompts.tolist()]
        assert np.quantile(seconds, 0.9) - STEP_OVERHEAD == pytest.approx(most, abs=5e-5)
