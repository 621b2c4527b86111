"""servesim: a discrete-event simulator of LLM serving clusters.

`sim.run`, `sim.sweep`, `sim.compare`, `sim.plan` and `sim.load` are the Python interface (sim/api.py, PYTHON.md).
"""

from __future__ import annotations

import time
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.api import compare, load, plan, run, sweep

__all__ = ["__version__", "compare", "load", "plan", "run", "sweep"]

STARTED = time.perf_counter()  # process_seconds of run.json count from here

try:
    __version__ = version("servesim")
except PackageNotFoundError:  # a checkout that was not installed
    __version__ = "0+checkout"


def __getattr__(name: str) -> Any:
    """The functions of the Python interface, loaded when they are first asked for: `import sim` stays light."""
    if name not in __all__:
        raise AttributeError(f"module 'sim' has no attribute '{name}'")
    from sim import api

    return getattr(api, name)
