"""Block allocators: how KV memory is given to sequences."""

from __future__ import annotations

from collections.abc import Callable

from policies.block_allocator.contiguous_max import ContiguousMax
from policies.block_allocator.contiguous_oracle import ContiguousOracle
from policies.block_allocator.contiguous_pow2 import ContiguousPow2
from policies.block_allocator.paged import Paged
from policies.block_allocator.radix import Radix
from policies.block_allocator.slots import Slots

BLOCK_ALLOCATORS: dict[str, Callable[..., object]] = {
    "paged": Paged,
    "radix": Radix,
    "slots": Slots,
    "contiguous_max": ContiguousMax,
    "contiguous_pow2": ContiguousPow2,
    "contiguous_oracle": ContiguousOracle,
}
