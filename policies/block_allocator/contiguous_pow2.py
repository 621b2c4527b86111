"""One contiguous stretch a sequence: its prompt and its true output length rounded up to a power of two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sim.kv.contiguous import ContiguousKV, power_of_two_length
from sim.kv.placement import Buddy, FirstFit


@dataclass
class ContiguousPow2:
    """Over-reserves the output by less than a factor of two. Knows the true output length: an oracle with an error.

    `placement`: buddy (powers of two) or first_fit, in one address range. Source: Orca (Pow2) of the PagedAttention
    paper (SOSP 2023, section 6.1). No prefix cache. Ignores: tensor layout by layer.
    """

    placement: Literal["buddy", "first_fit"] = "buddy"

    def build(self, num_blocks: int, block_size: int, prefix_caching: bool) -> ContiguousKV:
        return ContiguousKV(
            num_blocks, block_size, Buddy if self.placement == "buddy" else FirstFit, power_of_two_length
        )
