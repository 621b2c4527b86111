"""What a page is made of: a heading, an answer, and sections of words, a figure and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.report.chart import Chart


@dataclass(frozen=True)
class Cell:
    """A cell of a table. `note`: small print after the value; `tone`: good, bad or none; `key`: what it sorts by."""

    text: str
    note: str = ""
    tone: str = ""
    key: float | str | None = None


@dataclass(frozen=True)
class Table:
    """A table whose first column names the rows. `words`: numbers of the columns of words, which are left-aligned."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    words: frozenset[int] = frozenset()
    sortable: bool = False

    def cells(self) -> list[list[Cell]]:
        """All cells as `Cell`."""
        return [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in self.rows]


@dataclass(frozen=True)
class Section:
    """A part of a page under its own heading."""

    name: str  # a word, unique in the page
    title: str
    words: Sequence[str] = ()
    chart: Chart | None = None
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()

    @classmethod
    def of(cls, chart: Chart, *tables: Table, notes: Sequence[str] = ()) -> Section:
        """A figure with its tables, under the title of the figure."""
        return cls(chart.name, chart.title, chart=chart, tables=tables, notes=notes)


@dataclass(frozen=True)
class Tile:
    """A key number with a note below."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Document:
    """A whole page."""

    kind: str  # run, sweep, comparison or plan
    name: str
    what: Sequence[str]  # what was done, one line each
    answer: str
    tone: str  # of the answer: good, bad or plain
    status: tuple[str, str, str] | None = None  # mark, name, details
    tiles: Sequence[Tile] = ()
    warnings: Sequence[str] = ()
    sections: Sequence[Section] = ()
    facts: Sequence[tuple[str, str]] = ()
    definitions: str = ""
    source: tuple[str, str] = ("", "")  # title and text of what was asked for
    footer: str = ""
    charts: Sequence[Chart] = field(init=False)

    def __post_init__(self) -> None:
        drawn = tuple(section.chart for section in self.sections if section.chart is not None)
        object.__setattr__(self, "charts", drawn)

    @property
    def sortable(self) -> bool:
        """Whether the page needs the script that sorts tables."""
        return any(table.sortable for section in self.sections for table in section.tables)
