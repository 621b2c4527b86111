"""servesim: a discrete-event simulator of LLM serving clusters."""

from __future__ import annotations

import time
from importlib.metadata import PackageNotFoundError, version

__all__ = ["__version__"]

STARTED = time.perf_counter()  # process_seconds of run.json count from here

try:
    __version__ = version("servesim")
except PackageNotFoundError:  # a checkout that was not installed
    __version__ = "0+checkout"
