"""The arithmetic of SGLang's scheduler (0.5.23): prefill budget, retraction order, new-token ratio. No state of the
engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

CLIP_MAX_NEW_TOKENS = 4096  # no request is expected to emit more, however much it declared
RATIO_INIT = 0.7
RATIO_FLOOR_SHARE = 0.14  # of the initial ratio
RATIO_DECAY_STEPS = 600
RETRACT_DECODE_STEPS = 20  # tokens that survivors of a retraction are expected to need each


class Verdict(Enum):
    """What trying one request says about the next one."""

    CONTINUE = "CONTINUE"
    NO_TOKEN = "NO_TOKEN"
    OTHER = "OTHER"


class PrefillBudget:
    """Remaining tokens of one prefill pass. `available()` is free plus evictable tokens of the pool, now.

    `reserved`: tokens that running requests are expected to need, see `expected_tokens`. `chunk_size` None: no
    chunking.
    """

    def __init__(
        self,
        available: Callable[[], int],
        reserved: float,
        page_size: int,
        max_prefill_tokens: int,
        chunk_size: int | None,
        mixed_decode_tokens: int = 0,
    ) -> None:
        self._available = available
        self._page = page_size
        self._total_offset = reserved + mixed_decode_tokens
        self._current_offset = mixed_decode_tokens
        self.input_left = max_prefill_tokens - mixed_decode_tokens
        self.chunk_left = None if chunk_size is None else chunk_size - mixed_decode_tokens
        self.num_admitted = 0

    @property
    def total_left(self) -> float:
        """Tokens that nobody is expected to need."""
        return self._available() - self._total_offset

    def verdict(self, locking: int = 0) -> Verdict:
        """Whether another request may be tried: memory first, then the input and chunk budgets."""
        if self.total_left - locking <= 0 or self._available() - locking - self._current_offset <= 0:
            return Verdict.NO_TOKEN
        spent = self.input_left <= 0 or (self.chunk_left is not None and self.chunk_left <= 0)
        return Verdict.OTHER if spent else Verdict.CONTINUE

    def continue_chunked(self, remaining: int, max_new: int) -> int:
        """Tokens for the request whose prompt an earlier pass cut; it must progress even where memory says no."""
        chunk = remaining if self.chunk_left is None else self.chunk_left  # None: the end of a transferred prompt
        room = min(chunk, int(self.total_left))
        room = chunk if room <= 0 else room
        tokens = min(remaining, room)
        self._charge(tokens, min(max_new, CLIP_MAX_NEW_TOKENS) if tokens == remaining else 0)
        return tokens

    def try_add(self, uncached: int, max_new: int, generated: int, locking: int = 0) -> tuple[int, Verdict]:
        """Tokens given to a new request (0: refused) and the verdict.

        `locking`: idle tokens of its cached prefix that count as available still; 0 where they are locked already.
        """
        expected = uncached + min(max_new - generated, CLIP_MAX_NEW_TOKENS) + self._page
        if expected >= self.total_left - locking:
            return 0, Verdict.NO_TOKEN
        if self.chunk_left is None:
            if self.num_admitted and self._pages(uncached) >= self.input_left:
                return 0, Verdict.OTHER
            tokens = uncached
        elif uncached <= self.chunk_left:
            tokens = uncached
        else:
            tokens = self.chunk_left // self._page * self._page
            if tokens <= 0:
                return 0, Verdict.OTHER
        whole = tokens == uncached
        self._charge(tokens, min(max_new, CLIP_MAX_NEW_TOKENS) if whole else 0)
        return tokens, self.verdict(locking)

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self._page) * self._page

    def _charge(self, tokens: int, max_new: int) -> None:
        rounded = self._pages(tokens)
        self._total_offset += rounded + self._page + max_new
        self._current_offset += rounded
        self.input_left -= rounded
        if self.chunk_left is not None:
            self.chunk_left -= rounded
        self.num_admitted += 1


def expected_tokens(max_new: int, generated: int, ratio: float) -> float:
    """Tokens that a running request is expected to need still; `ratio` 1 for requests that ignore end of sequence."""
    return min(max_new - generated, CLIP_MAX_NEW_TOKENS) * ratio


class Decoding(Protocol):
    """A request in decode, as far as retraction looks at it."""

    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_emitted(self) -> int: ...
    @property
    def max_output_tokens(self) -> int: ...


def keep_order(requests: Sequence[Decoding]) -> list[int]:
    """Positions from the first to keep to the first to retract: more outputs first, then shorter prompts."""
    return sorted(range(len(requests)), key=lambda i: (-requests[i].num_emitted, requests[i].num_prompt_tokens))


def ratio_after_retraction(kept: Sequence[Decoding]) -> float:
    """New-token ratio from what the survivors have emitted and may emit."""
    emitted = sum(request.num_emitted for request in kept) + RETRACT_DECODE_STEPS * len(kept)
    return min(1.0, emitted / (sum(request.max_output_tokens for request in kept) + 1))


@dataclass
class NewTokenRatio:
    """Share of their declared maximum that running requests are expected to need: falls with every clean decode
    step.
    """

    conservativeness: float = 1.0

    def __post_init__(self) -> None:
        self.start = min(RATIO_INIT * self.conservativeness, 1.0)
        self.floor = self.start * RATIO_FLOOR_SHARE
        self.decay = (self.start - self.floor) / RATIO_DECAY_STEPS
        self.value = self.start

    def after_decode(self) -> None:
        """A decode step went by without a retraction."""
        self.value = max(self.value - self.decay, self.floor)

    def reset(self) -> None:
        """The engine is idle."""
        self.value = self.start
