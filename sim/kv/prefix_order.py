"""Orders of a waiting queue by what the prefix tree holds (SGLang 0.5.23: lpm and dfs-weight)."""

from __future__ import annotations

from collections.abc import Sequence

from sim.kv.radix import Key, Node, RadixTree

LONGEST_QUEUE = 128  # a longer queue is served first come, first served, without looking at the tree
SHORT_MATCH = 32  # tokens: below or at this the queue itself is searched for shared prefixes


def longest_prefix_first(keys: Sequence[Key], matched: Sequence[int]) -> list[int]:
    """Positions by matched tokens, longest first; a request that repeats one before it in the queue goes last."""
    scratch = RadixTree()
    repeats = set()
    for i, key in enumerate(keys):
        if matched[i] <= SHORT_MATCH:
            if scratch.match(key)[0] >= SHORT_MATCH:
                repeats.add(i)
            else:
                scratch.insert(key)
    return sorted(range(len(keys)), key=lambda i: (i in repeats, -matched[i] if i not in repeats else 0))


def depth_first_by_weight(tree: RadixTree, nodes: Sequence[Node]) -> list[int]:
    """Positions in the order of a walk over the tree: subtrees with more waiting requests first, a node's own last."""
    waiting: dict[Node, list[int]] = {}
    for i, node in enumerate(nodes):
        waiting.setdefault(node, []).append(i)
    weights = _weights(waiting)
    order: list[int] = []
    stack: list[tuple[Node, bool]] = [(tree.root, False)]
    while stack:
        node, below_done = stack.pop()
        if below_done:
            order += waiting.get(node, [])
            continue
        stack.append((node, True))
        heavy = sorted(node.children.values(), key=lambda child: -weights.get(child, 0))
        stack += [(child, False) for child in reversed(heavy) if weights.get(child)]
    return order


def _weights(waiting: dict[Node, list[int]]) -> dict[Node, int]:
    weights: dict[Node, int] = {}
    for node, own in waiting.items():
        current: Node | None = node
        while current is not None:
            weights[current] = weights.get(current, 0) + len(own)
            current = current.parent
    return weights
