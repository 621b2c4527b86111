"""Speculative decoding: how the methods differ for a scheduler, and how many drafts the target model accepts.

Semantics: vLLM V1 (0.33). A method says how many KV slots beyond the scheduled tokens a sequence needs (`lookahead`),
what its drafting costs in the budget of input tokens (`slots`), and how it changes prefix hits. How many drafts are
accepted is drawn per (seed, request, output token), so that no batching, preemption or policy changes a draw.

Not modelled: tree drafts, drafts of varying number (suffix decoding), texts in which an n-gram finds nothing (a vector
of acceptance chances stands for all of it), the weights and the KV memory of a drafter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from sim.errors import InputError, unknown_name

if TYPE_CHECKING:
    from collections.abc import Sequence as Ordered

METHODS = ("eagle", "eagle_drop", "draft_model", "ngram")

_MASK = 2**64 - 1
_GOLDEN, _MIX1, _MIX2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # of the splitmix64 generator


@dataclass(frozen=True)
class SpeculationRules:
    """What one method means for the scheduler.

    `num_drafts`: draft tokens of every step. `lookahead`: KV slots beyond the scheduled tokens. `slots`: input tokens
    that drafting adds per scheduled request. `hashes_next_token`: a block's hash also covers the token after it.
    `drops_last_block`: the last block of every prefix hit is computed again.
    """

    num_drafts: int
    lookahead: int = 0
    slots: int = 0
    hashes_next_token: bool = False
    drops_last_block: bool = False

    @classmethod
    def of(cls, method: str, num_drafts: int) -> SpeculationRules:
        """The rules of a method of `METHODS` (eagle stands for MTP too); `InputError` for another name."""
        if method not in METHODS:
            raise unknown_name("speculation method", method, METHODS)
        return cls(
            num_drafts,
            lookahead=0 if method == "ngram" else num_drafts,
            slots=1 if method == "draft_model" else 0,
            hashes_next_token=method == "eagle",
            drops_last_block=method == "eagle_drop",
        )


class Acceptance(Protocol):
    """Says how many drafts the target model accepts."""

    def num_accepted(self, row: int, num_verified: int, num_emitted: int, num_drafts: int) -> int:
        """Accepted drafts, 0 to `num_drafts`, of a request with so many verify steps and output tokens behind it."""
        ...


class DrawnAcceptance:
    """Draft i of a step, given that those before it were accepted, is accepted with chance `chances[i]`.

    The draw belongs to the output token that the draft foretells. No token is foretold twice, so the draws of a step
    are independent of those of every other.
    """

    def __init__(self, seed: int, chances: Ordered[float]) -> None:
        self._limits = [round(chance * 2.0**53) for chance in chances]
        self._seed = _mixed(seed & _MASK)

    def num_accepted(self, row: int, num_verified: int, num_emitted: int, num_drafts: int) -> int:
        base = _mixed(self._seed ^ (row * _GOLDEN & _MASK))
        for i in range(num_drafts):
            if _mixed((base + (num_emitted + i) * _GOLDEN) & _MASK) >> 11 >= self._limits[i]:
                return i
        return num_drafts


def acceptance_chances(acceptance: float | Ordered[float], num_drafts: int) -> list[float]:
    """Chances by position from a number (the same for all) or a list; `InputError` for a wrong length or value."""
    chances = [acceptance] * num_drafts if isinstance(acceptance, int | float) else list(acceptance)
    if len(chances) != num_drafts:
        raise InputError(
            f"acceptance has {len(chances)} values for {num_drafts} drafts; give one a draft, or one number for all"
        )
    for chance in chances:
        if not 0.0 <= chance <= 1.0:
            raise InputError(f"acceptance must lie in [0, 1] (got {chance!r})")
    return [float(chance) for chance in chances]


def expected_tokens(chances: Ordered[float]) -> float:
    """Mean tokens of a verify step: 1 + a1 + a1 a2 + ...; (1 - a^(k+1)) / (1 - a) where all k chances are a."""
    total, reached = 1.0, 1.0
    for chance in chances:
        reached *= chance
        total += reached
    return total


def _mixed(value: int) -> int:
    """A 64-bit number whose bits all depend on all bits of `value` (finaliser of splitmix64)."""
    value = (value + _GOLDEN) & _MASK
    value = (value ^ value >> 30) * _MIX1 & _MASK
    value = (value ^ value >> 27) * _MIX2 & _MASK
    return value ^ value >> 31
