"""Whether a policy keeps the rules: small whole runs under conditions that policies get wrong.

The runs put the policy into its slot of an experiment, everything else as an engine has it. What a policy may not
answer ends a run with `PolicyError`; what it may not depend on (clocks, global generators, the order of sets, fast-
forward) shows as a difference between two runs that must be equal.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.errors import InputError, ServesimError

if TYPE_CHECKING:
    from sim.experiment import Outcome

# Where the name of a policy of each kind stands in an experiment, and where its parameters do.
SLOTS = {
    "scheduler": "cluster.pools.0.scheduler.policy",
    "preemption": "cluster.pools.0.preemption.victim",
    "block_allocator": "cluster.pools.0.kv_cache.allocator",
    "eviction": "cluster.pools.0.kv_cache.eviction",
    "router": "cluster.router.policy",
    "admission": "cluster.admission.policy",
    "autoscaler": "cluster.autoscaler.policy",
    "disaggregation": "cluster.disaggregation.policy",
    "length_predictor": "cluster.length_predictor.policy",
}
# A method of the interface that no other kind has.
QUESTIONS = {
    "schedule": "scheduler",
    "rank": "eviction",
    "overwritten": "eviction",
    "victim": "preemption",
    "build": "block_allocator",
    "route": "router",
    "admit": "admission",
    "predict": "length_predictor",
}
_SPLIT = ("prefill", "decode", "mixed")  # pools between which a request may be split
_STEP = {"kind": "constant", "step_duration": 0.02, "per_prefill_token": 1e-5, "per_sequence": 2e-4}
MOST_SECONDS = 120.0  # of a check; our own policies take two at most, on a busy machine some ten times as long
_UNEQUAL_HASHES = ("1", "4242")  # hash seeds of two processes


@dataclass(frozen=True)
class Check:
    """One check: `detail` says why it failed, or what was seen."""

    name: str
    passed: bool
    detail: str = ""


@dataclass(frozen=True)
class Subject:
    """The policy under test: kind, name as in YAML, parameters; `roles`: of the pools that it is given."""

    kind: str
    name: str
    params: Mapping[str, Any]
    roles: tuple[str, ...] = ("mixed",)

    def experiment(self, workload: Mapping[str, Any], num_blocks: int = 400, replicas: int = 2) -> dict[str, Any]:
        """An experiment with the policy in its slot."""
        pool = {
            "replicas": replicas,
            "model": "llama-3.1-8b",
            "gpu": "h100-sxm",
            "max_model_len": 1024,
            "scheduler": {"max_num_seqs": 8, "max_num_batched_tokens": 1024},
            "kv_cache": {"num_blocks": num_blocks, "block_size": 16},
            "cost_model": dict(_STEP),
        }
        values: dict[str, Any] = {
            "name": "check",
            "workload": dict(workload),
            "cluster": {"pools": [{**pool, "name": role, "role": role} for role in self.roles]},
            "slo": {"ttft": 5.0, "attainment": 0.5},
        }
        return self._placed(values)

    def _placed(self, values: dict[str, Any]) -> dict[str, Any]:
        """`values` with the policy and its parameters in the slot of its kind."""
        here: Any = values
        *path, key = SLOTS[self.kind].split(".")
        for part in path:
            here = here[int(part)] if part.isdigit() else here.setdefault(part, {})
        here |= {key: self.name, **self.params}
        return values


def kind_of(cls: Any) -> str:
    """The kind of policy that a class is, by the question it answers. `InputError` when it cannot be told."""
    found = [kind for question, kind in QUESTIONS.items() if callable(getattr(cls, question, None))]
    if not found:
        questions = ", ".join(f"{question} ({kind})" for question, kind in QUESTIONS.items())
        name = getattr(cls, "__name__", repr(cls))
        raise InputError(f"{name}: answers no known question; give --kind, or one of the methods {questions}")
    return found[0]


def check_policy(kind: str, name: str, params: Mapping[str, Any] | None = None) -> list[Check]:
    """Run every check. Raises `InputError` for a kind that has no slot, and for an unknown name or parameter."""
    if kind not in SLOTS:
        raise InputError(f"policies of kind {kind} cannot be checked; those that can: {', '.join(SLOTS)}")
    subject = _subject(kind, name, params or {})
    return [_carry_out(title, subject, check) for title, check in CHECKS.items()]


def _subject(kind: str, name: str, params: Mapping[str, Any]) -> Subject:
    """What is checked, in a cluster that can be built: a wrong name or parameter is no failed check, but a mistake."""
    if kind == "disaggregation":
        split = Subject(kind, name, params, _SPLIT)
        with suppress(InputError):  # a policy that never splits takes mixed pools only
            _prepare(split.experiment(LONE))
            return split
    subject = Subject(kind, name, params)
    _prepare(subject.experiment(LONE))
    return subject


def _carry_out(title: str, subject: Subject, check: Callable[[Subject], str]) -> Check:
    try:
        with _within(MOST_SECONDS):
            return Check(title, True, check(subject))
    except _Failed as failed:
        return Check(title, False, str(failed))
    except ServesimError as error:
        return Check(title, False, f"{type(error).__name__}: {error}")
    except Exception as error:  # whatever the policy raises is its failure, not ours
        return Check(title, False, f"{type(error).__name__}: {error}{_place(error)}")


def _place(error: BaseException) -> str:
    """Where the innermost frame of a traceback lies."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


class _Failed(Exception):
    """A check found a broken rule."""


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Fail a check that does not come to an end; where the system has no alarm, wait for ever."""
    import signal
    import threading

    if not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def give_up(*_: object) -> None:
        raise _Failed(f"did not end within {seconds:g} s: nothing makes progress")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


# --- the checks -------------------------------------------------------------------------------------------------------

LENGTHS = {
    "prompt_tokens": {"distribution": "uniform", "min": 5, "max": 400},
    "output_tokens": {"distribution": "uniform", "min": 1, "max": 60},
}
LONE = {
    "num_requests": 1,
    "arrivals": {"process": "constant", "rate": 1.0},
    "prompt_tokens": {"distribution": "fixed", "value": 1},
    "output_tokens": {"distribution": "fixed", "value": 1},
}
MANY = {
    "num_requests": 60,
    "arrivals": {"process": "poisson", "rate": 25.0},
    "tenants": {"a": 3.0, "b": 1.0},
    "classes": {"chat": 1.0, "batch": 1.0},
    "priorities": {0: 1.0, 1: 1.0},
    "max_output_tokens": {"factor": 1.5},
    "cancel_after": {"fraction": 0.1, "after": 1.5},
    "prefix": {"groups": 3, "tokens": 64},
    **LENGTHS,
}
EQUAL = {
    "num_requests": 24,
    "arrivals": {"process": "constant", "rate": 1e12},  # all at one instant of the time grid
    "prompt_tokens": {"distribution": "fixed", "value": 100},
    "output_tokens": {"distribution": "fixed", "value": 20},
}


def _empty(subject: Subject) -> str:
    """One replica, one request of one token: before it and after it there is nothing to decide on."""
    outcome = _run(subject.experiment(LONE, replicas=1))
    return _all_served(outcome)


def _valid(subject: Subject) -> str:
    return _accounted(_run(subject.experiment(MANY)))


def _ties(subject: Subject) -> str:
    """Equal requests at one instant: whatever is decided must be decided the same way again."""
    values = subject.experiment(EQUAL)
    return _equal(_run(values), _run(values), "two runs of equal requests")


def _short_of_memory(subject: Subject) -> str:
    """Memory for one long request and a bit: most steps find no free block."""
    outcome = _run(subject.experiment(MANY, num_blocks=40))
    seen = _accounted(outcome)
    return f"{seen}, {outcome.summary['num_preemptions']} preemptions"


def _deterministic(subject: Subject) -> str:
    """The same run twice in this process, under different states of the global generators."""
    import random

    import numpy as np

    values = subject.experiment(MANY, num_blocks=60)
    outcomes = []
    states = random.getstate(), np.random.get_state()
    try:
        for seed in (1, 2):
            random.seed(seed)
            np.random.seed(seed)
            outcomes.append(_run(values))
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
    return _equal(outcomes[0], outcomes[1], "two runs in one process")


def _other_process(subject: Subject) -> str:
    """In processes with other hash seeds: what depends on the order of a set or on `hash` differs."""
    from sim import yamlfile

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "experiment.yaml"
        file.write_text(yamlfile.dump(subject.experiment(MANY, num_blocks=60)), encoding="utf-8")
        found = [_summary_of_process(file, Path(folder) / seed, seed) for seed in _UNEQUAL_HASHES]
    if found[0] != found[1]:
        raise _Failed("two processes with different hash seeds disagree: something depends on the order of a set")
    return "equal bytes under two hash seeds"


def _summary_of_process(file: Path, out: Path, seed: str) -> bytes:
    command = [sys.executable, "-m", "sim", "run", str(file), "--out", str(out), "--quiet"]
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise _Failed(f"in a process of its own: {done.stderr.strip().splitlines()[-1:]}")
    return (out / "summary.json").read_bytes() + (out / "requests.parquet").read_bytes()


def _fast_forward(subject: Subject) -> str:
    for num_blocks in (400, 60):
        values = subject.experiment(MANY, num_blocks)
        _equal(_run(values), _run(values, step_by_step=True), f"fast-forward and stepping with {num_blocks} blocks")
    return "equal to the last bit"


CHECKS: dict[str, Callable[[Subject], str]] = {
    "empty input": _empty,
    "valid decisions": _valid,
    "ties": _ties,
    "no free blocks": _short_of_memory,
    "deterministic": _deterministic,
    "deterministic across processes": _other_process,
    "fast-forward equals step by step": _fast_forward,
}


# --- runs and what is asked of them -----------------------------------------------------------------------------------


def _prepare(values: dict[str, Any]) -> Any:
    from sim.config import experiment_from_values
    from sim.experiment import RunOptions, prepare

    config = experiment_from_values(values, Path(), "check")
    return prepare(config, RunOptions())


def _run(values: dict[str, Any], step_by_step: bool = False) -> Outcome:
    from sim.config import experiment_from_values
    from sim.experiment import RunOptions, run

    return run(experiment_from_values(values, Path(), "check"), RunOptions(step_by_step=step_by_step, step_log=True))


def _accounted(outcome: Outcome) -> str:
    """Every request has one end."""
    summary = outcome.summary
    ends = ("finished", "rejected", "cancelled", "timed_out", "failed", "unservable")
    counts = {name: summary[f"num_{name}"] for name in ends}
    if sum(counts.values()) != summary["num_requests"]:
        raise _Failed(f"{summary['num_requests']} requests, but {sum(counts.values())} ends ({counts})")
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count)


def _all_served(outcome: Outcome) -> str:
    seen = _accounted(outcome)
    if not outcome.summary["num_finished"]:
        raise _Failed(f"a lone small request on an idle replica was not served: {seen}")
    return seen


def _equal(one: Outcome, other: Outcome, what: str) -> str:
    """Raise where two runs differ, with the first request or key that does."""
    for row, (a, b) in enumerate(zip(one.requests.to_dict("records"), other.requests.to_dict("records"), strict=True)):
        for column, value in a.items():
            if value != b[column] and not (value != value and b[column] != b[column]):
                raise _Failed(f"{what} differ: {column} of request {row} is {value} and {b[column]}")
    keys = [key for key, value in one.summary.items() if value != other.summary[key]]
    if keys:
        raise _Failed(f"{what} differ in {', '.join(keys)}")
    return "equal to the last bit"
