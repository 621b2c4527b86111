"""LoRA slots in the vLLM V1 preset against recordings of the real scheduler (0.33.0), every field of every step."""

from __future__ import annotations

from typing import Any

from test_vllm_v1 import idle, named, parametrise, prompt_tokens, recorded, scenarios
from v1_replay import Replay, replay


def run(scenario: dict[str, Any], step_by_step: bool) -> Replay:
    requests = scenario["requests"]
    return replay(
        scenario["config"],
        [r["arrival_step"] - 1 for r in requests],
        [prompt_tokens(int(r["id"][1:]), r["prompt_len"], r["group"], r["shared_len"]) for r in requests],
        [r["max_tokens"] for r in requests],
        [r.get("stop_after", 0) for r in requests],
        [r["priority"] for r in requests],
        step_by_step=step_by_step,
        adapters=[f"adapter-{r['lora']}" if r["lora"] else None for r in requests],
    )


@parametrise("vllm_v1_lora")
def test_steps_with_adapters_equal_the_recording(scenario: dict[str, Any]) -> None:
    """Sequences without a slot are passed over and keep their place; adapters share no blocks."""
    replayed = run(scenario, step_by_step=True)
    calls = {call.time: call for call in replayed.calls}
    names = [r["id"] for r in scenario["requests"]]
    for step, record in enumerate(scenario["steps"]):
        finished = [names[row] for row, time in replayed.finished.items() if time == step + 1]
        assert sorted(finished) == sorted(record["finished"]), f"step {step + 1}"
        if idle(record):
            assert step not in calls
            continue
        expected, got = recorded(record), named(scenario, calls.pop(step))
        if scenario["config"]["policy"] == "priority":  # recorded in heap order
            expected["waiting"].sort()
            got["waiting"].sort()
        assert got == expected, f"step {step + 1}"
    assert not calls


def test_fast_forward_gives_the_same_token_times_with_adapters() -> None:
    """Also where the queue is full of sequences set aside; some steps are skipped."""
    for label, scenario in scenarios("vllm_v1_lora"):
        stepped, fast = run(scenario, step_by_step=True), run(scenario, step_by_step=False)
        assert fast.token_times() == stepped.token_times(), label
