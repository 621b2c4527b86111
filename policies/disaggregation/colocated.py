"""Prefill and decode of a request run on the same replica."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Colocated:
    """No disaggregation."""
