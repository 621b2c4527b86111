"""Small runs of the engine for tests of memory, preemption and order: one replica, steps of a second."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from policies.admission import ADMISSIONS
from policies.preemption import PREEMPTIONS
from policies.router import ROUTERS
from policies.scheduler import SCHEDULERS
from sim.cost import ConstantCost
from sim.engine import Simulation
from sim.kv.paged import PagedKV
from sim.replica import Limits, Replica
from sim.result import RunResult
from sim.workload.base import Workload


def build_rows(
    rows: Sequence[tuple[int, int]],  # prompt, output tokens
    *,
    num_blocks: int = 65,
    block_size: int = 16,
    prefix_caching: bool = False,
    depth: int = 1,
    budget: int = 64,
    num_seqs: int = 8,
    reserve_full_isl: bool = True,
    max_model_len: int = 10**6,
    scheduler: Any = None,
    preemption: Any = None,
    admission: Any = None,
    kv: Any = None,
    arrivals: Sequence[float] | None = None,
    declared: Sequence[int] | None = None,
    step_duration: float = 1.0,
    step_by_step: bool = False,
    replica_options: dict[str, Any] | None = None,
    simulation_options: dict[str, Any] | None = None,
    **columns: Any,
) -> Simulation:
    """A simulation that is ready to run. `columns` are further columns of the workload."""
    prompts, outputs = zip(*rows, strict=True)
    workload = Workload(
        arrival_time=np.array([0.0] * len(rows) if arrivals is None else arrivals, dtype=float),
        num_prompt_tokens=np.array(prompts),
        num_output_tokens=np.array(outputs),
        max_output_tokens=np.array(outputs if declared is None else declared),
        **{name: np.array(column) if isinstance(column, list) else column for name, column in columns.items()},
    )
    limits = Limits(num_seqs, budget, max_model_len, depth=depth, reserve_full_isl=reserve_full_isl)

    def make(clock: Any, on_end: Any, spans: Any) -> list[Replica]:
        return [
            Replica(
                0,
                clock,
                scheduler or SCHEDULERS["fcfs"](),
                preemption or PREEMPTIONS["newest"](),
                kv or PagedKV(num_blocks, block_size, prefix_caching),
                ConstantCost(step_duration),
                limits,
                on_end,
                spans.content_spans,
                step_by_step=step_by_step,
                **(replica_options or {}),
            )
        ]

    door = admission or ADMISSIONS["always"]()
    return Simulation(workload, make, ROUTERS["round_robin"](), door, **(simulation_options or {}))


def run_rows(rows: Sequence[tuple[int, int]], **options: Any) -> RunResult:
    """Build and run."""
    return build_rows(rows, **options).run()


def play(simulation: Simulation, until: float) -> None:
    """Run up to an instant and leave everything as it is then."""
    simulation._start_arrivals()
    simulation.clock.env.run(until=until)
