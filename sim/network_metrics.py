"""Summary of the network: what crossed the links, and how busy the busiest were."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.fabric import LinkAccount
    from sim.result import RunResult

MOST_LINKS = 20  # in the summary; a large cluster has thousands


def network_metrics(result: RunResult) -> dict[str, Any]:
    """`network`: the links that carried something, busiest first; nothing where no transfer or swap crossed any.

    `utilization`: bytes over what transfers could have moved in the whole run; `busy_share`: time in which any moved.
    """
    used = sorted((each for each in result.links if each.num_bytes), key=lambda each: (-each.busy_time, each.link))
    if not used:
        return {}
    links = [_link(each, result.end_time) for each in used[:MOST_LINKS]]
    return {"network": {"num_links": len(used), "links": links}}


def _link(each: LinkAccount, end_time: float) -> dict[str, Any]:
    return {
        "link": each.link,
        "num_bytes": each.num_bytes,
        "busy_time": each.busy_time,
        "busy_share": each.busy_time / end_time if end_time else None,
        "utilization": each.num_bytes / (each.bytes_per_second * end_time) if end_time else None,
    }
