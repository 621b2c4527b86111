"""The example of DistServe's placement search: OPT-13B, ShareGPT lengths, up to four A100, 200 ms and 100 ms for 90 %.

    python -m sim.validation.distserve_placement --data ../shared/data

Every placement that the engine model knows (no pipelined prompts) is searched as published: the rate per GPU is halved
between 0 and 5 requests/s until the interval is below 0.25. A rate is met when TTFT and TPOT both hold for 90 % of the
requests. Published (simdistserve's README): 1.56 requests/s a GPU, prefill on two GPUs and decode on one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sim.errors import InputError
from sim.seeds import Seeds
from sim.validation.case import Case
from sim.validation.distserve_engine import Placement, cluster
from sim.validation.replay import replay
from sim.validation.tables import read_table
from sim.validation.workloads import replayed

if TYPE_CHECKING:
    from sim.units import IntArray

MOST_GPUS = 4
TTFT, TPOT, ATTAINMENT = 0.2, 0.1, 0.9  # seconds, seconds, share of requests
MOST_PER_GPU, RESOLUTION = 5.0, 0.25  # requests per second a GPU
DEGREES = (1, 2, 4)  # of tensor parallelism with coefficients


class Lengths(NamedTuple):
    """Tokens of each request."""

    prompt: IntArray
    output: IntArray


def read_lengths(data: Path) -> Lengths:
    """The 1,600 ShareGPT requests of the authors' longest run. `InputError` where they are absent."""
    rows = read_table(data / "traces" / "sharegpt_lengths.csv.gz", ("source", "prompt_len", "output_len"))
    own = rows[rows["source"].str.startswith("distserve")]
    if own.empty:
        raise InputError(f"{data / 'traces' / 'sharegpt_lengths.csv.gz'}: has no rows of distserve")
    return Lengths(*(own[key].to_numpy(dtype=np.int64) for key in ("prompt_len", "output_len")))


def candidates() -> list[Placement]:
    """Placements on at most four GPUs: tensor parallel prompts, decode in tensor or pipeline parallel."""
    decodes = [(tensor, stages) for tensor, stages in product(DEGREES, (1, 2, 4))]
    found = [Placement((tensor, 1), decode) for tensor, decode in product(DEGREES, decodes)]
    return [placement for placement in found if placement.num_gpus <= MOST_GPUS]


def attainment(data: Path, lengths: Lengths, placement: Placement, rate: float, num: int, seed: int) -> float:
    """Share of `num` requests within both limits at `rate` requests per second, arriving as a Poisson process."""
    rng = Seeds(seed).generator("validation", "placement")
    rows = rng.permutation(len(lengths.prompt))[:num]
    arrival = np.cumsum(rng.standard_exponential(num) / rate)
    prompt, output = lengths.prompt[rows], lengths.output[rows]
    section = cluster(data / "e2e" / "distserve", placement)
    found = replay(
        Case(
            dataset="distserve",
            name="placement",
            workload="sharegpt",
            pool=section["pools"][0],
            make_workload=lambda seed: replayed(arrival, prompt, output),
            measured={},
            client=False,
            cluster=section,
        )
    )
    tpot = (found.e2e - found.ttft) / np.maximum(output - 1, 1)
    return float(np.mean((found.ttft <= TTFT) & (tpot <= TPOT)))


def best_rate(data: Path, lengths: Lengths, placement: Placement, num: int, seed: int) -> float:
    """Highest rate per GPU (requests per second) that the search finds to be met; 0 where none is."""
    low, high = 0.0, MOST_PER_GPU
    while high - low > RESOLUTION:
        middle = (low + high) / 2
        if attainment(data, lengths, placement, middle * placement.num_gpus, num, seed) >= ATTAINMENT:
            low = middle
        else:
            high = middle
    return low


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m sim.validation.distserve_placement", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the measured data and traces")
    parser.add_argument("--requests", type=int, default=1600, help="of the 1,600, in random order")
    parser.add_argument("--seeds", type=int, default=3, help="searches of each placement")
    args = parser.parse_args(arguments)
    lengths = read_lengths(args.data)
    sys.stdout.write(
        "| prefill TP x PP | decode TP x PP | GPUs | requests/s a GPU, by seed | mean |\n|---|---|---|---|---|\n"
    )
    for placement in candidates():
        rates = [best_rate(args.data, lengths, placement, args.requests, seed) for seed in range(1, args.seeds + 1)]
        sides = [f"{tensor} x {stages}" for tensor, stages in (placement.prefill, placement.decode)]
        shown = ", ".join(f"{rate:.2f}" for rate in rates)
        sys.stdout.write(f"| {' | '.join(sides)} | {placement.num_gpus} | {shown} | {np.mean(rates):.2f} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(str(error))
