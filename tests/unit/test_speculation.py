"""Speculative decoding: acceptance draws, worked examples of the scheduler, costs, configuration, conservation."""

from __future__ import annotations

import math
from collections.abc import Sequence as Ordered
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_runs import run_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.admission import ADMISSIONS
from policies.preemption import PREEMPTIONS
from policies.router import ROUTERS
from policies.scheduler import SCHEDULERS
from sim.batch import BatchBuilder
from sim.build import build
from sim.config import experiment_from_values
from sim.cost.base import BatchShape
from sim.cost.constant import ConstantCost
from sim.cost.drafting import DraftingCost, first_pass, one_layer_of
from sim.cost.roofline import RooflineCost
from sim.deliveries import pooled_gaps, request_gaps
from sim.engine import Simulation
from sim.errors import InputError, PolicyError
from sim.hardware import load_gpu
from sim.kv.paged import PagedKV
from sim.model import load_model
from sim.replica import Limits
from sim.result import RunResult
from sim.speculation import METHODS, DrawnAcceptance, SpeculationRules, acceptance_chances, expected_tokens
from sim.speculative_batch import SpeculativeBuilder
from sim.speculative_replica import SpeculativeReplica
from sim.units import to_grid
from sim.workload.base import Workload


class Always:
    """Accepts the same number of drafts in every step."""

    def __init__(self, number: int) -> None:
        self.number = number

    def num_accepted(self, row: int, num_verified: int, num_emitted: int, num_drafts: int) -> int:
        return min(num_drafts, self.number)


def speculate(
    rows: Ordered[tuple[int, int]],  # prompt, output tokens
    *,
    method: str = "eagle",
    drafts: int = 3,
    acceptance: Any = None,
    num_blocks: int = 65,
    block_size: int = 16,
    caching: bool = True,
    depth: int = 1,
    budget: int = 64,
    num_seqs: int = 8,
    max_model_len: int = 10**6,
    scheduler: str = "fcfs",
    arrivals: Ordered[float] | None = None,
    declared: Ordered[int] | None = None,
    cancel_after: Ordered[float] | None = None,
    cost: Any = None,
    calls: list[dict[int, int]] | None = None,
) -> tuple[RunResult, SpeculativeReplica]:
    """Run rows on one replica; `calls` receives the scheduled tokens by row of every call."""
    prompts, outputs = zip(*rows, strict=True)
    workload = Workload(
        arrival_time=np.array([0.0] * len(rows) if arrivals is None else arrivals, dtype=float),
        num_prompt_tokens=np.array(prompts),
        num_output_tokens=np.array(outputs),
        max_output_tokens=np.array(outputs if declared is None else declared),
        cancel_after=None if cancel_after is None else np.array(cancel_after),
    )
    kv = PagedKV(num_blocks, block_size, caching)
    limits = Limits(num_seqs, budget, max_model_len, depth=depth)

    def make(clock: Any, on_end: Any, columns: Any) -> list[Any]:
        replica = SpeculativeReplica(
            *(
                0,
                clock,
                SCHEDULERS[scheduler](),
                PREEMPTIONS["newest"](),
                kv,
                cost or ConstantCost(1.0),
                limits,
                on_end,
            ),
            columns.content_spans,
            rules=SpeculationRules.of(method, drafts),
            acceptance=acceptance or DrawnAcceptance(1, [0.6] * drafts),
            step_log=True,
        )
        if calls is not None:
            replica.observer = partial(note_call, calls)
        return [replica]

    simulation = Simulation(workload, make, ROUTERS["round_robin"](), ADMISSIONS["always"]())
    result = simulation.run()
    replica = simulation.replicas[0]
    assert isinstance(replica, SpeculativeReplica)
    replica.kv.check_integrity()
    assert replica.kv.num_free == replica.kv.num_usable
    return result, replica


def note_call(calls: list[dict[int, int]], builder: BatchBuilder) -> None:
    assert isinstance(builder, SpeculativeBuilder)
    calls.append({entry.seq.row: entry.tokens for entry in builder.entries.values()})


# --- acceptance -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chance", "drafts", "tokens"), [(0.7, 1, 1.70), (0.7, 3, 2.533), (0.7, 4, 2.7731), (0.7, 8, 3.1988)]
)
def test_expected_tokens_of_a_step_are_the_closed_form(chance: float, drafts: int, tokens: float) -> None:
    """(1 - a^(k+1)) / (1 - a), as printed by Leviathan et al."""
    assert expected_tokens([chance] * drafts) == pytest.approx((1 - chance ** (drafts + 1)) / (1 - chance))
    assert expected_tokens([chance] * drafts) == pytest.approx(tokens, abs=5e-4)


@pytest.mark.parametrize("chances", [[0.7] * 3, [0.9, 0.5, 0.2, 0.8]])
def test_drawn_acceptance_has_the_stated_distribution(chances: list[float]) -> None:
    """P(j accepted) = a_1 ... a_j (1 - a_j+1), within four standard errors; the mean is the closed form."""
    drawn = DrawnAcceptance(7, chances)
    number = 20_000
    counts = np.bincount(
        [drawn.num_accepted(row, 0, 5, len(chances)) for row in range(number)], minlength=len(chances) + 1
    )
    reached = 1.0
    for j, count in enumerate(counts):
        share = reached * (1 - chances[j] if j < len(chances) else 1.0)
        assert abs(count / number - share) < 4 * math.sqrt(share * (1 - share) / number)
        reached *= chances[j] if j < len(chances) else 1.0
    mean = 1 + float(np.dot(counts, np.arange(len(counts)))) / number
    assert mean == pytest.approx(expected_tokens(chances), rel=0.02)


def test_a_draw_belongs_to_the_token_and_not_to_the_step() -> None:
    """The draft of output token 9 is accepted or not, whichever step foretells it."""
    drawn = DrawnAcceptance(3, [0.5] * 4)
    accepted = [drawn.num_accepted(11, 0, 9, 1) for _ in range(3)]
    assert accepted == accepted[:1] * 3
    for row in range(50):
        at_nine = drawn.num_accepted(row, 0, 9, 1)
        from_eight = drawn.num_accepted(row, 4, 8, 2)
        assert from_eight == 0 or from_eight == 1 + at_nine


def test_certain_drafts_are_always_and_impossible_ones_never_accepted() -> None:
    assert DrawnAcceptance(1, [1.0] * 5).num_accepted(4, 0, 0, 5) == 5
    assert DrawnAcceptance(1, [0.0] * 5).num_accepted(4, 0, 0, 5) == 0


def test_acceptance_needs_one_chance_a_draft() -> None:
    with pytest.raises(InputError, match="2 values for 3 drafts"):
        acceptance_chances([0.5, 0.5], 3)
    with pytest.raises(InputError, match=r"must lie in \[0, 1\] \(got 1.5\)"):
        acceptance_chances(1.5, 3)


# --- the scheduler ----------------------------------------------------------------------------------------------------


def test_worked_example_two_of_three_drafts_accepted() -> None:
    """EX-V9: 30 prompt tokens, k = 3, 12 outputs in 5 steps: 30 tokens, then 4 a step; 33 slots are 3 blocks."""
    calls: list[dict[int, int]] = []
    result, replica = speculate([(30, 12)], acceptance=Always(2), calls=calls)
    assert [call[0] for call in calls if call] == [30, 4, 4, 4, 4]
    assert replica.deliveries.column("num_tokens").tolist() == [1, 3, 3, 3, 2]
    assert result.requests["finish_time"].tolist() == [5.0]
    assert result.steps is not None
    assert result.steps["num_free_blocks"].tolist()[0] == 64 - 3


def test_without_accepted_drafts_every_step_emits_one_token() -> None:
    result, _ = speculate([(30, 12)], acceptance=Always(0))
    assert result.requests["finish_time"].tolist() == [12.0]


def test_with_two_batches_in_flight_a_sequence_counts_on_its_drafts() -> None:
    """A call is made before the batch in front is back: it too asks for 1 + k tokens; an early finish is seen late."""
    calls: list[dict[int, int]] = []
    result, _ = speculate([(30, 7)], acceptance=Always(2), depth=2, calls=calls)
    assert [call[0] for call in calls if call] == [30, 4, 4, 4]
    assert result.requests["finish_time"].tolist() == [3.0]


def test_drafts_use_the_token_budget_that_prompts_would_get() -> None:
    """Budget 16: two decodes with k = 3 take 8, which leaves 8 for the newcomer's prompt."""
    calls: list[dict[int, int]] = []
    speculate([(4, 40), (4, 40), (20, 2)], acceptance=Always(0), budget=16, arrivals=[0, 0, 1.5], calls=calls)
    assert calls[2] == {0: 4, 1: 4, 2: 8}


def test_a_separate_draft_model_pays_for_its_own_input_token() -> None:
    """The same with a drafter of its own: 2 slots for the decodes and 1 for the newcomer, of a budget of 16."""
    calls: list[dict[int, int]] = []
    rows = [(4, 40), (4, 40), (20, 2)]
    speculate(rows, method="draft_model", acceptance=Always(0), budget=16, arrivals=[0, 0, 1.5], calls=calls)
    assert calls[2] == {0: 4, 1: 4, 2: 5}


def test_tokens_of_one_step_arrive_together() -> None:
    """ITL is the step time, whatever the step emitted; time per output token is lower."""
    result, _ = speculate([(30, 12)], acceptance=Always(2))
    gaps = request_gaps(result.requests["first_token_time"], result.spans)
    values, multiplicities = pooled_gaps(gaps, result.spans, np.ones(1, dtype=bool))
    assert np.repeat(values, multiplicities).tolist() == [1.0] * 4
    assert (gaps.max_itl[0], gaps.mean_itl[0]) == (1.0, 1.0)


def test_a_block_of_an_eagle_prefix_is_hit_only_if_the_next_token_agrees() -> None:
    """32 shared tokens are 2 blocks of plain prefix caching, and 1 where a hash covers the token after its block."""
    spans = [(1, 0, 32)]
    hits = {}
    for method in METHODS:
        replica = make_idle(method)
        kv, found = replica.kv, replica.content_spans(0)
        assert (found == spans) is (method != "eagle")
        hits[method] = kv.content(found, 40).num_shared_blocks
    assert hits == {"eagle": 1, "eagle_drop": 2, "draft_model": 2, "ngram": 2}


def make_idle(method: str) -> SpeculativeReplica:
    limits, kv = Limits(8, 64, 1000), PagedKV(65, 16, True)
    return SpeculativeReplica(
        *(0, None, SCHEDULERS["fcfs"](), PREEMPTIONS["newest"](), kv, ConstantCost(1.0), limits, None),
        lambda row: [(1, 0, 32)],
        rules=SpeculationRules.of(method, 3),
        acceptance=Always(0),
    )


def test_a_scheduler_that_keeps_decodes_apart_is_refused() -> None:
    with pytest.raises(PolicyError, match="needs a scheduler such as fcfs"):
        speculate([(30, 12)], scheduler="sglang")


def test_with_certain_rejection_and_no_lookahead_the_engine_is_the_plain_one() -> None:
    """ngram with drafts that always fail takes the steps of plain decoding: same times of every request."""
    rows = [(30, 12), (50, 3), (7, 20), (64, 1)]
    spec, _ = speculate(rows, method="ngram", acceptance=Always(0), budget=256)
    plain = run_rows(rows, budget=256, prefix_caching=True)
    for name in ("first_token_time", "finish_time", "first_scheduled_time"):
        assert spec.requests[name].tolist() == plain.requests[name].tolist(), name


# --- laws -------------------------------------------------------------------------------------------------------------

_rows = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(
    _rows,
    st.sampled_from(METHODS),
    st.integers(1, 5),
    st.sampled_from([1, 2]),
    st.integers(0, 12),
    st.sampled_from([8, 32, 256]),
    st.data(),
)
def test_every_request_gets_exactly_its_tokens(
    rows: list[tuple[int, int]], method: str, drafts: int, depth: int, spare: int, budget: int, data: st.DataObject
) -> None:
    """Whatever is accepted, preempted or cancelled: tokens add up, batches keep the budget, no block is lost."""
    longest = max(prompt + output for prompt, output in rows) + 2 * drafts
    blocks = 2 + -(-longest // 16) + spare
    instants = [data.draw(st.sampled_from([0.0, 0.0, 1.0, 2.5, 7.0])) for _ in rows]
    patience = [data.draw(st.sampled_from([math.inf, math.inf, 2.0, 6.5, 15.0])) for _ in rows]
    declared = [output + data.draw(st.sampled_from([0, 0, 9])) for _, output in rows]
    calls: list[dict[int, int]] = []
    result, replica = speculate(
        rows,
        method=method,
        drafts=drafts,
        depth=depth,
        num_blocks=blocks,
        budget=max(budget, drafts + 2),
        arrivals=np.sort(instants).tolist(),
        declared=declared,
        cancel_after=patience,
        calls=calls,
    )
    delivered = np.bincount(
        replica.deliveries.column("row").astype(int), replica.deliveries.column("num_tokens"), minlength=len(rows)
    )
    assert delivered.tolist() == result.requests["num_output_tokens"].tolist()
    for i, (_, output) in enumerate(rows):
        assert delivered[i] == output or result.requests["status"][i] != 1
    assert max(sum(call.values()) for call in calls) <= max(budget, drafts + 2)
    totals = result.replicas[0]
    assert totals.num_tokens == sum(sum(call.values()) for call in calls)
    assert 0 <= totals.filled_token_seconds <= totals.used_block_seconds * 16
    assert totals.used_block_seconds <= replica.kv.num_usable * result.end_time


def test_the_same_tokens_are_accepted_under_pressure() -> None:
    """Preemption, batching and arrival change when a token comes, not whether a draft of it is accepted."""
    rows = [(20, 30)] * 6
    alone, calm = speculate(rows, num_blocks=200, drafts=4, caching=False)
    crowded, pressed = speculate(rows, num_blocks=12, drafts=4, caching=False, arrivals=[0, 0, 1, 3, 3, 9])
    assert crowded.replicas[0].num_preemptions > 0 == alone.replicas[0].num_preemptions
    for row in range(len(rows)):
        here, there = fates(calm, row), fates(pressed, row)
        common = here.keys() & there.keys()
        assert len(common) > 10
        assert {token: here[token] for token in common} == {token: there[token] for token in common}


def fates(replica: SpeculativeReplica, row: int) -> dict[int, bool]:
    """Whether the draft of each output token of a row was accepted, where there was one that was looked at."""
    found, position = {}, 0
    names = ("row", "num_tokens", "num_drafts", "num_accepted")
    columns = [replica.deliveries.column(name).astype(int).tolist() for name in names]
    for owner, tokens, drafts, accepted in zip(*columns, strict=True):
        if owner == row:
            found |= dict.fromkeys(range(position, position + accepted), True)
            if accepted < drafts:
                found[position + accepted] = False
            position += tokens
    return found


# --- costs ------------------------------------------------------------------------------------------------------------


def test_speed_up_is_expected_tokens_over_one_plus_draft_costs() -> None:
    """E / (k c + 1) of Leviathan et al.: a long answer, one sequence, drafts at a tenth of a step."""
    chances, ratio, tokens = [0.8] * 4, 0.1, 4000
    cost = DraftingCost(ConstantCost(0.01), 4, cost_ratio=ratio)
    acceptance = DrawnAcceptance(5, chances)
    result, _ = speculate([(1, tokens)], drafts=4, num_blocks=400, acceptance=acceptance, cost=cost)
    speed_up = 0.01 * tokens / result.requests["finish_time"][0]
    assert speed_up == pytest.approx(expected_tokens(chances) / (4 * ratio + 1), rel=0.03)


def test_a_step_with_drafts_reads_the_cache_once_and_computes_every_pair() -> None:
    """Roofline, one decode of 10,000 tokens: 3 drafts cost next to nothing, and k drafts the FLOPs of k more rows."""
    cost = RooflineCost(load_model("llama-3.1-8b"), load_gpu("h100-sxm"))
    plain = cost.step_time(BatchShape(num_decode_sequences=1, decode_context=10_000, max_context=10_000))
    few = cost.step_time(verify(1, 3, 10_000))
    assert plain < few < 1.02 * plain
    many = [cost.step_time(verify(64, drafts, 10_000)) for drafts in (0, 7, 15, 31)]
    assert many == sorted(many)
    assert many[3] > 2 * many[0]
    for shape in (verify(3, 4, 500), BatchShape(200, 2, 20_100, 200, 3, 1500, 500, 12, 5970)):
        assert sum(float(part["seconds"]) for part in cost.breakdown(shape).values()) <= cost.step_time(shape) * 1.01


def verify(sequences: int, drafts: int, context: int) -> BatchShape:
    pairs = sequences * (drafts * context - drafts * (drafts + 1) // 2)
    return BatchShape(0, 0, 0, 0, sequences, sequences * context, context, sequences * drafts, pairs)


def test_no_drafts_give_the_bits_of_a_plain_decode() -> None:
    cost = RooflineCost(load_model("llama-3.1-8b"), load_gpu("h100-sxm"))
    assert cost.step_time(verify(8, 0, 900)) == cost.decode_times(8, 7200, 900, 1)[0]


def test_the_drafter_computes_all_tokens_once_and_then_one_a_sequence() -> None:
    """k passes: the first as chunks over all tokens of the step, then k - 1 decodes."""
    draft = ConstantCost(0.001, per_prefill_token=0.0001, per_sequence=0.01)
    cost = DraftingCost(ConstantCost(0.5), 3, draft)
    shape = verify(2, 3, 100)
    assert first_pass(shape) == BatchShape(8, 2, 2 * (4 * 96 + 10), 200, max_context=100)
    assert cost.step_time(shape) == pytest.approx(0.5 + (0.001 + 8 * 0.0001 + 2 * 0.01) + 2 * (0.001 + 2 * 0.01))


def test_a_decode_times_vector_with_drafting_has_the_bits_of_single_steps() -> None:
    model, gpu = load_model("llama-3.1-8b"), load_gpu("h100-sxm")
    cost = DraftingCost(RooflineCost(model, gpu), 3, RooflineCost(one_layer_of(model), gpu))
    times = cost.decode_times(4, 400, 120, 5)
    single = [cost.step_time(BatchShape(0, 0, 0, 0, 4, 400 + 4 * i, 120 + i)) for i in range(5)]
    assert times.tolist() == single


def test_chunks_of_others_count_as_interference() -> None:
    """A newcomer's 40 tokens lengthen one step of the verifying sequence by 40 times the time a token."""
    cost = ConstantCost(1.0, per_prefill_token=0.125)
    result, _ = speculate([(8, 12), (40, 1)], acceptance=Always(0), arrivals=[0, 1.5], cost=cost)
    assert result.requests["interference_duration"].tolist() == [to_grid(40 * 0.125), 0.0]


# --- configuration ----------------------------------------------------------------------------------------------------


def experiment(**speculation: Any) -> dict[str, Any]:
    pool = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "speculation": speculation, "cost_model": "roofline"}
    workload = {
        "num_requests": 20,
        "arrivals": {"process": "poisson", "rate": 5.0},
        "prompt_tokens": 200,
        "output_tokens": 40,
    }
    return {"workload": workload, "cluster": {"pools": [pool]}}


def test_a_pool_with_speculation_runs_and_reports_it(tmp_path: Path) -> None:
    """Acceptance as drawn, and every accepted draft saves a step."""
    values = experiment(method="eagle", num_speculative_tokens=2, acceptance=[1.0, 0.0])
    result = build(experiment_from_values(values, tmp_path)).run()
    totals = result.replicas[0].speculation
    assert totals is not None
    assert totals.num_draft_tokens == 2 * totals.num_drafts == 2 * totals.num_accepted_tokens
    assert totals.num_accepted_tokens == 20 * 20  # 39 tokens after the first, 2 a step


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "eagel", "num_speculative_tokens": 2, "acceptance": 0.5}, "speculation.method"),
        ({"method": "eagle", "num_speculative_tokens": 2, "acceptance": [0.5]}, "1 values for 2 drafts"),
        ({"method": "eagle", "num_speculative_tokens": 2}, "acceptance"),
        ({"method": "draft_model", "num_speculative_tokens": 2, "acceptance": 0.5}, "needs draft_model"),
        ({"method": "ngram", "num_speculative_tokens": 2, "acceptance": 0.5, "draft_model": "phi-2"}, "goes with"),
    ],
)
def test_wrong_speculation_is_explained(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        experiment_from_values(experiment(**given), tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_cache": {"allocator": "contiguous_max"}}, "allocator paged"),
        ({"cost_model": {"kind": "constant"}}, "knows no drafter: give speculation.draft_cost_ratio"),
    ],
)
def test_what_speculation_does_not_go_with_is_said_before_the_run(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    values = experiment(method="eagle", num_speculative_tokens=2, acceptance=0.5)
    values["cluster"]["pools"][0].update(changes)
    with pytest.raises(InputError, match=message):
        build(experiment_from_values(values, tmp_path))
