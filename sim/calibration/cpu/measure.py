"""Measures the NumPy transformer: whole steps of random composition, every part timed inside them, in random order.

Parts are timed where a server runs them, so caches are as a server finds them. A probe step between the others gives
the noise floor. The clock is the CPU time of this thread.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from sim.calibration.cpu.server import Limits
from sim.calibration.cpu.transformer import Chunk, Transformer, Watch

PROBE_EVERY = 8


@dataclass(frozen=True)
class Composition:
    """A step: contexts of its decodes (the new token included), (new tokens, tokens before) of its chunks."""

    contexts: tuple[int, ...]
    chunks: tuple[tuple[int, int], ...] = ()

    @property
    def num_tokens(self) -> int:
        return len(self.contexts) + sum(new for new, _ in self.chunks)

    @property
    def num_sequences(self) -> int:
        return len(self.contexts) + len(self.chunks)


@dataclass
class Samples:
    """CPU seconds by composition: of whole steps, and of each part (its time in all layers together)."""

    steps: dict[Composition, list[float]] = field(default_factory=lambda: defaultdict(list))
    parts: dict[Composition, dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    probes: list[float] = field(default_factory=list)

    @property
    def noise(self) -> float:
        """p90 / p10 of the probe step."""
        low, high = np.quantile(self.probes, [0.1, 0.9])
        return float(high / low)

    def step(self, composition: Composition) -> float:
        """Median seconds of a whole step."""
        return float(np.median(self.steps[composition]))

    def part(self, composition: Composition, name: str) -> float:
        """Median seconds of a part, all layers together."""
        return float(np.median(self.parts[composition][name]))


def random_compositions(rng: np.random.Generator, count: int, limits: Limits, max_context: int) -> list[Composition]:
    """Steps as a server has them: half pure decode with uneven contexts, half with one or two chunks."""
    return [_random_composition(rng, limits, max_context, number % 2 == 1) for number in range(count)]


def _random_composition(rng: np.random.Generator, limits: Limits, max_context: int, mixed: bool) -> Composition:
    least = 0 if mixed else 1
    most = limits.max_num_seqs - 2
    num_decodes = min(most, int(2.0 ** rng.uniform(0, np.log2(most + 1)) - 1 + least))
    contexts = tuple(int(c) for c in rng.integers(2, max_context, num_decodes))
    chunks = []
    budget = limits.max_num_batched_tokens - num_decodes
    for _ in range(int(rng.integers(1, 3)) if mixed else 0):
        new = int(np.clip(2.0 ** rng.uniform(2, 7), 2, budget))
        prefix = int(rng.integers(0, 2)) * int(rng.integers(1, max_context - new))
        chunks.append((new, prefix))
        budget -= new
        if budget < 2:
            break
    return Composition(contexts, tuple(chunks))


class Calibrator:
    """Times compositions on a model, round after round in random order."""

    def __init__(self, model: Transformer, limits: Limits, seed: int = 0) -> None:
        self.model, self.limits = model, limits
        self.rng = np.random.default_rng(seed)
        self.samples = Samples()
        self._probe = Composition((40,) * 4, ((24, 16),))

    def rounds(self, compositions: list[Composition], count: int) -> None:
        """Time every composition `count` more times."""
        collecting = gc.isenabled()
        gc.disable()
        try:
            for _ in range(count):
                for number, index in enumerate(self.rng.permutation(len(compositions))):
                    if number % PROBE_EVERY == 0:
                        self.samples.probes.append(self._time(self._probe)[1])
                    self._record(compositions[index])
        finally:
            if collecting:
                gc.enable()

    def _record(self, composition: Composition) -> None:
        watch, seconds = self._time(composition)
        self.samples.steps[composition].append(seconds)
        totals: dict[str, float] = defaultdict(float)
        for part, spent in watch.parts:
            totals[part] += spent
        for part, spent in totals.items():
            self.samples.parts[composition][part].append(spent)

    def _time(self, composition: Composition) -> tuple[Watch, float]:
        """One step with random tokens in random slots."""
        slots = self.rng.permutation(self.limits.max_num_seqs).tolist()
        vocab = self.model.sizes.vocab
        decodes = [Chunk(slots.pop(), self.rng.integers(0, vocab, 1), context - 1) for context in composition.contexts]
        chunks = [Chunk(slots.pop(), self.rng.integers(0, vocab, new), m) for new, m in composition.chunks]
        watch = Watch()
        started = watch.clock()
        logits = self.model.forward(decodes, chunks, watch)
        np.argmax(logits, axis=1)
        return watch, watch.clock() - started
