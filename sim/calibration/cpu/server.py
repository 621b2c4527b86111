"""A server of the NumPy transformer: continuous batching with chunked prefill, on a clock of its own CPU time.

The clock advances by the CPU seconds that the serving thread used, and jumps over idle gaps: arrivals are the same as
in the simulation, nobody sleeps, and time that other processes take is not charged. Scheduling as vLLM V1 without
asynchronous scheduling: running sequences first, in order, then waiting ones as far as the token budget goes.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sim.calibration.cpu.transformer import Chunk, Transformer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from sim.units import FloatArray


@dataclass(frozen=True)
class Limits:
    """Budgets of a step."""

    max_num_seqs: int = 32
    max_num_batched_tokens: int = 128


@dataclass
class Live:
    """One request while it is served."""

    row: int
    prompt: npt.NDArray[np.int64]
    num_output_tokens: int
    slot: int = -1
    num_computed: int = 0
    last_token: int = 0
    num_done: int = 0

    @property
    def is_decoding(self) -> bool:
        return self.num_computed >= len(self.prompt)


@dataclass
class Served:
    """What became of the requests: instants in seconds of the virtual clock, one a row."""

    first_token_time: FloatArray
    finish_time: FloatArray
    busy_time: float
    num_steps: int
    tokens: list[list[int]]


class Server:
    """Serves requests on a model.

    `duration` replaces the CPU clock by a function of the batch, [(sequence, tokens)] before the step: what the
    scheduling alone does can then be compared exactly.
    """

    def __init__(
        self,
        model: Transformer,
        limits: Limits,
        duration: Callable[[list[tuple[Live, int]]], float] | None = None,
    ) -> None:
        self.model, self.limits, self.duration = model, limits, duration

    def run(
        self,
        arrivals: FloatArray,
        prompts: Sequence[npt.NDArray[np.int64]],
        num_output_tokens: Sequence[int],
    ) -> Served:
        """Serve all requests, given by row, to their end; `arrivals` increase."""
        self._waiting: deque[Live] = deque()
        self._running: list[Live] = []
        self._slots = list(range(self.limits.max_num_seqs))
        count = len(arrivals)
        result = Served(np.zeros(count), np.zeros(count), 0.0, 0, [[] for _ in range(count)])
        collecting = gc.isenabled()
        gc.disable()
        try:
            self._loop(arrivals, prompts, num_output_tokens, result)
        finally:
            if collecting:
                gc.enable()
        return result

    def _loop(
        self,
        arrivals: FloatArray,
        prompts: Sequence[npt.NDArray[np.int64]],
        num_output_tokens: Sequence[int],
        result: Served,
    ) -> None:
        now, row = 0.0, 0
        while row < len(arrivals) or self._waiting or self._running:
            if not self._waiting and not self._running:
                now = max(now, float(arrivals[row]))
            while row < len(arrivals) and arrivals[row] <= now:
                self._waiting.append(Live(row, prompts[row], int(num_output_tokens[row])))
                row += 1
            started = time.thread_time()
            batch = self._schedule()
            tokens = self._execute(batch)
            spent = time.thread_time() - started if self.duration is None else self.duration(batch)
            now += spent
            result.busy_time += spent
            result.num_steps += 1
            self._deliver(batch, tokens, now, result)

    def _schedule(self) -> list[tuple[Live, int]]:
        """Sequences of the next step with their numbers of tokens."""
        budget, batch = self.limits.max_num_batched_tokens, []
        for seq in self._running:
            num_tokens = 1 if seq.is_decoding else min(len(seq.prompt) - seq.num_computed, budget)
            if not budget:
                break
            batch.append((seq, num_tokens))
            budget -= num_tokens
        while self._waiting and budget and self._slots:
            seq = self._waiting.popleft()
            seq.slot = self._slots.pop()
            self._running.append(seq)
            num_tokens = min(len(seq.prompt), budget)
            batch.append((seq, num_tokens))
            budget -= num_tokens
        return batch

    def _execute(self, batch: list[tuple[Live, int]]) -> list[int]:
        """Run the step; the next token of every sequence of `batch`."""
        decodes = [(i, seq) for i, (seq, _) in enumerate(batch) if seq.is_decoding]
        chunks = [(i, seq, n) for i, (seq, n) in enumerate(batch) if not seq.is_decoding]
        logits = self.model.forward(
            [Chunk(seq.slot, np.array([seq.last_token]), seq.num_computed) for _, seq in decodes],
            [Chunk(seq.slot, seq.prompt[seq.num_computed : seq.num_computed + n], seq.num_computed)
             for _, seq, n in chunks],
        )  # fmt: skip
        chosen = np.argmax(logits, axis=1)
        order = [*(i for i, _ in decodes), *(i for i, _, _ in chunks)]
        tokens = [0] * len(batch)
        for i, token in zip(order, chosen.tolist(), strict=True):
            tokens[i] = token
        return tokens

    def _deliver(self, batch: list[tuple[Live, int]], tokens: list[int], now: float, result: Served) -> None:
        for (seq, num_tokens), token in zip(batch, tokens, strict=True):
            seq.num_computed += num_tokens
            if not seq.is_decoding:
                continue
            seq.last_token = token
            seq.num_done += 1
            result.tokens[seq.row].append(token)
            if seq.num_done == 1:
                result.first_token_time[seq.row] = now
            if seq.num_done == seq.num_output_tokens:
                result.finish_time[seq.row] = now
                self._slots.append(seq.slot)
                self._running.remove(seq)
