"""All measured runs below a data folder, by data set, and the simulation of a chosen part of them."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from sim.errors import InputError
from sim.validation import blis, distserve, inference_perf, llmservingsim, silicon, sim2real, splitwise, trtllm
from sim.validation.case import Case, Collected, LeftOut
from sim.validation.replay import Prediction, predict

READERS: dict[str, tuple[str, Callable[[Path], Collected]]] = {
    "blis_training": ("blis_training", blis.collect),
    "sim2real": ("sim2real", sim2real.collect),
    "distserve": ("distserve", distserve.collect),
    "llmservingsim": ("llmservingsim", llmservingsim.collect),
    "inference_perf": ("published_tables", inference_perf.collect),
    "splitwise": ("splitwise", splitwise.collect),
    "silicon_sample": ("silicon_sample", silicon.collect),
    "trtllm": ("published_tables", trtllm.collect),
}
FAST_CASES = {"blis_training": 1, "sim2real": 2, "silicon_sample": 8, "trtllm": 2}  # most cases a set with --fast
FAST_DEFAULT = 4


def collect(folder: Path, pattern: str = "*", datasets: Iterable[str] | None = None) -> Collected:
    """Cases and left-out runs below `folder` whose `dataset/name` matches `pattern`; absent data sets are noted.

    `InputError` when the folder holds none of the data sets, or when nothing matches.
    """
    base = folder / "e2e" if (folder / "e2e").is_dir() else folder
    found = Collected()
    for name in datasets or READERS:
        place, reader = READERS[name]
        if not (base / place).is_dir():
            found.left_out.append(LeftOut(name, "*", f"{base / place}: no such folder"))
            continue
        part = reader(base / place)
        found.cases.extend(part.cases)
        found.left_out.extend(part.left_out)
    if not found.cases:
        raise InputError(f"{base}: holds no measured runs; wanted one of the folders {_places()}")
    return _matching(found, pattern)


def run(
    cases: Sequence[Case],
    *,
    single_seed: bool = False,
    constants: Mapping[str, float] | None = None,
    done: Callable[[int, Prediction], None] | None = None,
) -> tuple[list[Prediction], list[LeftOut]]:
    """Simulate the cases in order; those that a fact is missing for are returned as left out, with the reason."""
    predictions: list[Prediction] = []
    left_out: list[LeftOut] = []
    for index, case in enumerate(cases):
        try:
            prediction = predict(case, case.seeds[:1] if single_seed else None, constants)
        except InputError as error:
            left_out.append(LeftOut(case.dataset, case.name, _reason(error)))
            continue
        predictions.append(prediction)
        if done is not None:
            done(index, prediction)
    return predictions, left_out


def fast_part(cases: Sequence[Case]) -> list[Case]:
    """A few cases of each data set, spread over it."""
    chosen: list[Case] = []
    for name in READERS:
        own = [case for case in cases if case.dataset == name]
        most = min(FAST_CASES.get(name, FAST_DEFAULT), len(own))
        chosen += [own[i * len(own) // most] for i in range(most)]
    return chosen


def _matching(found: Collected, pattern: str) -> Collected:
    def wanted(dataset: str, name: str) -> bool:
        key = f"{dataset}/{name}"
        return fnmatch.fnmatchcase(key, pattern) or (pattern in key)

    cases = [case for case in found.cases if wanted(case.dataset, case.name)]
    if not cases:
        examples = ", ".join(case.key for case in found.cases[:3])
        raise InputError(f"--runs {pattern}: matches none of {len(found.cases)} runs; such as {examples}")
    return Collected(cases, [item for item in found.left_out if wanted(item.dataset, item.name) or pattern == "*"])


def _reason(error: InputError) -> str:
    """The message without the place in the (made-up) experiment file."""
    first = str(error).splitlines()[0]
    return first.split(": ", 2)[-1] if ": cluster." in first else first


def _places() -> str:
    return ", ".join(sorted({place for place, _ in READERS.values()}))
