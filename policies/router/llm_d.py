"""llm-d's default endpoint picker: queue 2, KV memory 2, cached prefix 3, the largest sum, ties at random.

Source: the default profile of llm-d's router (Gateway API inference extension), which looks at the replicas every
50 ms: `cluster.router.snapshot_interval: 50ms`. `prefix_source: precise` is its index fed by cache events.
"""

from __future__ import annotations

from dataclasses import dataclass

from policies.router.weighted import Weighted


@dataclass
class LlmD(Weighted):
    """llm-d's default scorers: queue 2, KV memory 2, cached prefix 3. Prefix ids stand for its 64-token blocks."""

    queue: float = 2.0
    kv: float = 2.0
    prefix: float = 3.0
