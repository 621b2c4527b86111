"""The report of a run, a sweep, a comparison or a plan: one self-contained HTML page, and its figures as files.

from sim.report import figures, write_figures, write_report
"""

from __future__ import annotations

from sim.report.figure_files import write_figures
from sim.report.page import figures, write_report

__all__ = ["figures", "write_figures", "write_report"]
