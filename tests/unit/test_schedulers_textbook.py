"""Schedulers of vLLM V0, Sarathi-Serve, Orca, FasterTransformer and the textbook loop on cases worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import policies
from policies.admission import ADMISSIONS
from policies.preemption import PREEMPTIONS
from policies.router import ROUTERS
from policies.scheduler.reservation import reserved_tokens
from sim.batch import BatchBuilder
from sim.cost.base import BatchShape
from sim.engine import Simulation
from sim.errors import InputError, RunError
from sim.kv.host import HostMemory, PrivatePort
from sim.kv.paged import PagedKV
from sim.replica import Limits, Replica
from sim.request import Phase, Sequence
from sim.result import RunResult, Status
from sim.workload.base import Workload


@dataclass
class LoggingCost:
    """Steps of 1 s; remembers every shape it was asked for."""

    shapes: list[BatchShape] = field(default_factory=list)

    def step_time(self, shape: BatchShape) -> float:
        self.shapes.append(shape)
        return 1.0

    def decode_times(self, num_sequences: int, context: int, max_context: int, num_steps: int) -> Any:
        for i in range(num_steps):
            self.shapes.append(BatchShape(0, 0, 0, 0, num_sequences, context + i * num_sequences, max_context + i))
        return np.ones(num_steps)


@dataclass
class Setup:
    """A replica with a step clock of 1 s. Requests are (arrival step from 1, prompt, output) by name."""

    scheduler: str
    requests: dict[str, tuple[int, int, int]]
    params: dict[str, Any] = field(default_factory=dict)
    num_blocks: int = 100
    max_num_seqs: int = 8
    budget: int = 2048
    max_model_len: int = 2048
    watermark: int = 0
    chunked: bool = False
    host: HostMemory | None = None
    step_by_step: bool = True
    priorities: dict[str, int] = field(default_factory=dict)
    log: list[dict[str, Any]] = field(default_factory=list)
    cost: LoggingCost = field(default_factory=LoggingCost)
    replica: Replica | None = None

    def run(self) -> RunResult:
        names = list(self.requests)
        columns = np.array(list(self.requests.values()))
        workload = Workload(
            arrival_time=columns[:, 0] - 1.0,
            num_prompt_tokens=columns[:, 1],
            num_output_tokens=columns[:, 2],
            max_output_tokens=columns[:, 2],
            priority=np.array([self.priorities.get(name, 0) for name in names]),
        )
        self.simulation = Simulation(workload, self._make, ROUTERS["round_robin"](), ADMISSIONS["always"]())
        return self.simulation.run()

    def _make(self, clock: Any, on_end: Any, columns: Any) -> list[Replica]:
        limits = Limits(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.budget,
            max_model_len=self.max_model_len,
            depth=1,
            chunked_prefill=self.chunked,
            watermark_blocks=self.watermark,
        )
        replica = Replica(
            0,
            clock,
            policies.make("scheduler", self.scheduler, self.params, "test"),
            PREEMPTIONS["newest"](),
            PagedKV(self.num_blocks + 1, 16, prefix_caching=False),
            self.cost,
            limits,
            on_end,
            columns.content_spans,
            step_by_step=self.step_by_step,
        )
        if self.host is not None:
            replica.host, replica.swaps = self.host, lambda seq: True
        replica.empty_call_duration = 1.0
        replica.observer = lambda builder: self.log.append(self._step(replica, builder))
        self.replica = replica
        return [replica]

    def _step(self, replica: Replica, builder: BatchBuilder) -> dict[str, Any]:
        names = list(self.requests)
        tokens = {names[seq.row]: count for seq, count in builder.chunks}
        for seq in replica.running.values():
            if builder.decoded and seq.phase is Phase.DECODE:
                tokens[names[seq.row]] = 1
        return {
            "step": int(builder.now) + 1,
            "tokens": tokens,
            "preempted": "".join(names[seq.row] for seq in builder.preempted),
            "out": "".join(names[seq.row] for seq in builder.swapped_out),
            "in": "".join(names[seq.row] for seq in builder.swapped_in),
            "running": "".join(names[seq.row] for seq in replica.running.values()),
            "waiting": "".join(names[seq.row] for seq in replica.waiting),
            "swapped": "".join(names[seq.row] for seq in replica.swapped),
            "free": replica.kv.num_free,
            "host": replica.host.num_free if replica.host else 0,
        }

    def steps(self, *keys: str) -> list[tuple[Any, ...]]:
        return [tuple(step[key] for key in keys) for step in self.log]


# --- vLLM V0 ---------------------------------------------------------------------------------------------------------


def test_v0_decodes_want_a_free_block_and_the_preempted_waits_for_its_whole_prompt_and_the_watermark() -> None:
    """EX-V0-1: Y loses its memory 15 steps before X really needs a block, and comes back when X has finished."""
    setup = Setup("vllm_v0", {"X": (1, 768, 40), "Y": (1, 768, 40), "Z": (2, 64, 3)}, watermark=1)
    result = setup.run()
    steps = setup.steps("step", "tokens", "preempted", "running", "waiting", "free")
    expected = [(1, {"X": 768, "Y": 768}, "", "XY", "", 4)]
    expected += [(k, {"X": 1, "Y": 1}, "", "XY", "Z", 2) for k in range(2, 18)]
    expected += [(18, {"X": 1, "Y": 1}, "", "XY", "Z", 0)]
    expected += [(19, {"X": 1}, "Y", "X", "YZ", 50)]
    expected += [(k, {"X": 1}, "", "X", "YZ", 50) for k in range(20, 34)]
    expected += [(k, {"X": 1}, "", "X", "YZ", 49) for k in range(34, 41)]
    expected += [(41, {"Y": 786, "Z": 64}, "", "YZ", "", 46)]
    assert steps[:41] == expected
    assert result.requests["finish_time"][0] == 40
    assert result.requests["num_recomputed_tokens"].tolist() == [0, 786, 0]


def test_v0_swaps_the_last_and_brings_it_back_before_any_prompt() -> None:
    """EX-V0-2, with 8 GPU and 8 host blocks."""
    requests = {"A": (1, 30, 8), "B": (1, 30, 8), "C": (1, 30, 6), "D": (2, 16, 3)}
    setup = Setup("vllm_v0", requests, num_blocks=8, max_model_len=128, host=HostMemory(8, abort_when_full=True))
    setup.run()
    one = {"A": 1, "B": 1}
    expected = [
        (1, {"A": 30, "B": 30, "C": 30}, "", "", "ABC", "", 2, 8),
        (2, {"D": 16}, "", "", "ABCD", "", 1, 8),
        (3, {**one, "C": 1, "D": 1}, "", "", "ABCD", "", 0, 8),
        (4, {**one, "C": 1}, "D", "", "ABC", "D", 2, 6),
        (5, one, "C", "", "AB", "DC", 2, 4),
        (6, {**one, "D": 1}, "", "D", "ABD", "C", 0, 6),
        *[(k, one, "", "", "AB", "C", 2, 6) for k in (7, 8, 9)],
        (10, {"C": 1}, "", "C", "C", "", 5, 8),
        (11, {"C": 1}, "", "", "C", "", 5, 8),
        (12, {"C": 1}, "", "", "C", "", 5, 8),
    ]
    assert setup.steps("step", "tokens", "out", "in", "running", "swapped", "free", "host") == expected
    assert setup.host is not None
    assert (setup.host.num_copied_out, setup.host.num_copied_in) == (4, 4)


def test_swapping_delays_the_step_by_the_copies_and_recomputes_nothing() -> None:
    """The same run with 0.25 s a block: the steps that copy 2 blocks (4, 5, 6 and 10) take 1.5 s."""
    requests = {"A": (1, 30, 8), "B": (1, 30, 8), "C": (1, 30, 6), "D": (2, 16, 3)}
    setup = Setup("vllm_v0", requests, num_blocks=8, max_model_len=128, host=HostMemory(8, PrivatePort(0.25)))
    result = setup.run()
    assert result.requests["finish_time"].tolist() == [10.5, 10.5, 14.0, 7.5]
    assert result.requests["num_recomputed_tokens"].sum() == 0
    assert result.requests["preempted_duration"].tolist() == [0, 0, 14.0 - 2 - 4.5, 7.5 - 3]


def test_a_full_swap_space_stops_the_engine_where_it_is_told_to_and_falls_back_to_recomputation_elsewhere() -> None:
    requests = {"A": (1, 30, 8), "B": (1, 30, 8), "C": (1, 30, 6), "D": (2, 16, 3)}
    strict = Setup("vllm_v0", requests, num_blocks=8, max_model_len=128, host=HostMemory(1, abort_when_full=True))
    with pytest.raises(RunError, match=r"swap space exhausted at 3\.0"):
        strict.run()
    lenient = Setup("vllm_v0", requests, num_blocks=8, max_model_len=128, host=HostMemory(1))
    result = lenient.run()
    assert (result.requests["status"] == Status.FINISHED).all()
    assert result.requests["num_recomputed_tokens"].sum() > 0


def test_v0_drops_a_prompt_beyond_the_budget_at_its_turn_with_the_reason() -> None:
    setup = Setup("vllm_v0", {"A": (1, 16, 3), "C": (1, 16, 3), "B": (1, 100, 3)}, budget=64, max_num_seqs=1)
    result = setup.run()
    assert result.requests["status"].tolist() == [Status.FINISHED, Status.FINISHED, Status.UNSERVABLE]
    assert result.requests["finish_time"][2] == 3.0  # not looked at while C, before it, waits for A's slot
    assert "100 tokens" in result.requests["reject_reason"][2]


def test_v0_priority_preempts_a_running_sequence_of_lower_rank_to_let_the_head_in() -> None:
    """B takes A's slot one step after the refusal, and A starts over when B has finished."""
    setup = Setup("vllm_v0", {"A": (1, 16, 20), "B": (3, 16, 2)}, {"queue_policy": "priority"}, max_num_seqs=1)
    setup.priorities = {"A": 1, "B": 0}
    result = setup.run()
    assert setup.steps("step", "tokens", "preempted")[:5] == [
        (1, {"A": 16}, ""),
        (2, {"A": 1}, ""),
        (3, {}, "A"),
        (4, {"B": 16}, ""),
        (5, {"B": 1}, ""),
    ]
    assert result.requests["finish_time"][1] == 5


# --- Sarathi-Serve ---------------------------------------------------------------------------------------------------


def test_sarathi_fills_the_budget_beside_the_decodes() -> None:
    """EX-SA1: C = 256, three decodes run, P has 400 left, Q (300) waits."""
    requests = {"a": (1, 8, 90), "b": (1, 8, 90), "c": (1, 8, 90), "P": (2, 400, 9), "Q": (3, 300, 9)}
    setup = Setup("sarathi", requests, num_blocks=200, budget=256, chunked=True)
    setup.run()
    decodes = {"a": 1, "b": 1, "c": 1}
    assert [step for (step,) in setup.steps("tokens")][1:5] == [
        {**decodes, "P": 253},
        {**decodes, "P": 147, "Q": 106},
        {**decodes, "P": 1, "Q": 194},
        {**decodes, "P": 1, "Q": 1},
    ]


def test_sarathi_takes_all_blocks_of_a_prompt_at_its_admission() -> None:
    setup = Setup("sarathi", {"P": (1, 390, 2)}, num_blocks=30, budget=64, chunked=True)
    setup.run()
    assert {free for _, free in setup.steps("step", "free")} == {5}  # 25 of 30 from the first chunk on


def test_sarathi_dynamic_chunks_shrink_over_the_prompt() -> None:
    """Four stages of 256 tokens from 256 down to 32: linear 256, 181, 106, 32, rounded to 32s."""
    params = {
        "dynamic_chunk_stages": 4,
        "dynamic_chunk_low": 32,
        "dynamic_chunk_high": 256,
        "dynamic_chunk_max_tokens": 1024,
    }
    setup = Setup("sarathi", {"P": (1, 1000, 1)}, params, budget=256, chunked=True)
    setup.run()
    sizes = [tokens["P"] for (tokens,) in setup.steps("tokens")]
    assert sizes == [256, 192, 192, 96, 96] + [32] * 5 + [8]


def test_sarathi_refuses_chunks_that_cannot_be() -> None:
    with pytest.raises(InputError, match="dynamic_chunk_low"):
        policies.make("scheduler", "sarathi", {"dynamic_chunk_low": 512}, "here")


def test_simple_chunking_alternates_and_leaves_the_decodes_out_of_every_other_step() -> None:
    setup = Setup("simple_chunking", {"a": (1, 10, 9), "P": (2, 40, 2)}, budget=16, chunked=True)
    setup.run()
    assert [tokens for (tokens,) in setup.steps("tokens")][:8] == [
        {"a": 10},
        {"a": 1},
        {"P": 16},
        {"a": 1},
        {"P": 16},
        {"a": 1},
        {"P": 8},
        {"a": 1, "P": 1},
    ]


# --- Orca and FasterTransformer --------------------------------------------------------------------------------------


def test_orca_max_runs_as_many_as_maximum_lengths_fit_whatever_the_sizes() -> None:
    """EX-O1: max_model_len 2048 is 128 blocks; 1000 blocks take 7."""
    requests = {f"r{k}": (1, 10 + k, 30) for k in range(12)}
    setup = Setup("orca", requests, num_blocks=1000, max_num_seqs=64)
    setup.run()
    assert max(len(tokens) for (tokens,) in setup.steps("tokens")) == 7


@pytest.mark.parametrize(
    ("reservation", "tokens", "blocks"), [("max", 2048, 128), ("pow2", 228, 15), ("oracle", 170, 11)]
)
def test_orca_reservations_of_one_request(reservation: str, tokens: int, blocks: int) -> None:
    """EX-O1: prompt 100, output 70; held from admission to end."""
    seq = Sequence(0, 0.0, 100, 70, 70)
    assert reserved_tokens(seq, reservation, 2048) == tokens  # type: ignore[arg-type]
    setup = Setup("orca", {"A": (1, 100, 70)}, {"reservation": reservation}, num_blocks=128)
    setup.run()
    assert {free for (free,) in setup.steps("free")} == {128 - blocks}


def test_orca_reserves_by_the_prediction_and_outgrows_a_wrong_one() -> None:
    seq = Sequence(0, 0.0, 100, 70, 70)
    seq.predicted_output_tokens = 16.4
    assert reserved_tokens(seq, "oracle", 2048) == 116
    assert reserved_tokens(seq, "pow2", 2048) == 116
    seq.num_known = 130  # it has 30 already
    assert reserved_tokens(seq, "oracle", 2048) == 130


def test_orca_mixes_whole_prompts_with_decodes_in_one_step() -> None:
    setup = Setup("orca", {"a": (1, 10, 9), "P": (3, 500, 3)}, {"reservation": "oracle"})
    setup.run()
    assert [tokens for (tokens,) in setup.steps("tokens")][:4] == [
        {"a": 10},
        {"a": 1},
        {"P": 500, "a": 1},
        {"a": 1, "P": 1},
    ]


def test_a_reservation_above_all_memory_is_dropped_with_the_reason() -> None:
    result = Setup("orca", {"A": (1, 10, 9)}, num_blocks=127).run()
    assert result.requests["status"].tolist() == [Status.UNSERVABLE]
    assert result.requests["reject_reason"][0] == "reserves 128 KV blocks, the replica has 127"


@pytest.mark.parametrize("step_by_step", [True, False])
def test_padded_static_batch_costs_the_longest_for_all(step_by_step: bool) -> None:
    """EX-F1: (10, 5) and (50, 20): 100 prefill tokens, then 19 decode steps of width 2; both end at 20."""
    setup = Setup("static", {"A": (1, 10, 5), "B": (1, 50, 20), "C": (2, 10, 1)}, {"reservation": "oracle"})
    setup.step_by_step = step_by_step
    result = setup.run()
    assert result.requests["finish_time"].tolist() == [20, 20, 21]
    assert result.requests["num_output_tokens"].tolist() == [5, 20, 1]
    if not step_by_step:
        return  # a plan that C's arrival cuts asks for some shapes twice
    prefill, *decodes, last = setup.cost.shapes
    assert prefill == BatchShape(100, 2, 2 * 50 * 51 // 2, 100, 0, 0, 50)
    assert decodes == [BatchShape(0, 0, 0, 0, 2, 2 * (50 + k), 50 + k) for k in range(1, 20)]
    assert last.num_prefill_tokens == 10
    rows = 2 * (1 + len(decodes))
    assert (rows, result.requests["num_output_tokens"][:2].sum()) == (40, 25)  # row-steps, useful ones


def test_unpadded_static_batch_lets_finished_sequences_go_but_nobody_in() -> None:
    setup = Setup("static", {"A": (1, 10, 5), "B": (1, 50, 20), "C": (2, 10, 1)}, {"padded": False})
    setup.num_blocks = 300
    result = setup.run()
    assert result.requests["finish_time"].tolist() == [5, 20, 21]
    assert [shape.num_decode_sequences for shape in setup.cost.shapes] == [0] + [2] * 4 + [1] * 15 + [0]


def test_a_short_request_waits_for_a_generation_in_static_and_for_a_step_in_orca() -> None:
    """Head-of-line blocking."""
    requests = {"long": (1, 10, 400), "short": (2, 10, 20)}
    waits = []
    for scheduler in ("static", "orca"):
        result = Setup(scheduler, requests, {"reservation": "oracle"}).run()
        waits.append(float(result.requests["first_scheduled_time"][1]) - 1)
    assert waits == [399, 0]


# --- the textbook loop -----------------------------------------------------------------------------------------------


def test_iteration_level_reclaims_above_the_high_water_mark_before_the_step() -> None:
    """20 blocks, mark 18: two sequences of 8 blocks grow by one every 16 steps; beyond 18 B loses its memory."""
    setup = Setup("iteration_level", {"A": (1, 128, 60), "B": (1, 128, 60)}, {"high_water": 0.9, "low_water": 0.9})
    setup.num_blocks = 20
    result = setup.run()
    first = next(step for step in setup.log if step["preempted"])
    assert (first["step"], first["preempted"], first["tokens"]) == (18, "B", {"A": 1})
    assert max(20 - step["free"] for step in setup.log) <= 18
    assert (result.requests["status"] == Status.FINISHED).all()
    assert result.requests["num_preemptions"].tolist()[0] == 0


def test_iteration_level_leaves_the_last_sequence_alone_above_the_mark() -> None:
    setup = Setup("iteration_level", {"A": (1, 140, 20)}, num_blocks=10)
    setup.params = {"high_water": 0.5, "low_water": 0.5}
    result = setup.run()
    assert result.requests["finish_time"].tolist() == [20]
    assert result.requests["num_preemptions"].tolist() == [0]


def test_iteration_level_refuses_marks_in_the_wrong_order() -> None:
    with pytest.raises(InputError, match="low_water <= high_water"):
        policies.make("scheduler", "iteration_level", {"low_water": 0.99}, "here")


# --- what can never end ----------------------------------------------------------------------------------------------


def test_a_sequence_that_gives_way_to_itself_for_ever_is_given_up_with_the_reason() -> None:
    """Chunked V0: a prompt that fills all blocks finds none free for its second chunk and gives way to itself."""
    setup = Setup("vllm_v0", {"A": (1, 60, 1)}, num_blocks=4, budget=32, max_model_len=64, chunked=True)
    result = setup.run()
    assert result.requests["status"].tolist() == [Status.UNSERVABLE]
    assert "preempted 1000 times in a row without a new token" in result.requests["reject_reason"][0]


@pytest.mark.parametrize(
    "engine", ["vllm-v0", "sarathi", "orca-max", "orca-pow2", "orca-oracle", "static", "iteration-level"]
)
def test_presets_name_policies_that_can_be_made(engine: str) -> None:
    from sim.config import experiment_from_values
    from sim.config_paths import Path

    pool = {"model": "opt-13b", "gpu": "a100-40gb", "engine": engine}
    workload = {
        "num_requests": 1,
        "arrivals": {"process": "poisson", "rate": 1.0},
        "prompt_tokens": 10,
        "output_tokens": 2,
    }
    config = experiment_from_values({"workload": workload, "cluster": {"pools": [pool]}}, Path())
    slot = config.cluster.pools[0].scheduler
    assert slot.async_scheduling is False
    policies.make("scheduler", slot.policy, slot.params, "test")
