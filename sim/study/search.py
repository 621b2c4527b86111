"""The search of a plan: how many replicas each candidate needs, without asking more than the cheapest one requires.

More replicas of one candidate are taken to meet the SLO whenever fewer do. Each candidate is then an interval: `low`
replicas are known not to do, `high` are known to do. Candidates are asked in the order of what they would cost at
least; once something meets the SLO, every other candidate is asked only whether it can do it for less, which one
simulation at the largest cheaper number of replicas answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Key = tuple[float, ...]  # what is minimized, then what decides ties
Ask = Callable[[list[tuple["Candidate", int]]], list["Trial"]]


@dataclass(frozen=True)
class Trial:
    """The answer of the simulations of a candidate with a number of replicas."""

    replicas: int
    met: bool
    summaries: tuple[dict[str, Any], ...] = ()  # one a replication
    error: str | None = None
    note: str | None = None  # how it is known that the SLO is not met, where part of the workload told


@dataclass
class Candidate:
    """One combination, its cost per replica, and what is known of the number of replicas it needs."""

    index: int
    values: dict[str, Any]
    key: Callable[[int], Key]  # of so many replicas
    low: int = 0  # known not to do
    high: int | None = None  # known to do
    problem: str | None = None  # no number will do
    change: str | None = None
    load: dict[str, float] = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)

    def trial(self, replicas: int) -> Trial | None:
        """What was simulated with so many replicas."""
        return next((trial for trial in self.trials if trial.replicas == replicas), None)


class Search:
    """The search over `candidates`; `most`: replicas at most; `at_once`: trials asked for together."""

    def __init__(self, candidates: Sequence[Candidate], most: int, at_once: int) -> None:
        self.candidates = list(candidates)
        self.most = most
        self.at_once = at_once
        self.best: Candidate | None = None

    def run(self, ask: Ask) -> Candidate | None:
        """The cheapest candidate with `high` its replicas; None when none meets the SLO."""
        while wave := self._wave():
            for (candidate, _), trial in zip(wave, ask(wave), strict=True):
                self._learn(candidate, trial)
        return self.best

    def refute(self, candidate: Candidate) -> None:
        """Take back that `candidate.high` replicas do: they failed when tried again."""
        assert candidate.high is not None
        candidate.low, candidate.high = candidate.high, None
        known = [c for c in self.candidates if c.high is not None]
        self.best = min(known, key=lambda c: c.key(c.high or 0), default=None)

    def _wave(self) -> list[tuple[Candidate, int]]:
        asked = [(c, replicas) for c in self.candidates if (replicas := self._next(c)) is not None]
        asked.sort(key=lambda pair: (pair[0].key(pair[0].low + 1), pair[0].index))
        if self.best is None:
            asked = _one_of_each_price(asked)
        return asked[: self.at_once]

    def _next(self, candidate: Candidate) -> int | None:
        """The number of replicas to try next; None when nothing is open, or nothing that would be cheaper."""
        if candidate.problem is not None:
            return None
        ceiling = self._ceiling(candidate)
        if candidate.high is not None:
            ceiling = min(ceiling, candidate.high - 1)
            return (candidate.low + 1 + ceiling) // 2 if ceiling > candidate.low else None
        if ceiling <= candidate.low:
            return None
        if self.best is not None:
            return ceiling
        # Nothing is known to do yet: from what the bounds say, twice as many each time.
        return min(ceiling, candidate.low + 1 if not candidate.trials else max(2 * candidate.low, candidate.low + 1))

    def _ceiling(self, candidate: Candidate) -> int:
        """The most replicas that would still be better than the best."""
        if self.best is None or self.best is candidate:
            return self.most
        assert self.best.high is not None
        limit = self.best.key(self.best.high)
        low, high = 0, self.most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if candidate.key(middle) < limit else (low, middle - 1)
        return low

    def _learn(self, candidate: Candidate, trial: Trial) -> None:
        candidate.trials.append(trial)
        if trial.error is not None:
            candidate.problem = trial.error
        elif not trial.met:
            candidate.low = max(candidate.low, trial.replicas)
        else:
            candidate.high = min(trial.replicas, candidate.high or trial.replicas)
            if self.best is None or candidate.key(candidate.high) < self.best.key(self.best.high or 0):
                self.best = candidate


def _one_of_each_price(asked: list[tuple[Candidate, int]]) -> list[tuple[Candidate, int]]:
    """The first candidate of each price: until something does, their like would only fail alike."""
    first: dict[Key, tuple[Candidate, int]] = {}
    for candidate, replicas in asked:
        first.setdefault(candidate.key(1), (candidate, replicas))
    return list(first.values())
