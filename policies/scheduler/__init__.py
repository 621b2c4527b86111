"""Schedulers: what one replica executes in the next step."""

from __future__ import annotations

from collections.abc import Callable

from policies.scheduler.fcfs import Fcfs
from policies.scheduler.priority import Priority
from policies.scheduler.sglang import SGLang
from policies.scheduler.vllm_v0 import VllmV0
from sim.interfaces import Scheduler

SCHEDULERS: dict[str, Callable[..., Scheduler]] = {"fcfs": Fcfs, "priority": Priority, "sglang": SGLang, "vllm_v0": VllmV0}
