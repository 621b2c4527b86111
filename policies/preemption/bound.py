"""The thrash guard that every preemption policy carries: how often one request may be preempted."""

from __future__ import annotations


def check_bound(max_preemptions: int | None) -> None:
    """Raise ValueError for a bound below 1. With a bound every request ends: once protected it never needs a block."""
    if max_preemptions is not None and max_preemptions < 1:
        raise ValueError(f"max_preemptions must be at least 1 or null (got {max_preemptions})")
