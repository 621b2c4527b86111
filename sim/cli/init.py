"""`servesim init`: a starter experiment with comments, which runs as it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sim.errors import InputError

EXPERIMENT = """\
# yaml-language-server: $schema=./servesim.schema.json
# Run it:      servesim run experiment.yaml --report
# Change it:   servesim run experiment.yaml --set cluster.pools.0.replicas=4 --set workload.arrivals.rate=8
# Every key:   servesim schema
# Every name:  servesim policies list, servesim models list, servesim profiles list

name: starter
seed: 1                         # the same seed gives the same bytes

workload:                       # who asks, when, and how much
  num_requests: 2000            # or duration: 600 (seconds)
  arrivals: {process: poisson, rate: 4.0}                                # requests per second
  prompt_tokens: {distribution: lognormal, mean: 900, p99: 6000, max: 8000}
  output_tokens: {distribution: lognormal, mean: 220, p99: 900, max: 1500}
# workload:                     # ... or replay a trace: CSV, JSONL, Parquet, gzipped or not; the format is detected
#   trace: my_trace.csv         # `servesim trace describe my_trace.csv` says what is in it
#   rate_scale: 1.5             # arrivals 1.5 times as dense

cluster:
  pools:
    - name: main
      replicas: 2               # copies of the model
      model: llama-3.1-8b       # or a path to a Hugging Face config.json
      gpu: h100-sxm
      tensor_parallel: 1        # GPUs a replica is cut over
      engine: vllm-v1           # fills what is not given below with that engine's defaults
      scheduler: {policy: fcfs, max_num_seqs: 256, max_num_batched_tokens: 8192}
      kv_cache: {prefix_caching: true, gpu_memory_utilization: 0.9}
  router: {policy: least_outstanding_requests}
  admission: {policy: always}

slo: {ttft: 1.0, tpot: 0.05, attainment: 0.99}   # seconds; 99 % of the requests must meet both

# Checked after the run: exit code 1 when one does not hold. Names are those of summary.json.
expect:
  - "num_finished == num_requests"
  - "slo_attainment >= 0.99"
"""


def command(
    directory: Annotated[
        Path, typer.Argument(help="Where to write; made if it is not there.", metavar="[DIR]")
    ] = Path(),
) -> None:
    """Write a starter experiment with comments, and the schema that editors complete it by."""
    from sim.cli.schema import FileKind, schema
    from sim.output import json_text, write_text

    files = {"experiment.yaml": EXPERIMENT, "servesim.schema.json": json_text(schema(FileKind.EXPERIMENT))}
    _refuse_to_overwrite(directory, list(files))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            write_text(directory / name, text)
    except OSError as error:
        raise InputError(f"{directory}: cannot be written ({error.strerror})") from None
    print(f"wrote {', '.join(str(directory / name) for name in files)}")
    print(f"next: servesim run {directory / 'experiment.yaml'}")


def _refuse_to_overwrite(directory: Path, names: list[str]) -> None:
    if directory.exists() and not directory.is_dir():
        raise InputError(f"{directory}: is a file; init takes a folder")
    there = [name for name in names if (directory / name).exists()]
    if there:
        raise InputError(f"{directory / there[0]}: exists already and is not overwritten; give another folder")
