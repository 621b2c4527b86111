"""The whole calibration on this machine's CPU: measure, fit, simulate, really serve, compare.

Half of the measuring happens before the real run and half after it, so that a drift of the machine cancels. The real
run and the simulation share arrivals, lengths and budgets, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sim.calibration.cpu.fit import ENGINE, CpuFit, errors, gpu_values, model_values
from sim.calibration.cpu.measure import Calibrator, Composition, random_compositions
from sim.calibration.cpu.server import Limits, Served, Server
from sim.calibration.cpu.transformer import Sizes, Transformer
from sim.calibration.measure.records import write_rows, write_text
from sim.calibration.profile import emit

if TYPE_CHECKING:
    import pandas as pd

    from sim.units import FloatArray

Echo = Callable[[str], None]
MAX_CONTEXT = 192  # prompt and output together
MAX_NOISE = 2.0  # p90 / p10 of the probe; above it nothing can be concluded


@dataclass(frozen=True)
class Plan:
    """How much is measured. The defaults take some 12 s of one core."""

    num_train: int = 60
    num_held_out: int = 30
    rounds: int = 4  # half before the real run, half after it
    num_requests: int = 80
    load: float = 0.2  # arrival rate as a share of what the simulation says can be served
    seed: int = 0


class Comparison(NamedTuple):
    """Simulated over measured, minus one; medians and means over requests."""

    step_error: float  # median |predicted / measured - 1| of held-out steps
    step_bias: float  # median of predicted / measured - 1
    e2e_median_ratio: float  # median over requests of simulated / measured
    e2e_mean_error: float
    ttft_mean_error: float
    tpot_mean_error: float
    busy_error: float
    steps_error: float
    utilisation: float  # of the real run
    noise: float  # p90 / p10 of the probe

    @property
    def is_conclusive(self) -> bool:
        return self.noise <= MAX_NOISE


class Requests(NamedTuple):
    """The workload: lengths in tokens and prompts."""

    prompts: list[Any]
    num_output_tokens: list[int]


def run_pipeline(out: Path, plan: Plan | None = None, echo: Echo = print) -> Comparison:
    """Measure, fit, simulate, serve and compare; everything goes into the folder `out`."""
    plan = plan or Plan()
    out.mkdir(parents=True, exist_ok=True)
    sizes, limits, rng = Sizes(), Limits(), np.random.default_rng(plan.seed)
    model = Transformer(sizes, limits.max_num_seqs, MAX_CONTEXT)
    steps = random_compositions(rng, plan.num_train + plan.num_held_out, limits, MAX_CONTEXT)
    train, held_out = steps[: plan.num_train], steps[plan.num_train :]
    calibrator = Calibrator(model, limits, plan.seed)
    calibrator.rounds(steps, 1)  # warm up
    calibrator.samples = type(calibrator.samples)()
    calibrator.rounds(steps, plan.rounds // 2)
    requests = make_requests(rng, plan.num_requests, sizes)
    arrivals = _arrivals(calibrator, train, sizes, requests, limits, plan, out, rng)
    served = Server(model, limits).run(arrivals, *requests)
    calibrator.rounds(steps, plan.rounds - plan.rounds // 2)
    _write_samples(calibrator, out)
    fit = CpuFit(calibrator.samples, train, sizes, MAX_CONTEXT)
    simulated = simulate(fit, arrivals, requests, limits, out)
    found = compare(fit, calibrator, held_out, served, simulated, arrivals, requests)
    write_rows(
        out / "comparison.csv", [(name, f"{value:.4f}") for name, value in found._asdict().items()], ("what", "value")
    )
    echo(describe(found))
    return found


def make_requests(rng: np.random.Generator, count: int, sizes: Sizes) -> Requests:
    """Prompts log-uniform in 8..120 tokens, outputs in 4..64."""
    prompts = [rng.integers(0, sizes.vocab, int(2.0 ** rng.uniform(3, np.log2(120)))) for _ in range(count)]
    return Requests(prompts, [int(2.0 ** rng.uniform(2, 6)) for _ in range(count)])


def _arrivals(
    calibrator: Calibrator,
    train: list[Composition],
    sizes: Sizes,
    requests: Requests,
    limits: Limits,
    plan: Plan,
    out: Path,
    rng: np.random.Generator,
) -> FloatArray:
    """Poisson arrivals at the wanted share of the rate at which the simulation serves all requests at once."""
    fit = CpuFit(calibrator.samples, train, sizes, MAX_CONTEXT)
    at_once = simulate(fit, np.zeros(plan.num_requests), requests, limits, out)
    gaps = rng.exponential(float(at_once.requests.finish_time.max()) / plan.num_requests / plan.load, plan.num_requests)
    return np.asarray(np.cumsum(gaps) - gaps[0])


# --- simulating -------------------------------------------------------------------------------------------------------


def simulate(fit: CpuFit, arrivals: FloatArray, requests: Requests, limits: Limits, out: Path) -> Any:
    """Run the simulator on the written profile, as a user would; the outcome of `sim.experiment.run`."""
    from sim import experiment
    from sim.config import load_experiment

    write_text(out / "gpu.yaml", emit(gpu_values(fit.gpu)))
    write_text(out / "model.yaml", emit(model_values(fit.model)))
    write_text(out / "cpu.yaml", emit(fit.values))
    rows = zip(arrivals, (len(prompt) for prompt in requests.prompts), requests.num_output_tokens, strict=True)
    columns = ("arrival_time", "num_prompt_tokens", "num_output_tokens")
    write_rows(out / "requests.csv", [(f"{a:.9f}", p, o) for a, p, o in rows], columns)
    write_text(out / "experiment.yaml", emit(_experiment(out.resolve(), limits)))
    return experiment.run(load_experiment(out / "experiment.yaml"))


def _experiment(out: Path, limits: Limits) -> dict[str, Any]:
    pool = {
        "name": "cpu",
        "engine": "vllm-v1",
        "replicas": 1,
        "model": str(out / "model.yaml"),
        "gpu": str(out / "gpu.yaml"),
        "cost_model": {"kind": "fitted", "profile": str(out / "cpu.yaml"), "engine": ENGINE, "cuda_graphs": False},
        "scheduler": {
            "max_num_seqs": limits.max_num_seqs,
            "max_num_batched_tokens": limits.max_num_batched_tokens,
            "async_scheduling": False,
        },
        "kv_cache": {"prefix_caching": False, "num_blocks": 4096},
    }
    names = ("arrival_time", "num_prompt_tokens", "num_output_tokens")
    workload = {"trace": str(out / "requests.csv"), "format": "table", "columns": {name: name for name in names}}
    return {"name": "cpu-calibration", "workload": workload, "cluster": {"pools": [pool]}}


# --- comparing --------------------------------------------------------------------------------------------------------


def compare(
    fit: CpuFit,
    calibrator: Calibrator,
    held_out: list[Composition],
    served: Served,
    simulated: Any,
    arrivals: FloatArray,
    requests: Requests,
) -> Comparison:
    """Held-out steps, and the run as a whole."""
    error = errors(fit, calibrator.samples, held_out)
    e2e, ttft = served.finish_time - arrivals, served.first_token_time - arrivals
    gaps = np.maximum(np.array(requests.num_output_tokens) - 1, 1)
    tpot = (served.finish_time - served.first_token_time) / gaps
    frame: pd.DataFrame = simulated.requests
    replica = simulated.result.replicas[0]
    several = np.array(requests.num_output_tokens) > 1
    sim_e2e = frame["e2e"].to_numpy(dtype=float)
    return Comparison(
        step_error=float(np.median(np.abs(error))),
        step_bias=float(np.median(error)),
        e2e_median_ratio=float(np.median(sim_e2e / e2e)),
        e2e_mean_error=_mean_error(sim_e2e, e2e),
        ttft_mean_error=_mean_error(frame["ttft"].to_numpy(dtype=float), ttft),
        tpot_mean_error=_mean_error(frame["tpot"].to_numpy(dtype=float)[several], tpot[several]),
        busy_error=replica.busy_time / served.busy_time - 1.0,
        steps_error=replica.num_steps / served.num_steps - 1.0,
        utilisation=served.busy_time / float(served.finish_time.max()),
        noise=calibrator.samples.noise,
    )


def _mean_error(simulated: FloatArray, measured: FloatArray) -> float:
    return float(simulated.mean() / measured.mean() - 1.0)


def describe(found: Comparison) -> str:
    """The comparison in three lines."""
    return (
        f"held-out steps: median error {found.step_error:.1%}, bias {found.step_bias:+.1%}; "
        f"probe p90/p10 {found.noise:.2f}\n"
        f"simulated against served: E2E median {found.e2e_median_ratio - 1:+.1%}, mean {found.e2e_mean_error:+.1%}, "
        f"TTFT mean {found.ttft_mean_error:+.1%}, TPOT mean {found.tpot_mean_error:+.1%}\n"
        f"busy time {found.busy_error:+.1%}, steps {found.steps_error:+.1%}; the real run was busy "
        f"{found.utilisation:.0%} of the time"
    )


def _write_samples(calibrator: Calibrator, out: Path) -> None:
    rows = []
    for step, parts in calibrator.samples.parts.items():
        contexts, chunks = "+".join(map(str, step.contexts)), "+".join(f"{new}@{prefix}" for new, prefix in step.chunks)
        times = {"step": calibrator.samples.steps[step], **parts}
        rows += [
            (contexts, chunks, part, number, f"{seconds:.6e}")
            for part, values in times.items()
            for number, seconds in enumerate(values)
        ]
    write_rows(out / "raw.csv", rows, ("contexts", "chunks", "part", "round", "seconds"))
