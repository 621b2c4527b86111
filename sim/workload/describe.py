"""What a workload is like: counts, rates, burstiness, lengths, ideal prefix hits, and what to beware of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sim.workload.base import Workload
from sim.workload.prefix import IdealHits, ideal_hits, num_chain_breaks
from sim.workload.trace import Trace

if TYPE_CHECKING:
    from sim.units import FloatArray, IntArray

_WINDOW = 60.0  # seconds
_FIRST = 1000  # rows that people like to cut a trace to


def describe(workload: Workload, trace: Trace | None = None) -> dict[str, Any]:
    """A JSON-able description; `trace` adds what reading it met (format, failed rows).

    Percentiles by linear interpolation, std with ddof 0. Rates are per second; `prefix` is null without hash_ids.
    """
    timed = workload.closed_loop is None and (trace is None or trace.has_times)
    hits = None if workload.hash_ids is None else ideal_hits(workload)
    return {
        "name": workload.name,
        "format": None if trace is None else trace.format,
        "num_rows": None if trace is None else trace.num_rows,
        "num_failed_rows": None if trace is None else trace.num_failed_rows,
        "num_requests": len(workload),
        "num_sessions": None if workload.session_id is None else len(set(workload.session_id)),
        "num_prompt_tokens": int(workload.num_prompt_tokens.sum()),
        "num_output_tokens": int(workload.num_output_tokens.sum()),
        "prompt_tokens": _spread(workload.num_prompt_tokens),
        "output_tokens": _spread(workload.num_output_tokens),
        "length_correlation": _correlation(workload.num_prompt_tokens, workload.num_output_tokens),
        "arrivals": _arrivals(workload) if timed else None,
        "prefix": None if hits is None else _prefix(workload, hits),
        "notes": list(workload.notes),
        "warnings": [*workload.warnings, *_warnings(workload, hits, timed)],
    }


def _spread(values: IntArray) -> dict[str, float]:
    p50, p90, p95, p99 = (float(x) for x in np.quantile(values, [0.5, 0.9, 0.95, 0.99]))
    return {
        "mean": float(values.mean()),
        "std": float(values.std()),
        "min": int(values.min()),
        "p50": p50,
        "p90": p90,
        "p95": p95,
        "p99": p99,
        "max": int(values.max()),
    }


def _correlation(x: IntArray, y: IntArray) -> float | None:
    if len(x) < 2 or x.std() == 0 or y.std() == 0:
        return None
    return float(np.corrcoef(x, y)[0, 1])


def _open_times(workload: Workload) -> FloatArray:
    """Arrival times that do not depend on the run: those of first turns."""
    if workload.previous is None:
        return workload.arrival_time
    return workload.arrival_time[workload.previous < 0]


def _arrivals(workload: Workload) -> dict[str, Any]:
    """Of requests whose time is given; later turns of sessions come when the turn before them has ended."""
    times = _open_times(workload)
    duration = float(times[-1] - times[0])
    windows = np.arange(times[0], times[-1] + _WINDOW, _WINDOW)
    counts = np.histogram(times, bins=windows)[0] if len(windows) > 2 else np.array([len(times)])
    local = _window_cvs(times)
    return {
        "duration": duration,
        "rate": (len(times) - 1) / duration if duration > 0 else None,
        "gap_cv": _cv(np.diff(times)),
        "window": _WINDOW,
        "gap_cv_in_windows": float(np.mean(local)) if len(local) else None,
        "min_window_rate": float(counts[:-1].min() if len(counts) > 1 else counts[0]) / _WINDOW
        if duration > _WINDOW
        else None,
        "max_window_rate": float(counts.max()) / _WINDOW if duration > _WINDOW else None,
        "window_count_cv": _cv(counts[:-1].astype(np.float64)) if len(counts) > 3 else None,
        "longest_gap": float(np.diff(times).max()) if len(times) > 1 else None,
        "share_of_ties": float((np.diff(times) == 0).mean()) if len(times) > 1 else 0.0,
    }


def _cv(values: FloatArray) -> float | None:
    return float(values.std() / values.mean()) if len(values) and values.mean() > 0 else None


def _window_cvs(times: FloatArray) -> FloatArray:
    """Coefficient of variation of the gaps within each window that has at least ten of them."""
    cuts = np.searchsorted(times, np.arange(times[0], times[-1] + _WINDOW, _WINDOW))
    parts = [np.diff(part) for part in np.split(times, cuts[1:-1])]
    values = [_cv(gaps) for gaps in parts if len(gaps) >= 10]
    return np.array([value for value in values if value is not None])


def _prefix(workload: Workload, hits: IdealHits) -> dict[str, Any]:
    assert workload.hash_ids is not None
    num_ids = len(workload.hash_ids.values)
    return {
        "hash_block_size": workload.hash_block_size,
        "num_blocks": num_ids,
        "num_unique_blocks": len(np.unique(workload.hash_ids.values)),
        "block_hit_rate": float(hits.blocks.sum() / num_ids) if num_ids else None,
        "token_hit_rate": float(hits.tokens.sum() / workload.num_prompt_tokens.sum()),
        "share_of_prompts_with_a_hit": float((hits.blocks > 0).mean()),
        "share_of_repeated_prompts": float(hits.whole.mean()),
    }


def _warnings(workload: Workload, hits: IdealHits | None, timed: bool) -> list[str]:
    result = _time_warnings(workload) if timed else []
    result += _first_rows_warnings(workload, hits, timed)
    if hits is None or workload.hash_ids is None:
        return result
    if hits.whole.mean() > 0.9:
        result.append(f"almost all prompts repeat ({hits.whole.mean():.0%} were seen before as a whole)")
    breaks = num_chain_breaks(workload.hash_ids)
    if breaks:
        result.append(f"{breaks} hash ids follow different ids in different prompts: they are not prefix-chained")
    return result


def _time_warnings(workload: Workload) -> list[str]:
    gaps = np.diff(_open_times(workload))
    if not len(gaps):
        return []
    if not gaps.any():
        return ["all requests arrive at the same time"]
    result = []
    ties = float((gaps == 0).mean())
    if ties > 0.2:
        step = float(np.median(gaps[gaps > 0]))
        result.append(
            f"{ties:.0%} of the requests share the time stamp of the one before (stamps are about {step:.3g} s apart): "
            f"they arrive in batches; spread_ties: {step:.3g} spreads them"
        )
    if float(gaps.max()) > 0.1 * float(gaps.sum()) and len(gaps) >= 100:
        result.append(f"one gap of {gaps.max():.0f} s is {gaps.max() / gaps.sum():.0%} of the whole duration")
    return result


def _first_rows_warnings(workload: Workload, hits: IdealHits | None, timed: bool) -> list[str]:
    """Compare the first rows with the whole: cutting a trace short is the commonest way to misread it."""
    first = min(_FIRST, len(workload) // 4)
    if first < 100:
        return []
    differences = []
    for name, values in (("mean prompt", workload.num_prompt_tokens), ("mean output", workload.num_output_tokens)):
        differences += _differs(name, float(values[:first].mean()), float(values.mean()), 1.25, "{:.0f} tokens")
    times = workload.arrival_time
    if timed and workload.previous is None and times[first - 1] > 0:
        whole = (len(times) - 1) / float(times[-1])
        differences += _differs("rate", (first - 1) / float(times[first - 1]), whole, 1.5, "{:.2f}/s")
    if hits is not None and workload.hash_ids is not None:
        part = float(hits.blocks[:first].sum() / max(1, int(workload.hash_ids.offsets[first])))
        whole = float(hits.blocks.sum() / max(1, len(workload.hash_ids.values)))
        differences += _differs("block hit rate", part, whole, 1.25, "{:.1%}")
    if not differences:
        return []
    return [f"the first {first} rows are not representative of all {len(workload)}: {'; '.join(differences)}"]


def _differs(name: str, part: float, whole: float, factor: float, shape: str) -> list[str]:
    if whole <= 0 or whole / factor <= part <= whole * factor:
        return []
    return [f"{name} {shape.format(part)} against {shape.format(whole)}"]
