"""What other distributions add: entry points of the groups `servesim.cost_models` and `servesim.trace_readers`.

A cost model is a callable `(CostContext, params) -> ExplainingCostModel`; a trace reader is a `Reader`. Policies have a
group of their own, `servesim.policies` (policies/__init__.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import metadata
from typing import Any

from sim.errors import InputError

COST_MODELS = "servesim.cost_models"
TRACE_READERS = "servesim.trace_readers"


def installed(group: str, own: Iterable[str]) -> dict[str, Any]:
    """Loaded entry points of a group by name. `InputError` for one that cannot be loaded or has a name of `own`."""
    taken = set(own)
    found = {}
    for point in _points(group):
        if point.name in taken:
            raise InputError(f"{group}: '{point.name}' of an installed package has the name of one that ships")
        found[point.name] = _loaded(point)
    return found


@cache
def _points(group: str) -> metadata.EntryPoints:
    """One pass over all installed distributions (tens of milliseconds)."""
    return metadata.entry_points(group=group)


def _loaded(point: metadata.EntryPoint) -> Any:
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise InputError(f"{point.group}: '{point.name}' = {point.value} cannot be loaded ({error})") from None
