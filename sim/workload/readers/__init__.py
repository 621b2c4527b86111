"""Trace formats: one reader a file, one line a format; detection is by content, in this order."""

from __future__ import annotations

from sim import plugins
from sim.errors import unknown_name
from sim.workload.raw import Reader
from sim.workload.readers.aiperf import AIPERF
from sim.workload.readers.azure import AZURE
from sim.workload.readers.burstgpt import BURSTGPT
from sim.workload.readers.guidellm import GUIDELLM
from sim.workload.readers.inference_perf import INFERENCE_PERF
from sim.workload.readers.llmservingsim import LLMSERVINGSIM
from sim.workload.readers.mooncake import MOONCAKE
from sim.workload.readers.servegen import SERVEGEN
from sim.workload.readers.sharegpt import SHAREGPT
from sim.workload.readers.sharegpt_lengths import SHAREGPT_LENGTHS
from sim.workload.readers.splitwise import SPLITWISE
from sim.workload.readers.table import TABLE
from sim.workload.readers.vidur import VIDUR
from sim.workload.readers.vllm_bench import VLLM_BENCH
from sim.workload.textfile import Head, Source

READERS: dict[str, Reader] = {
    "table": TABLE,
    "azure": AZURE,
    "burstgpt": BURSTGPT,
    "mooncake": MOONCAKE,
    "vidur": VIDUR,
    "sharegpt": SHAREGPT,
    "sharegpt-lengths": SHAREGPT_LENGTHS,
    "llmservingsim": LLMSERVINGSIM,
    "splitwise": SPLITWISE,
    "servegen": SERVEGEN,
    "vllm-bench": VLLM_BENCH,
    "guidellm": GUIDELLM,
    "aiperf": AIPERF,
    "inference-perf": INFERENCE_PERF,
}


def find_reader(name: str, source: Source, head: Head) -> tuple[str, Reader]:
    """(name, reader) of a format by name, or by the content of the file for "auto"."""
    if name in READERS:
        return name, READERS[name]
    readers = READERS | plugins.installed(plugins.TRACE_READERS, READERS)
    if name != "auto":
        if name not in readers:
            raise unknown_name("trace format", name, ["auto", *readers])
        return name, readers[name]
    for known, reader in readers.items():
        if reader.detect(head):
            return known, reader
    seen = ", ".join(sorted(head.names)[:12]) or head.first_line.strip()[:80]
    raise source.error(
        None,
        f"format not recognised (a {head.kind} file with: {seen}); known formats: {', '.join(readers)}; for another "
        "table give columns: {num_prompt_tokens: NAME, num_output_tokens: NAME, arrival_time: NAME}",
    )
