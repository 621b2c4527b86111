"""Speed and memory of the simulator on four workloads, its flatness, its router, and the start-up of the program.

    python tests/benchmarks/bench_engine.py [B1 B2 B3 B4 startup flat presets router] [--fast] [--step-by-step]
        [--out table.md]

Every measurement is a process of its own. Machines differ and are shared, so each process also counts bare SimPy
timeouts right before and right after it simulates, both by the CPU time that the process was given: the scaled time
is CPU seconds * (timeouts per CPU second) / 600,000, the rate of the machine on which the goals were set. Simulation
seconds are wall seconds of the event loop; start-up (interpreter and imports + reading or drawing the workload,
tables, replicas) and results (metrics, files) stand apart.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TRACES = Path("..") / "shared" / "data" / "traces"
AZURE = TRACES / "azure_llm_2023" / "AzureLLMInferenceTrace_conv.csv.gz"
MOONCAKE = TRACES / "mooncake_fast25" / "conversation_trace.jsonl.gz"
REFERENCE_RATE = 600_000  # SimPy timeouts per second where the goals were set
TIMEOUTS = 200_000  # of one count; a third of a second
FAST_REQUESTS = 400
GIB = 2**30


@dataclass(frozen=True)
class Case:
    """A workload on a cluster of llama-3.1-8b on H100s, and what it should take."""

    name: str
    title: str
    replicas: int
    workload: dict[str, Any]
    goal: float | None = None  # scaled seconds of simulation
    router: str = "least_outstanding_requests"
    runs: int = 3
    part: int = 4000  # requests of the comparison with stepping

    def limited(self, requests: int) -> Case:
        """The same with at most so many requests."""
        key = "limit" if "trace" in self.workload else "num_requests"
        workload = {**self.workload, key: min(requests, self.workload.get(key, requests))}
        return replace(self, workload=workload, runs=1, part=min(self.part, requests))

    def missing(self) -> str | None:
        """Why the case cannot be run here; None if it can."""
        trace = self.workload.get("trace")
        return f"{self.name} skipped: no {trace}" if trace and not (ROOT / trace).exists() else None

    def experiment(self) -> dict[str, Any]:
        """The experiment, as values of its YAML file."""
        pool = {
            "replicas": self.replicas,
            "model": "llama-3.1-8b",
            "gpu": "h100-sxm",
            "tensor_parallel": 1,
            "max_model_len": 131072,
            "engine": "vllm-v1",
            "scheduler": {"async_scheduling": True},
            "kv_cache": {"prefix_caching": True},
            "cost_model": {"kind": "roofline"},
        }
        cluster = {"pools": [pool], "router": {"policy": self.router}}
        return {"name": self.name, "workload": self.workload, "cluster": cluster}


def poisson(num_requests: int, replicas: int) -> dict[str, Any]:
    """512 tokens in, 256 out, 8 requests a second and replica."""
    return {
        "num_requests": num_requests,
        "arrivals": {"process": "poisson", "rate": 8.0 * replicas},
        "prompt_tokens": {"distribution": "fixed", "value": 512},
        "output_tokens": {"distribution": "fixed", "value": 256},
    }


CASES = [
    Case("B1", "Azure chat hour", 4, {"trace": str(AZURE)}, goal=2.0),
    Case("B2", "Poisson 256/s, 512 in, 256 out", 32, poisson(100_000, 32), goal=8.0),
    Case("B3", "Mooncake conversations, prefix caching", 8, {"trace": str(MOONCAKE)}, goal=6.0, part=1500),
    Case(
        "B3-prefix",
        "the same, prefix_precise",
        8,
        {"trace": str(MOONCAKE)},
        goal=8.0,
        router="prefix_precise",
        part=1500,
    ),
    Case("B4", "Poisson 2,048/s, 512 in, 256 out", 256, poisson(1_000_000, 256), goal=120.0, runs=1, part=10_000),
]
FLAT = [(32, 10_000), (32, 100_000), (32, 1_000_000), (4, 100_000), (256, 100_000)]
PRESETS = sorted(path.stem for path in (ROOT / "policies" / "presets").glob("*.yaml"))
EXTRAS = ("startup", "flat", "presets", "router")
SCRAPES = {"weighted": 0.05, "llm_d": 0.05, "vllm_dp": 0.1}  # seconds between two looks, as deployed
ROUTER_GOALS = {
    "least_outstanding_requests": "5",
    "least_outstanding_tokens": "5",
    "prefix_approximate": "50",
    "prefix_precise": "50",
}


@dataclass
class Measurement:
    """One process that simulated one case. Seconds, bytes."""

    requests: int
    steps: int
    skipped: float  # share of the steps
    import_seconds: float  # interpreter and imports
    build_seconds: float  # workload, tables of the cost model, replicas
    startup_cpu_seconds: float  # of both
    seconds: float  # simulation, wall
    cpu_seconds: float  # simulation, CPU of this process
    results_seconds: float
    peak_memory: int
    timeout_rate: float  # SimPy timeouts per second, mean of before and after
    note: str = ""
    scaled: float = field(init=False)

    def __post_init__(self) -> None:
        self.scaled = self.cpu_seconds * self.timeout_rate / REFERENCE_RATE


# --- in the process that measures -------------------------------------------------------------------------------------


def timeout_rate(count: int = TIMEOUTS) -> float:
    """Bare SimPy timeouts per second of CPU time."""
    import simpy

    def sleeper(env: simpy.Environment) -> Any:
        for _ in range(count):
            yield env.timeout(1.0)

    env = simpy.Environment()
    env.process(sleeper(env))
    started = time.process_time()
    env.run()
    return count / (time.process_time() - started)


def measure(experiment: dict[str, Any], started: float, step_by_step: bool = False) -> tuple[Measurement, Path]:
    """Simulate an experiment and write its results; the measurement and where the results are."""
    from sim.config import experiment_from_values
    from sim.experiment import RunOptions, conclude, peak_memory, prepare, write

    imported = time.time()
    config = experiment_from_values(experiment, ROOT)
    options = RunOptions(step_by_step=step_by_step)
    simulation = prepare(config, options)
    built, startup_cpu = time.time(), time.process_time()
    before = timeout_rate()
    wall, cpu = time.perf_counter(), time.process_time()
    result = simulation.run()
    share = (time.process_time() - cpu) / (time.perf_counter() - wall)  # of a core that this process was given
    after = timeout_rate()
    simulated = time.time()
    outcome = conclude(result, simulation.workload, config, options)
    if outcome.summary["num_finished"] != len(simulation.workload):
        raise SystemExit(f"only {outcome.summary['num_finished']} of {len(simulation.workload)} requests finished")
    folder = Path(tempfile.mkdtemp()) / "run"
    write(outcome, folder)
    steps = outcome.summary["num_steps"]
    skipped = sum(replica.num_skipped_steps for replica in result.replicas) / steps
    loop = result.wall_seconds
    times = (imported - started, built - imported, startup_cpu, loop, loop * share, time.time() - simulated)
    return Measurement(len(simulation.workload), steps, skipped, *times, peak_memory(), (before + after) / 2), folder


def measure_ratio(experiment: dict[str, Any], started: float) -> dict[str, Any]:
    """Seconds of stepping over seconds of fast-forward, and whether both wrote the same bytes."""
    fast, fast_folder = measure(experiment, started)
    slow, slow_folder = measure(experiment, time.time(), step_by_step=True)
    names = ("requests.parquet", "summary.json")
    same = all((fast_folder / name).read_bytes() == (slow_folder / name).read_bytes() for name in names)
    return {"requests": fast.requests, "ratio": slow.scaled / fast.scaled, "same_bytes": same}


def measure_routers(experiment: dict[str, Any], decisions: int = 3000) -> dict[str, Any]:
    """Microseconds of a decision of every router, once the experiment has run: with full caches and books."""
    from policies.router import ROUTERS

    before = timeout_rate()
    found = {name: measure_router(experiment, name, decisions) for name in ROUTERS}
    return {"microseconds": found, "timeout_rate": (before + timeout_rate()) / 2}


def measure_router(experiment: dict[str, Any], name: str, decisions: int) -> float:
    """Microseconds of CPU of one decision, for the requests of the workload in turn, one outstanding a replica.

    The median of ten parts; without the garbage collector, as in the loop of a simulation.
    """
    from sim.config import experiment_from_values
    from sim.experiment import RunOptions, prepare

    router = {"policy": name, "snapshot_interval": SCRAPES.get(name, 0.0)}
    values = {**experiment, "cluster": {**experiment["cluster"], "router": router}}
    simulation = prepare(experiment_from_values(values, ROOT), RunOptions())
    simulation.run()
    cluster, columns, now = simulation.cluster, simulation.columns, simulation.clock.now
    parts, size, sent = [], decisions // 10, deque[int]()
    gc.disable()
    for part in range(10):
        rows = range(part * size, (part + 1) * size)
        asked = [columns.sequence(row % len(simulation.workload), now) for row in rows]
        started = time.process_time()
        for seq in asked:
            sent.append(cluster.routing.choose(cluster.router, seq, cluster, now))
            cluster.outstanding_requests[sent[-1]] += 1
            if len(sent) > len(cluster.replicas):
                cluster.outstanding_requests[sent.popleft()] -= 1
        parts.append((time.process_time() - started) / size * 1e6)
    gc.enable()
    return statistics.median(parts)


def child(job: dict[str, Any]) -> dict[str, Any]:
    """What a measuring process answers."""
    if job["what"] == "ratio":
        return measure_ratio(job["experiment"], job["started"])
    if job["what"] == "preset":
        return measure_preset(job["experiment"], job["started"])
    if job["what"] == "router":
        return measure_routers(job["experiment"])
    measurement, _ = measure(job["experiment"], job["started"])
    return asdict(measurement)


# --- in the process that asks -----------------------------------------------------------------------------------------


def spawn(what: str, experiment: dict[str, Any], name: str) -> dict[str, Any]:
    """Measure in a fresh process, with one thread and a temporary folder for its results."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TMPDIR": folder}
        job = {"what": what, "experiment": experiment, "started": time.time()}
        command = [sys.executable, __file__, "--child", json.dumps(job)]
        done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} ({what}) failed:\n{done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def run_case(case: Case) -> Measurement:
    """The run with the median scaled time."""
    answers = []
    for _ in range(case.runs):
        answer = spawn("run", case.experiment(), case.name)
        answer.pop("scaled")
        answers.append(Measurement(**answer))
    median = statistics.median_low(answer.scaled for answer in answers)
    chosen = next(answer for answer in answers if answer.scaled == median)
    chosen.note = " ".join(f"{answer.scaled:.2f}" for answer in answers)
    return chosen


def case_row(case: Case, with_ratio: bool) -> dict[str, str]:
    """A row of the table of cases."""
    got = run_case(case)
    row = {
        "case": f"{case.name}: {case.title}, {case.replicas} replicas",
        "requests": f"{got.requests:,}",
        "steps": f"{got.steps:,}",
        "skipped": f"{got.skipped:.1%}",
        "start-up s": f"{got.import_seconds:.2f} + {got.build_seconds:.2f}",
        "simulation s": f"{got.seconds:.2f}",
        "CPU s": f"{got.cpu_seconds:.2f}",
        "timeouts/CPU s": f"{got.timeout_rate:,.0f}",
        "scaled s": f"{got.scaled:.2f}",
        "goal s": "-" if case.goal is None else f"{case.goal:g}",
        "requests/s": f"{got.requests / got.scaled:,.0f}",
        "steps/s": f"{got.steps / got.scaled:,.0f}",
        "results s": f"{got.results_seconds:.2f}",
        "peak GiB": f"{got.peak_memory / GIB:.2f}",
        "scaled s of each run": got.note,
    }
    if with_ratio:
        found = spawn("ratio", case.limited(case.part).experiment(), case.name)
        same = "same bytes" if found["same_bytes"] else "DIFFERENT BYTES"
        row["stepping / fast-forward"] = f"{found['ratio']:.1f} ({found['requests']:,} requests, {same})"
    return row


def flat_rows(fast: bool) -> list[dict[str, str]]:
    """Scaled cost of a request by number of requests and of replicas."""
    rows = []
    for replicas, requests in FLAT:
        case = Case("flat", "flatness", replicas, poisson(requests // 100 if fast else requests, replicas), runs=1)
        got = run_case(case)
        rows.append(
            {
                "replicas": f"{replicas}",
                "requests": f"{got.requests:,}",
                "scaled us a request": f"{got.scaled / got.requests * 1e6:.1f}",
                "scaled s": f"{got.scaled:.2f}",
                "peak GiB": f"{got.peak_memory / GIB:.2f}",
            }
        )
    return rows


def preset_experiment(preset: str, requests: int) -> dict[str, Any]:
    """2 replicas under a load at which each of them runs some 30 sequences at once and none is overloaded."""
    case = Case("presets", "presets", 2, poisson(requests, 2))
    experiment = case.experiment()
    pool = experiment["cluster"]["pools"][0]
    del pool["scheduler"], pool["kv_cache"]
    pool |= {"engine": preset, "max_model_len": 4096}
    return experiment


def measure_preset(experiment: dict[str, Any], started: float) -> dict[str, Any]:
    """Share of steps skipped, and CPU microseconds of an evaluated step when all of them are."""
    fast, fast_folder = measure(experiment, started)
    slow, slow_folder = measure(experiment, time.time(), step_by_step=True)
    same = (fast_folder / "requests.parquet").read_bytes() == (slow_folder / "requests.parquet").read_bytes()
    microseconds = slow.scaled / slow.steps * 1e6
    return {"skipped": fast.skipped, "steps": slow.steps, "microseconds": microseconds, "same_bytes": same}


def preset_rows(fast: bool) -> list[dict[str, str]]:
    """Fast-forward and cost of an evaluated step of every engine preset, against vllm-v1's."""
    answers = {}
    for preset in PRESETS:
        answers[preset] = spawn("preset", preset_experiment(preset, 100 if fast else 1500), preset)
    base = answers["vllm-v1"]["microseconds"]
    return [
        {
            "preset": preset,
            "steps": f"{got['steps']:,}",
            "skipped": f"{got['skipped']:.1%}",
            "scaled us a step, stepping": f"{got['microseconds']:.0f}",
            "against vllm-v1": f"{got['microseconds'] / base:.2f}",
            "fast-forward": "same bytes" if got["same_bytes"] else "DIFFERENT BYTES",
        }
        for preset, got in answers.items()
    ]


def router_rows(fast: bool) -> list[dict[str, str]]:
    """One decision of every router among 256 replicas: prompts of 8,512 tokens in 133 ids, 125 of them shared."""
    workload = {
        **poisson(100 if fast else 400, 256),
        "prompt_tokens": {"distribution": "fixed", "value": 512},
        "output_tokens": {"distribution": "fixed", "value": 64},
        "prefix": {"groups": 64, "tokens": 8000, "zipf": 1.0},
        "hash_block_size": 64,
    }
    got = spawn("router", Case("router", "router", 256, workload).experiment(), "router")
    scale = got["timeout_rate"] / REFERENCE_RATE
    return [
        {
            "router": name,
            "replicas": "256",
            "loads": f"every {SCRAPES[name]:g} s" if name in SCRAPES else "live",
            "scaled us a decision": f"{microseconds * scale:.2f}",
            "goal us": ROUTER_GOALS.get(name, "-"),
        }
        for name, microseconds in got["microseconds"].items()
    ]


def startup_rows(runs: int) -> list[dict[str, str]]:
    """Seconds of `servesim --help`, and to the first step of a run of one request."""
    one = Case("startup", "start-up", 1, poisson(1, 1))
    help_times, first_times = [], []
    for _ in range(runs):
        help_times.append(command_times([sys.executable, "-m", "sim", "--help"]))
        answer = spawn("run", one.experiment(), one.name)
        first_times.append((answer["import_seconds"] + answer["build_seconds"], answer["startup_cpu_seconds"]))
    rows = [("servesim --help", help_times, 0.5), ("to the first step of a run", first_times, 1.5)]
    return [startup_row(what, times, goal) for what, times, goal in rows]


def startup_row(what: str, times: list[tuple[float, float]], goal: float) -> dict[str, str]:
    """Medians of wall and CPU seconds."""
    wall, cpu = (f"{statistics.median(seconds):.2f}" for seconds in zip(*times, strict=True))
    return {"what": what, "wall s": wall, "CPU s": cpu, "goal s": f"{goal}"}


def command_times(command: list[str]) -> tuple[float, float]:
    """Wall and CPU seconds of a command."""
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - started, cpu


def table(title: str, rows: Sequence[dict[str, str]]) -> str:
    """A Markdown table with a heading."""
    if not rows:
        return ""
    head = list(rows[0])
    lines = ["| " + " | ".join(row.get(key, "") for key in head) + " |" for row in rows]
    return "\n".join([f"## {title}", "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head), *lines, ""])


def tables(wanted: Iterable[str], cases: Sequence[Case], fast: bool, with_ratio: bool) -> list[str]:
    """The tables of everything that was asked for; also printed as they come."""
    names = set(wanted)
    rows = []
    for case in (case for case in cases if case.name in names):
        reason = case.missing()
        if reason:
            print(reason, file=sys.stderr)
            continue
        rows.append(case_row(case.limited(FAST_REQUESTS) if fast else case, with_ratio))
        print(f"{case.name}: {rows[-1]['scaled s']} s scaled", file=sys.stderr)
    found = [table("Workloads", rows)]
    if "startup" in names:
        found.append(table("Start-up", startup_rows(1 if fast else 5)))
    if "flat" in names:
        found.append(table("Flatness", flat_rows(fast)))
    if "presets" in names:
        found.append(table("Presets", preset_rows(fast)))
    if "router" in names:
        found.append(table("Router", router_rows(fast)))
    return [text for text in found if text]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the command line names and print it as Markdown."""
    parser = argparse.ArgumentParser(description="Benchmarks of the simulator.")
    known = [*(case.name for case in CASES), *EXTRAS]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}; default: all")
    parser.add_argument("--fast", action="store_true", help="small sizes, seconds instead of minutes")
    parser.add_argument("--step-by-step", action="store_true", help="compare a part of each workload with stepping")
    parser.add_argument("--runs", type=int, help="runs of each case, of which the median is shown; default 3 (B4: 1)")
    parser.add_argument("--out", type=Path, help="write the tables to this file, too")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.child:
        print(json.dumps(child(json.loads(given.child))))
        return
    unknown = set(given.names) - set(known)
    if unknown:
        parser.error(f"unknown {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    cases = [replace(case, runs=given.runs or case.runs) for case in CASES]
    text = "\n".join(tables(given.names or known, cases, given.fast, given.step_by_step))
    print(text)
    if given.out:
        given.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
