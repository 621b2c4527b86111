"""A small decoder-only transformer in NumPy with a key-value cache: norms, grouped-query attention, gated MLP.

Float32, random weights; what it computes is real (every logit depends on every earlier token), so that its time is. One
`forward` is one step of a server: some sequences decode a token each, others process a chunk of their prompt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]
    Tokens = npt.NDArray[np.int64]

EPSILON = np.float32(1e-5)


@dataclass(frozen=True)
class Sizes:
    """Sizes of the model; the defaults take a few milliseconds a step on one core."""

    num_layers: int = 4
    hidden: int = 256
    heads: int = 8
    kv_heads: int = 4
    inter: int = 688
    vocab: int = 2048

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def qkv(self) -> int:
        """Output features of the query, key and value projections together."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim


class Chunk(NamedTuple):
    """Tokens of one sequence in a step: its place in the cache, the token ids, how many came before."""

    slot: int
    tokens: Tokens
    prefix: int

    @property
    def context(self) -> int:
        return self.prefix + len(self.tokens)


Clock = Callable[[], float]


@dataclass
class Watch:
    """CPU seconds by part of a step, in order of execution; parts of all layers under one name."""

    clock: Clock = time.thread_time
    parts: list[tuple[str, float]] = field(default_factory=list)
    _last: float = 0.0

    def start(self) -> None:
        """Begin a step."""
        self.parts.clear()
        self._last = self.clock()

    def lap(self, part: str) -> None:
        """What passed since the last lap belongs to `part`."""
        now = self.clock()
        self.parts.append((part, now - self._last))
        self._last = now


class NoWatch(Watch):
    """Times nothing."""

    def start(self) -> None:
        """Nothing."""

    def lap(self, part: str) -> None:
        """Nothing."""


class Transformer:
    """Weights and cache of a model with `sizes`, for `num_slots` sequences of at most `max_context` tokens."""

    def __init__(self, sizes: Sizes, num_slots: int, max_context: int, seed: int = 0) -> None:
        self.sizes, self.max_context = sizes, max_context
        rng = np.random.default_rng(seed)

        def matrix(k: int, n: int) -> Floats:
            return np.asarray(rng.standard_normal((k, n)) / np.sqrt(k), dtype=np.float32)

        self.embedding = matrix(sizes.vocab, sizes.hidden) * np.float32(np.sqrt(sizes.vocab))
        self.layers = [
            {
                "qkv": matrix(sizes.hidden, sizes.qkv),
                "out": matrix(sizes.hidden, sizes.hidden),
                "up": matrix(sizes.hidden, 2 * sizes.inter),
                "down": matrix(sizes.inter, sizes.hidden),
            }
            for _ in range(sizes.num_layers)
        ]
        self.head = matrix(sizes.hidden, sizes.vocab)
        self.rotation = _rotation(max_context, sizes.head_dim)
        shape = (sizes.num_layers, num_slots, sizes.kv_heads, max_context, sizes.head_dim)
        self.keys, self.values = np.zeros(shape, np.float32), np.zeros(shape, np.float32)

    def forward(self, decodes: Sequence[Chunk], chunks: Sequence[Chunk], watch: Watch | None = None) -> Floats:
        """Logits [sequences, vocab] of each sequence's last token, decodes first; the cache grows by all tokens."""
        watch = watch or NoWatch()
        watch.start()
        batch = [*decodes, *chunks]
        rows = np.concatenate([chunk.tokens for chunk in batch])
        positions = np.concatenate([np.arange(chunk.prefix, chunk.context) for chunk in batch])
        x, turn = self.embedding[rows], self.rotation[positions]
        watch.lap("other")
        for number, weights in enumerate(self.layers):
            x = self._layer(number, weights, x, turn, decodes, chunks, watch)
        last = np.cumsum([len(chunk.tokens) for chunk in batch]) - 1
        logits: Floats = _norm(x[last]) @ self.head
        watch.lap("lm_head")
        return logits

    def _layer(
        self,
        number: int,
        weights: dict[str, Floats],
        x: Floats,
        turn: npt.NDArray[np.complex64],
        decodes: Sequence[Chunk],
        chunks: Sequence[Chunk],
        watch: Watch,
    ) -> Floats:
        sizes = self.sizes
        qkv = (_norm(x) @ weights["qkv"]).reshape(len(x), -1, sizes.head_dim)
        turned = _turn(qkv[:, : sizes.heads + sizes.kv_heads], turn)
        query, key, value = turned[:, : sizes.heads], turned[:, sizes.heads :], qkv[:, sizes.heads + sizes.kv_heads :]
        watch.lap("qkv")
        attended = np.empty((len(x), sizes.hidden), np.float32)
        start = self._attend_all(number, 0, decodes, query, key, value, attended)
        watch.lap("decode_attention")
        if chunks:
            self._attend_all(number, start, chunks, query, key, value, attended)
            watch.lap("prefill_attention")
        x = x + attended @ weights["out"]
        watch.lap("out")
        gate, up = np.split(_norm(x) @ weights["up"], 2, axis=1)
        inner = gate / (np.float32(1) + np.exp(-gate)) * up
        watch.lap("up")
        x = x + inner @ weights["down"]
        watch.lap("down")
        return x

    def _attend_all(
        self,
        number: int,
        start: int,
        batch: Sequence[Chunk],
        query: Floats,
        key: Floats,
        value: Floats,
        out: Floats,
    ) -> int:
        """Attention of some sequences, one by one; rows of the batch from `start`. Returns where they end."""
        for chunk in batch:
            end = start + len(chunk.tokens)
            keys, values = self.keys[number, chunk.slot], self.values[number, chunk.slot]
            keys[:, chunk.prefix : chunk.context] = key[start:end].transpose(1, 0, 2)
            values[:, chunk.prefix : chunk.context] = value[start:end].transpose(1, 0, 2)
            out[start:end] = self._attend(
                query[start:end], keys[:, : chunk.context], values[:, : chunk.context], chunk.prefix
            )
            start = end
        return start

    def _attend(self, query: Floats, keys: Floats, values: Floats, prefix: int) -> Floats:
        """Causal attention [tokens, hidden] of `query` [tokens, heads, dim] to [kv_heads, context, dim]."""
        sizes, num_new = self.sizes, len(query)
        grouped = query.reshape(num_new, sizes.kv_heads, -1, sizes.head_dim).transpose(1, 0, 2, 3)
        grouped = grouped.reshape(sizes.kv_heads, -1, sizes.head_dim) * np.float32(sizes.head_dim**-0.5)
        scores = grouped @ keys.transpose(0, 2, 1)
        if num_new > 1:
            shaped = scores.reshape(sizes.kv_heads, num_new, -1, keys.shape[1])
            shaped += _mask(num_new, prefix)[None, :, None, :]
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        mixed = scores @ values
        mixed /= scores.sum(axis=-1, keepdims=True)
        mixed = mixed.reshape(sizes.kv_heads, num_new, -1, sizes.head_dim).transpose(1, 0, 2, 3)
        return np.asarray(mixed.reshape(num_new, sizes.hidden))


def _norm(x: Floats) -> Floats:
    return np.asarray(x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + EPSILON))


def _rotation(max_context: int, head_dim: int) -> npt.NDArray[np.complex64]:
    """exp(i position base^(-2j/dim)) [position, dim / 2]."""
    angles = np.outer(np.arange(max_context), 1e4 ** (-np.arange(head_dim // 2) * 2.0 / head_dim))
    return np.asarray(np.exp(1j * angles), dtype=np.complex64)


def _turn(x: Floats, turn: npt.NDArray[np.complex64]) -> Floats:
    pairs: Any = np.ascontiguousarray(x).view(np.complex64)
    return np.asarray((pairs * turn[:, None, :]).view(np.float32))


def _mask(num_new: int, prefix: int) -> Floats:
    hidden = np.arange(prefix + num_new)[None, :] > np.arange(prefix, prefix + num_new)[:, None]
    return np.where(hidden, np.float32(-1e30), np.float32(0))
