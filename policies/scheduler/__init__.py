"""Schedulers: what one replica executes in the next step."""

from __future__ import annotations

from collections.abc import Callable

from policies.scheduler.distserve import DistServe
from policies.scheduler.drr import Drr
from policies.scheduler.fcfs import Fcfs
from policies.scheduler.iteration_level import IterationLevel
from policies.scheduler.llama_server import LlamaServer
from policies.scheduler.mlfq import Mlfq
from policies.scheduler.orca import Orca
from policies.scheduler.peak_memory import PeakMemory
from policies.scheduler.priority import Priority
from policies.scheduler.sarathi import Sarathi
from policies.scheduler.sglang import SGLang
from policies.scheduler.simple_chunking import SimpleChunking
from policies.scheduler.sorted import Sorted
from policies.scheduler.static import Static
from policies.scheduler.trtllm import TensorRtLlm
from policies.scheduler.vllm_v0 import VllmV0
from policies.scheduler.vtc import Vtc
from policies.scheduler.wfq import Wfq
from sim.interfaces import Scheduler

SCHEDULERS: dict[str, Callable[..., Scheduler]] = {
    "fcfs": Fcfs,
    "priority": Priority,
    "sglang": SGLang,
    "vllm_v0": VllmV0,
    "iteration_level": IterationLevel,
    "orca": Orca,
    "sarathi": Sarathi,
    "simple_chunking": SimpleChunking,
    "static": Static,
    "sorted": Sorted,
    "mlfq": Mlfq,
    "vtc": Vtc,
    "wfq": Wfq,
    "drr": Drr,
    "trtllm": TensorRtLlm,
    "distserve": DistServe,
    "llama_server": LlamaServer,
    "peak_memory": PeakMemory,
}
