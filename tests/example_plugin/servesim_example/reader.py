"""A trace format: lines `seconds|prompt tokens|output tokens`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sim.workload.raw import Chunk, Facts, Reader, ReadOptions
from sim.workload.textfile import Head, Source


def _detect(head: Head) -> bool:
    return head.first_line.count("|") == 2


def _read(source: Source, options: ReadOptions, facts: Facts) -> Iterator[Chunk]:
    rows = np.array([[float(cell) for cell in line.split("|")] for line in source.lines()])
    yield Chunk(
        line=np.arange(1, len(rows) + 1),
        arrival_time=rows[:, 0],
        num_prompt_tokens=rows[:, 1].astype(np.int64),
        num_output_tokens=rows[:, 2].astype(np.int64),
    )


PIPES = Reader("lines of seconds|prompt|output", _detect, _read)
