"""The look of the figures, and SVG that follows the reader's light or dark theme.

Figures are drawn in the light palette. In the page every one of its colours becomes a CSS variable, so that one drawing
serves both themes and print. The series colours are distinguishable with the common colour vision deficiencies and have
a contrast of at least 3:1 on their background in both themes.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID = "#1c2530", "#56616e", "#dde2e8"
BLUE, ORANGE, GREEN, PURPLE, AMBER, SKY, RED = (
    "#0068a8",
    "#c2500a",
    "#00855f",
    "#8a4f9e",
    "#a87400",
    "#3d8fc4",
    "#b3261e",
)
SERIES = (BLUE, ORANGE, GREEN, PURPLE, AMBER, SKY)
VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--grid",
    BLUE: "--blue",
    ORANGE: "--orange",
    GREEN: "--green",
    PURPLE: "--purple",
    AMBER: "--amber",
    SKY: "--sky",
    RED: "--red",
}
WIDTH = 9.0  # inches; the page scales figures to its own width

RC: Any = {  # typed Any: the stubs of Matplotlib want the literal of every key
    "axes.axisbelow": True,
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": MUTED,
    "axes.labelsize": 8.5,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "figure.facecolor": "none",
    "font.size": 8.5,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    "path.simplify": True,
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": MUTED,
    "xtick.labelsize": 8,
    "ytick.color": MUTED,
    "ytick.labelsize": 8,
}


def new_figure(height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure of the page's width and `height` inches, and its axes row by row. Call within `rc_context(RC)`."""
    import numpy as np
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = np.atleast_1d(figure.subplots(rows, columns, **options))
    return figure, list(axes.ravel())


def to_svg(figure: Figure, name: str) -> str:
    """Inline SVG of the figure, colours as CSS variables, text as text; equal figures give equal bytes."""
    import matplotlib

    out = io.StringIO()
    # The salt makes the ids of clip paths repeatable, and different from those of the other figures of a page.
    with matplotlib.rc_context({**RC, "svg.hashsalt": name}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _inline(out.getvalue(), name)


def _inline(svg: str, name: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)  # would hold for the whole page; it is in style.css
    # The page labels the figure; its drawing is one image to a screen reader.
    svg = re.sub(r'<svg ([^>]*?)width="[^"]*"([^>]*?)height="[^"]*"', r'<svg aria-hidden="true" \1\2', svg, count=1)
    svg = re.sub(r'<svg ([^>]*?)height="[^"]*"([^>]*?)width="[^"]*"', r'<svg aria-hidden="true" \1\2', svg, count=1)
    svg = re.sub(r"(font: [^;\"']*?px )[^;\"]*", r"\1var(--font)", svg)
    svg = re.sub(r'<g id="[A-Za-z_]+[0-9]*">', "<g>", svg)  # names of parts, the same in every figure
    svg = re.sub(r'(id="|url\(#|href="#)([A-Za-z])', rf"\1{name}-\2", svg)
    return re.sub("|".join(VARIABLES), lambda match: f"var({VARIABLES[match[0]]})", svg)
