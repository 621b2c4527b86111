"""What the GPU does at most: bandwidth, FLOP/s, launch times, copies to and from the host; all verified, then timed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sim.calibration.measure.bench import Bench, Work
from sim.calibration.measure.cuda import Argument, Gpu, Launch, integer, long_integer, number, pointer
from sim.calibration.measure.timing import Protocol, time_work
from sim.errors import RunError

MAX_STREAM_BYTES = 2**30
PIECE = 16  # bytes a thread moves at once
CHAINS = 8  # independent accumulators of the peak kernels
MMA_FLOPS = 4096  # of one warp product
ONES = 0x3F803F80  # two bfloat16 ones
EAGER_LAUNCHES = 200


class Reading(NamedTuple):
    """One rate or duration with its spread (p90 - p10) / median."""

    name: str
    value: float
    unit: str
    spread: float


def measure_ceilings(bench: Bench, protocol: Protocol, iterations: int = 4096) -> list[Reading]:
    """Bandwidth by copy and by read, FMA and tensor-core FLOP/s, launch durations. `RunError` for a wrong result."""
    return [
        *(_bandwidth(bench, protocol, kernel) for kernel in ("stream_copy", "stream_read")),
        _peak(bench, protocol, "peak_fma", iterations),
        _peak(bench, protocol, "peak_mma", iterations),
        *_launches(bench.gpu),
    ]


def _bandwidth(bench: Bench, protocol: Protocol, kernel: str) -> Reading:
    gpu = bench.gpu
    copies = kernel == "stream_copy"
    size = min(bench.num_bytes // (2 if copies else 1), MAX_STREAM_BYTES) // PIECE * PIECE
    blocks = 32 * gpu.num_multiprocessors
    target = bench.data + size if copies else bench.scratch("sums", 4 * 256 * blocks)
    launch = Launch(kernel, (blocks, 1, 1), 256, (pointer(bench.data), pointer(target), long_integer(size // PIECE)))
    gpu.launch(launch)
    _verify_stream(bench, size, target, copies)
    timed = time_work(gpu, Work(lambda _: gpu.launch(launch), 1), 0.0, protocol)
    return Reading(f"{kernel}_bandwidth", size * (2 if copies else 1) / timed.median, "B/s", timed.spread)


def _verify_stream(bench: Bench, size: int, target: int, copies: bool) -> None:
    words = bench.gpu.download(bench.data, (size // 4,), np.uint32)
    if copies:
        right = bool((bench.gpu.download(target, (size // 4,), np.uint32) == words).all())
    else:
        sums = bench.gpu.download(target, (256 * 32 * bench.gpu.num_multiprocessors,), np.uint32)
        right = int(np.bitwise_xor.reduce(sums)) == int(np.bitwise_xor.reduce(words))
    if not right:
        raise RunError(f"{'stream_copy' if copies else 'stream_read'} gives a wrong result on this GPU; nothing timed")


def _peak(bench: Bench, protocol: Protocol, kernel: str, iterations: int) -> Reading:
    gpu = bench.gpu
    blocks, threads = 4 * gpu.num_multiprocessors, 256
    out = bench.scratch("peak", 4 * blocks * threads)
    arguments: tuple[Argument, ...]
    if kernel == "peak_fma":
        arguments = (pointer(out), number(1.0), number(0.25), integer(iterations))
        expected, flops = 0.25 * CHAINS * iterations, 2.0 * CHAINS * iterations * blocks * threads
    else:
        arguments = (pointer(out), integer(ONES), integer(iterations))
        expected = 16.0 * 4 * CHAINS * iterations
        flops = float(MMA_FLOPS) * CHAINS * iterations * blocks * threads / 32
    launch = Launch(kernel, (blocks, 1, 1), threads, arguments)
    gpu.launch(launch)
    found = gpu.download(out, (blocks * threads,), np.float32)
    if not np.allclose(found, expected, rtol=1e-6):
        raise RunError(f"{kernel} gives {found[0]:g} instead of {expected:g} on this GPU; nothing was timed")
    timed = time_work(gpu, Work(lambda _: gpu.launch(launch), 1), 0.0, protocol)
    return Reading(f"{kernel}_flops", flops / timed.median, "FLOP/s", timed.spread)


def _launches(gpu: Gpu) -> list[Reading]:
    """Seconds from one empty kernel to the next: launched one by one, and within a graph."""
    empty = Launch("empty", (1, 1, 1), 32, ())

    def region() -> None:
        for _ in range(EAGER_LAUNCHES):
            gpu.launch(empty)

    eager = _repeat(lambda: gpu.elapsed(region) / EAGER_LAUNCHES)
    with gpu.captured(region) as replay:
        graph = _repeat(lambda: gpu.elapsed(replay) / EAGER_LAUNCHES)
    return [Reading("eager_launch", *eager), Reading("graph_launch", *graph)]


def _repeat(once: Callable[[], float], repeats: int = 9) -> tuple[float, str, float]:
    values = np.array([once() for _ in range(repeats + 1)][1:])
    low, middle, high = np.quantile(values, [0.1, 0.5, 0.9])
    return float(middle), "s", float((high - low) / middle)


class Copied(NamedTuple):
    """One size of copies between host and device: seconds of a copy (median) and the spread."""

    direction: str  # h2d or d2h
    memory: str  # pinned or pageable
    num_bytes: int
    seconds: float
    spread: float


def measure_copies(bench: Bench, sizes: tuple[int, ...]) -> list[Copied]:
    """Copies of each size, both ways, from page-locked and from ordinary memory; the bytes are verified."""
    largest = max(sizes)
    pinned = bench.gpu.allocate_pinned(largest)
    ordinary = np.zeros(largest, dtype=np.uint8)
    try:
        hosts = {"pinned": pinned, "pageable": ordinary.ctypes.data}
        return [
            _copy(bench, direction, memory, host, size)
            for memory, host in hosts.items()
            for direction in ("h2d", "d2h")
            for size in sizes
        ]
    finally:
        bench.gpu.synchronize()
        bench.gpu.release_pinned(pinned)


def _copy(bench: Bench, direction: str, memory: str, host: int, size: int) -> Copied:
    gpu, device = bench.gpu, bench.scratch("copies", size)

    def once() -> None:
        if direction == "h2d":
            gpu.copy_to_device(device, host, size)
        else:
            gpu.copy_to_host(host, device, size)

    _verify_copy(bench, once, direction, host, device, size)
    seconds, _, deviation = _repeat(lambda: gpu.elapsed(once))
    return Copied(direction, memory, size, seconds, deviation)


def _verify_copy(bench: Bench, once: Callable[[], None], direction: str, host: int, device: int, size: int) -> None:
    pattern = bench.rng.integers(0, 256, size, dtype=np.uint8)
    if direction == "h2d":
        ctypes.memmove(host, pattern.ctypes.data, size)
    else:
        bench.gpu.upload(pattern, device)
    once()
    bench.gpu.synchronize()
    if direction == "h2d":
        found = bench.gpu.download(device, (size,), np.uint8)
    else:
        found = np.frombuffer(ctypes.string_at(host, size), dtype=np.uint8)
    if not (found == pattern).all():
        raise RunError(f"a {direction} copy of {size} bytes arrives changed; nothing was timed")
