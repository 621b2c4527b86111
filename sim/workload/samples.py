"""Parallel sampling: every request asks for several answers to one prompt.

Each sample is a request of its own that arrives with the others and has the same prompt, as vLLM V1 treats `n` > 1:
the first one computes the prompt, the others find its full blocks in the prefix cache in the same step and share
them. Compared with copy-on-write (vLLM V0) each sample computes and keeps the last, partial block itself; what
sharing saves is `prefix_cache.shared_block_share` in the summary. Beam search, whose beams share generated tokens
too, is not modelled.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.errors import InputError
from sim.workload.base import Ragged, Workload
from sim.workload.prefix import num_blocks, ragged, ranges, take

if TYPE_CHECKING:
    from sim.units import IntArray

SAMPLE_HASH_BLOCK = 64  # tokens an id where the workload has none of its own


def with_samples(workload: Workload, num_samples: int) -> Workload:
    """Each row `num_samples` times in a row; row i becomes rows i * num_samples and on, all with its output length.

    Raises `InputError` with closed-loop arrivals or sessions, where a later request waits for one answer.
    """
    if num_samples == 1:
        return workload
    if workload.closed_loop is not None or workload.previous is not None:
        raise InputError("workload.samples: is not possible with closed_loop arrivals or sessions")
    size = len(workload)
    index = np.repeat(np.arange(size), num_samples)
    ids = workload.hash_ids
    fresh = ids is None
    hash_block_size = SAMPLE_HASH_BLOCK if ids is None else workload.hash_block_size
    hash_ids = _own_ids(workload, hash_block_size) if ids is None else ids
    columns = ("num_prompt_tokens", "num_output_tokens", "max_output_tokens", "priority", "cancel_after", "delay")
    labels = ("session_id", "tenant", "request_class", "adapter", "model")
    requests = np.arange(size) if workload.request_id is None else workload.request_id
    return replace(
        workload,
        arrival_time=workload.arrival_time[index],
        **{name: _repeated(getattr(workload, name), index) for name in (*columns, *labels)},
        request_id=[f"{requests[i]}.{k}" for i in range(size) for k in range(num_samples)],
        hash_ids=take(hash_ids, index),
        output_hash_ids=None if fresh else _first_only(workload.output_hash_ids, size, num_samples),
        hash_block_size=hash_block_size,
        notes=[*workload.notes, f"{num_samples} samples a request: {len(index)} rows"],
    )


def _repeated(column: Any, index: IntArray) -> Any:
    if column is None:
        return None
    return column[index] if isinstance(column, np.ndarray) else [column[i] for i in index]


def _own_ids(workload: Workload, hash_block_size: int) -> Ragged:
    """Ids that no two requests have in common; the last one of a prompt names its partial block."""
    counts = num_blocks(workload.num_prompt_tokens, hash_block_size)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    return Ragged(ranges(np.zeros(1, dtype=np.int64), offsets[-1:]), offsets)


def _first_only(output_ids: Ragged | None, size: int, num_samples: int) -> Ragged | None:
    """Contents of answers: those of the workload for the first sample, contents that nobody hits for the others."""
    if output_ids is None:
        return None
    unused = -1 - int(max(output_ids.values.max(initial=0), 0))
    rows: list[list[int]] = []
    for i in range(size):
        own = output_ids.row(i).tolist()
        rows.append(own)
        for _ in range(1, num_samples):
            rows.append(list(range(unused - len(own) + 1, unused + 1)))
            unused -= len(own)
    return ragged(rows)
