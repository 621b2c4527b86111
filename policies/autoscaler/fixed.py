"""The number of replicas never changes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Fixed:
    """No autoscaling: every pool keeps the replicas it was given.

    Source: textbook baseline. Ignores: load.
    """
