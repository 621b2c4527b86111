"""One contiguous stretch a sequence, exactly as long as it will become."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sim.kv.contiguous import ContiguousKV, true_length
from sim.kv.placement import Buddy, FirstFit


@dataclass
class ContiguousOracle:
    """Reserves prompt + true output length: an oracle, an upper bound for contiguous memory, not an engine.

    `placement`: buddy (powers of two) or first_fit, in one address range. Source: Orca (Oracle) of the PagedAttention
    paper (SOSP 2023, section 6.1). No prefix cache. Ignores: tensor layout by layer.
    """

    placement: Literal["buddy", "first_fit"] = "buddy"

    def build(self, num_blocks: int, block_size: int, prefix_caching: bool) -> ContiguousKV:
        return ContiguousKV(num_blocks, block_size, Buddy if self.placement == "buddy" else FirstFit, true_length)
