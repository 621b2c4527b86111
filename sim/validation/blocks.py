"""KV blocks that the memory model predicts, against the counts that measured servers reported."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sim.build import PoolBuilder
from sim.errors import InputError
from sim.validation.case import Case
from sim.validation.replay import configuration


@dataclass(frozen=True)
class BlockCount:
    """Blocks of one server, the null block included."""

    model: str
    gpu: str
    tensor_parallel: int
    measured: int
    predicted: int | None  # None: it does not fit, by the memory model
    case: str  # a run that reported it

    @property
    def error(self) -> float | None:
        """predicted / measured - 1."""
        return None if self.predicted is None else self.predicted / self.measured - 1.0


def block_counts(cases: Iterable[Case]) -> list[BlockCount]:
    """One entry for each server configuration among the cases whose block count was recorded."""
    found: dict[tuple[object, ...], BlockCount] = {}
    for case in cases:
        measured = case.pool.get("kv_cache", {}).get("num_blocks")
        if not measured:
            continue
        parallel = int(case.pool.get("tensor_parallel", 1))
        key = (case.model, case.gpu, parallel, measured)
        if key not in found:
            found[key] = BlockCount(case.model, case.gpu, parallel, int(measured), _predicted(case), case.key)
    return list(found.values())


def _predicted(case: Case) -> int | None:
    cache = {name: value for name, value in case.pool["kv_cache"].items() if name != "num_blocks"}
    unset = replace(case, pool={**case.pool, "kv_cache": cache})
    try:
        return PoolBuilder(configuration(unset), 0, step_by_step=False, step_log=False).num_blocks
    except InputError:
        return None
