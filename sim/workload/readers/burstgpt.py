"""BurstGPT traces: Timestamp (seconds), Model, Request tokens, Response tokens, Log Type; Session ID in later releases.

The provider's model (ChatGPT, GPT-4) is read as the tenant: it names no model of the simulated cluster.
"""

from __future__ import annotations

from collections.abc import Iterator

from sim.workload.raw import Chunk, Facts, Reader, ReadOptions
from sim.workload.readers.columns import Layout, read_columns
from sim.workload.textfile import Head, Source

_LAYOUT = Layout(
    prompt=("request tokens",),
    output=("response tokens",),
    time=("timestamp",),
    extra={"session_id": ("session id",), "tenant": ("model",), "request_class": ("log type",)},
)


def _detect(head: Head) -> bool:
    return head.kind == "csv" and {"request tokens", "response tokens"} <= head.names


def _read(source: Source, options: ReadOptions, facts: Facts) -> Iterator[Chunk]:
    for _, chunk in read_columns(source, options, facts, _LAYOUT):
        yield chunk


BURSTGPT = Reader("BurstGPT trace (CSV)", _detect, _read)
