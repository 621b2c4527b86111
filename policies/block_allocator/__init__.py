"""Block allocators: how KV memory is given to sequences."""

from __future__ import annotations

from collections.abc import Callable

from policies.block_allocator.paged import Paged
from policies.block_allocator.radix import Radix

BLOCK_ALLOCATORS: dict[str, Callable[..., object]] = {"paged": Paged, "radix": Radix}
