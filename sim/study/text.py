"""Tables for a terminal: columns as wide as their widest cell, never wrapped."""

from __future__ import annotations

from collections.abc import Sequence

_GAP = "  "


def aligned(rows: Sequence[Sequence[str]], num_left: int = 0) -> list[str]:
    """The rows as lines; the first `num_left` columns flush left, the others flush right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [_line(row, widths, num_left) for row in rows]


def _line(row: Sequence[str], widths: Sequence[int], num_left: int) -> str:
    cells = [
        cell.ljust(width) if i < num_left else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return _GAP.join(cells).rstrip()
