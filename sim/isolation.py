"""Tenants that share no cached prefixes: how their contents are kept apart, and what that costs in hits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from sim.workload.base import Ragged

if TYPE_CHECKING:
    from sim.units import IntArray
    from sim.workload.base import Workload
    from sim.workload.columns import Columns

Spans = list[tuple[object, int, int]]


def isolated_spans(columns: Columns) -> Callable[[int], Spans]:
    """Content spans whose keys begin with the row's tenant (a salt in the hash of the first block, in an engine)."""
    tenants = columns.workload.tenant

    def spans(row: int) -> Spans:
        tenant = None if tenants is None else tenants[row]
        return [((tenant, key), start, end) for key, start, end in columns.content_spans(row)]

    return spans


def isolation_price(workload: Workload) -> dict[str, float | None]:
    """Share of prompt tokens that an endless cache would hit, with contents shared by all tenants and kept apart.

    `price` is the difference: what isolation costs at most. A null where no prompt has a token.
    """
    from sim.workload.prefix import ideal_hits

    total = int(workload.num_prompt_tokens.sum())
    if not total or workload.hash_ids is None:
        return dict.fromkeys(("ideal_hit_rate_shared", "ideal_hit_rate_isolated", "price"))
    shared, apart = (int(ideal_hits(each).tokens.sum()) / total for each in (workload, salted(workload)))
    return {"ideal_hit_rate_shared": shared, "ideal_hit_rate_isolated": apart, "price": shared - apart}


def salted(workload: Workload) -> Workload:
    """The same workload with ids that no two tenants have in common."""
    if workload.tenant is None or workload.hash_ids is None:
        return workload
    code = np.unique([tenant or "" for tenant in workload.tenant], return_inverse=True)[1].astype(np.int64)
    parts = [part for part in (workload.hash_ids, workload.output_hash_ids) if part is not None]
    ids = np.unique(np.concatenate([part.values for part in parts]))
    fresh = [Ragged(_with_salt(part, code, ids), part.offsets) for part in parts]
    return dataclasses.replace(workload, hash_ids=fresh[0], output_hash_ids=fresh[1] if len(fresh) > 1 else None)


def _with_salt(part: Ragged, code: IntArray, ids: IntArray) -> IntArray:
    """Numbers that stand for (tenant, id)."""
    of_row = np.repeat(code, np.diff(part.offsets))
    salted_ids: IntArray = of_row * len(ids) + np.searchsorted(ids, part.values)
    return salted_ids


def is_isolated(config: object) -> bool:
    """Whether a pool of the configuration keeps tenants apart."""
    pools = getattr(getattr(config, "cluster", None), "pools", ())
    return any(getattr(getattr(pool, "kv_cache", None), "isolation", "none") == "tenant" for pool in pools)
