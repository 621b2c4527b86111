"""Random streams: one independent generator per named subsystem, from one seed."""

from __future__ import annotations

import hashlib

import numpy as np

from sim.errors import InputError


class Seeds:
    """The random streams of a run.

    A stream is named by what it decides (`seeds.generator("arrivals")`, `seeds.generator("router", 3)`). Its content
    depends on the seed and the name alone, so a new draw in one subsystem moves no other stream, and two runs with
    the same seed see the same numbers whatever their policies ask for in between.
    """

    def __init__(self, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise InputError(f"seed: expected an integer >= 0, got {seed!r}")
        self.seed = seed

    def generator(self, *names: str | int) -> np.random.Generator:
        """A new generator at the start of the stream called `names`; equal names give equal streams."""
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, *_words(names)])))

    def __repr__(self) -> str:
        return f"Seeds({self.seed})"


def _words(names: tuple[str | int, ...]) -> list[int]:
    """Eight 32-bit words; names carry type and length, so ("a", "b") is not ("ab",) nor 1 the same as "1"."""
    parts = [f"{type(name).__name__}:{len(str(name))}:{name}" for name in names]
    digest = hashlib.sha256("/".join(parts).encode()).digest()
    return [int.from_bytes(digest[i : i + 4], "little") for i in range(0, 32, 4)]
