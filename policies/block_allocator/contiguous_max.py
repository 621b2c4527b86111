"""One contiguous stretch a sequence, as long as it could possibly become."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sim.kv.contiguous import ContiguousKV, declared_length, model_length
from sim.kv.placement import Buddy, FirstFit


@dataclass
class ContiguousMax:
    """Reserves once, at admission, never more. `reserve`: declared (prompt + declared maximum output, tokens) or model
    (max_model_len).

    `placement`: buddy (powers of two) or first_fit, in one address range. Source: Orca (Max) of the PagedAttention
    paper (SOSP 2023, section 6.1), which reserves the model's maximum with a buddy allocator. No prefix cache.
    Ignores: tensor layout by layer; the stretch stands for all layers.
    """

    reserve: Literal["declared", "model"] = "declared"
    placement: Literal["buddy", "first_fit"] = "buddy"

    def build(self, num_blocks: int, block_size: int, prefix_caching: bool) -> ContiguousKV:
        reservation = declared_length if self.reserve == "declared" else model_length
        return ContiguousKV(num_blocks, block_size, Buddy if self.placement == "buddy" else FirstFit, reservation)
