"""Tables for a terminal: columns as wide as their widest cell, never wrapped."""

from __future__ import annotations

from collections.abc import Collection, Sequence

_GAP = "  "


def aligned(rows: Sequence[Sequence[str]], left: Collection[int] = ()) -> list[str]:
    """The rows as lines; columns with a number in `left` (-1: the last) flush left, the others flush right."""
    size = len(rows[0])
    widths = [max(len(row[i]) for row in rows) for i in range(size)]
    flush = {i % size for i in left}
    return [_line(row, widths, flush) for row in rows]


def _line(row: Sequence[str], widths: Sequence[int], left: Collection[int]) -> str:
    cells = [
        cell.ljust(width) if i in left else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return _GAP.join(cells).rstrip()
