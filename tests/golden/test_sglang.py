"""SGLang's prefix tree, prefill admission and decode retraction against recordings of the real classes (0.5.23)."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from policies.scheduler.sglang_rules import (
    NewTokenRatio,
    PrefillBudget,
    Verdict,
    expected_tokens,
    keep_order,
    ratio_after_retraction,
)
from sim.kv.prefix_order import LONGEST_QUEUE, depth_first_by_weight, longest_prefix_first
from sim.kv.radix import Key, RadixTree, key_length, key_slice

SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "golden"
FOLDERS = [SHARED, Path(__file__).parent / "data", Path(os.environ.get("SERVESIM_GOLDEN_DIR", "/nonexistent"))]


@cache
def recordings(part: str) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for folder in FOLDERS:
        for path in sorted(folder.glob("sglang*.json")):
            found += [(f"{path.stem}-{i}", case) for i, case in enumerate(json.loads(path.read_text()).get(part, []))]
    return found


def parametrise(part: str) -> Any:
    cases = recordings(part)
    if not cases:
        return pytest.mark.skip(reason="no recording sglang*.json: ../shared/data/golden is absent")
    return pytest.mark.parametrize("case", [case for _, case in cases], ids=[label for label, _ in cases])


def as_key(runs: list[list[int]], namespace: Any = None) -> Key:
    return [((namespace, base), 0, count) for base, count in runs]


@parametrise("radix")
def test_tree_operations_equal_the_recording(case: dict[str, Any]) -> None:
    """Matched, present and evicted tokens, and the evictable and protected sizes after every operation."""
    tree = RadixTree(case["page_size"])
    handles: dict[int, Any] = {}
    for i, (op, expected) in enumerate(zip(case["ops"], case["results"], strict=True)):
        name, *rest = op
        if name == "evict":
            result = tree.evict(rest[0])
        elif name == "unlock":
            tree.unlock(handles.pop(rest[0]))
            result = expected[0]
        elif name == "lock":
            result, node = tree.match(as_key(*rest[1:]))
            tree.lock(node)
            handles[rest[0]] = node
        else:
            result, _ = tree.match(as_key(*rest)) if name == "match" else tree.insert(as_key(*rest))
        assert [result, tree.num_evictable, tree.num_protected] == expected, f"operation {i}: {op}"
        tree.check_integrity()


def whole_key(request: dict[str, Any]) -> Key:
    """Prompt and outputs of a request."""
    outputs = [((None, 990), 0, request["outputs"])] if request["outputs"] else []
    return as_key(request["prompt"]) + outputs


class Pass:
    """The state before a recorded prefill pass, built as its description says."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.config, self.state = case["config"], case["state"]
        self.tree = RadixTree(self.config["page_size"])
        for runs in self.state["tree_inserts"]:
            self.tree.insert(as_key(runs))
        self.own = 0
        for request in self.state["running"]:
            matched, node = self.tree.match(key_slice(whole_key(request), 0, request["tree_locked"]))
            assert matched == request["tree_locked"]
            self.tree.lock(node)
            self.own += request["own_tokens"]
        chunked = self.state["chunked"]
        if chunked:
            key = key_slice(whole_key(chunked), 0, chunked["computed"])
            self.tree.lock(self.tree.insert(key)[1])

    @property
    def free(self) -> int:
        return int(self.config["pool_tokens"]) - self.tree.num_evictable - self.tree.num_protected - self.own

    def budget(self) -> PrefillBudget:
        config, ratio = self.config, self.config["new_token_ratio"]
        reserved = sum(
            expected_tokens(r["max_new"], r["outputs"], 1.0 if r["ignore_eos"] else ratio)
            for r in self.state["running"]
        )
        return PrefillBudget(
            lambda: self.free + self.tree.num_evictable,
            reserved,
            config["page_size"],
            config["max_prefill_tokens"],
            config["chunked_prefill_size"],
            config["mixed_decode_tokens"],
        )

    def ordered(self) -> tuple[list[dict[str, Any]], list[int]]:
        """The waiting queue as the policy orders it, and the matches that it looked up."""
        waiting, policy = self.state["waiting"], self.config["policy"]
        if policy == "lof":
            return sorted(waiting, key=lambda r: -r["max_new"]), []
        if policy == "fcfs-priority":
            return sorted(waiting, key=lambda r: (-r["priority"], r["entry"])), []
        if policy == "fcfs":
            return waiting, []
        if policy == "lpm" and len(waiting) > LONGEST_QUEUE:
            return waiting, [0] * len(waiting)
        keys = [key_slice(key, 0, key_length(key) - 1) for key in map(whole_key, waiting)]
        found = [self.tree.match(key) for key in keys]
        if policy == "lpm":
            order = longest_prefix_first(keys, [matched for matched, _ in found])
        else:
            order = depth_first_by_weight(self.tree, [node for _, node in found])
        return [waiting[i] for i in order], [found[i][0] for i in order]


@parametrise("admission")
def test_prefill_passes_equal_the_recording(case: dict[str, Any]) -> None:
    """Order of the queue, budgets, what each candidate got, and why the scan stopped."""
    before, result = Pass(case), case["result"]
    tree, config = before.tree, case["config"]
    assert (before.free, tree.num_evictable, tree.num_protected) == (
        result["free_before"],
        result["evictable_before"],
        result["protected_before"],
    )
    queue, matched = before.ordered()
    assert [request["id"] for request in queue] == result["order"]
    assert matched == result.get("matched", [])
    budget = before.budget()
    assert budget.total_left == pytest.approx(result["rem_total_start"])
    admitted, chunked = [], before.state["chunked"]
    if chunked:
        remaining = key_length(whole_key(chunked)) - chunked["computed"]
        extend = budget.continue_chunked(remaining, chunked["max_new"])
        assert (extend, extend < remaining) == (result["chunked_extend"], result["chunked_unfinished"])
        admitted.append(chunked["id"])
    tried, stop, new_chunked, full = [], "queue end", None, False
    for request in queue:
        if len(admitted) + len(before.state["running"]) >= config["max_running_requests"]:
            stop, full = "slots", True
            break
        if budget.verdict() is Verdict.OTHER:
            stop = "budget spent"
            break
        key = whole_key(request)
        prefix, node = tree.match(key_slice(key, 0, key_length(key) - 1))
        tree.lock(node)
        uncached = key_length(key) - prefix
        tokens, verdict = budget.try_add(uncached, request["max_new"], request["outputs"])
        if not tokens:
            tree.unlock(node)
        else:
            admitted.append(request["id"])
            new_chunked = request["id"] if tokens < uncached else new_chunked
        tried.append([request["id"], prefix, tokens, verdict.value, pytest.approx(budget.total_left)])
        if verdict is not Verdict.CONTINUE:
            stop, full = verdict.value, verdict is Verdict.NO_TOKEN
            break
    assert [entry[:4] for entry in tried] == [entry[:4] for entry in result["tried"]]
    assert tried == result["tried"]
    assert (stop, full, admitted, new_chunked) == (
        result["stop"],
        result["batch_is_full"],
        result["admitted"],
        result["new_chunked"],
    )


@dataclass
class Decoding:
    """A request of a recorded retraction."""

    id: str
    num_prompt_tokens: int
    num_emitted: int
    max_output_tokens: int
    held: int
    needs: int


@parametrise("retraction")
def test_retractions_equal_the_recording(case: dict[str, Any]) -> None:
    """Victims in order, survivors, an abort where even one does not fit, and the ratio set afterwards."""
    requests = [
        Decoding(r["id"], r["prompt_len"], r["outputs"], r["max_new"], r["held_tokens"], r["needs"])
        for r in case["requests"]
    ]
    kept = [requests[i] for i in keep_order(requests)]
    available = case["free_tokens"] + case["evictable_tokens"]
    retracted, aborted = [], []
    while len(kept) > 1 and (not retracted or sum(r.needs for r in kept) > available):
        victim = kept.pop()
        retracted.append(victim.id)
        available += victim.held
    if sum(r.needs for r in kept) > available:
        aborted.append(kept.pop().id)
    assert (retracted, aborted, [r.id for r in kept]) == (case["retracted"], case["aborted"], case["kept"])
    assert ratio_after_retraction(kept) == pytest.approx(case["new_token_ratio"])


def test_ratio_decays_as_recorded() -> None:
    """0.7 to 0.098 in 600 clean decode steps."""
    ratio = NewTokenRatio()
    values = []
    for _ in range(601):
        ratio.after_decode()
        values.append(ratio.value)
    assert values[:3] == pytest.approx([0.6989966666666666, 0.6979933333333332, 0.6969899999999999])
    assert values[599:] == pytest.approx([0.098, 0.098])
