"""The report of a run: one self-contained HTML page, and its figures for notebooks.

from sim.report import figures, write_report
"""

from __future__ import annotations

from sim.report.page import figures, write_report

__all__ = ["figures", "write_report"]
