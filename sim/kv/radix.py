"""Token-level prefix tree of SGLang (0.5.23): edges are runs of tokens, eviction takes unlocked leaves, least recently
used first.

A key is a list of spans (symbol, start, length): the tokens start, start+1, ... of a stretch of content called
`symbol`. Two tokens are equal where symbol and position are, so a prompt of thousands of tokens is a few spans.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush

Span = tuple[Hashable, int, int]
Key = list[Span]


def key_length(key: Key) -> int:
    """Tokens of a key."""
    return sum(span[2] for span in key)


def key_slice(key: Key, start: int, stop: int) -> Key:
    """Tokens [start, stop) of a key."""
    part, position = [], 0
    for symbol, first, length in key:
        low, high = max(start, position), min(stop, position + length)
        if low < high:
            part.append((symbol, first + low - position, high - low))
        position += length
        if position >= stop:
            break
    return part


def common_length(a: Key, b: Key) -> int:
    """Tokens at the start of both keys that are equal."""
    total, i, j, used_a, used_b = 0, 0, 0, 0, 0
    while i < len(a) and j < len(b):
        (symbol_a, start_a, length_a), (symbol_b, start_b, length_b) = a[i], b[j]
        if symbol_a != symbol_b or start_a + used_a != start_b + used_b:
            break
        step = min(length_a - used_a, length_b - used_b)
        total, used_a, used_b = total + step, used_a + step, used_b + step
        if used_a == length_a:
            i, used_a = i + 1, 0
        if used_b == length_b:
            j, used_b = j + 1, 0
    return total


class Node:
    """One edge of the tree and what hangs below it."""

    __slots__ = ("children", "key", "last_access", "locks", "number", "parent", "size")

    def __init__(self, parent: Node | None, key: Key, number: int) -> None:
        self.parent = parent
        self.key = key
        self.size = key_length(key)
        self.children: dict[Hashable, Node] = {}
        self.locks = 0
        self.last_access = 0
        self.number = number  # creation order, the last tie-breaker of eviction


class RadixTree:
    """Prefixes of token sequences in KV memory. Sizes in tokens; keys are cut to whole pages of `page_size` tokens."""

    def __init__(self, page_size: int = 1) -> None:
        self.page_size = page_size
        self.root = Node(None, [], 0)
        self.root.locks = 1
        self.num_evictable = 0
        self.num_protected = 0
        self.stored: dict[Hashable, int] = {}  # tokens of each symbol, from its start, that are in the tree
        self.changed: dict[Hashable, None] | None = None  # symbols that gained or lost some; None: not kept
        self._time = 0
        self._created = 0

    def _page(self, key: Key) -> Hashable:
        """What tells children apart: the first page of a key."""
        return tuple(key_slice(key, 0, self.page_size)) if self.page_size > 1 else key[0][:2]

    def _whole_pages(self, key: Key) -> Key:
        length = key_length(key)
        return key if length % self.page_size == 0 else key_slice(key, 0, length - length % self.page_size)

    def _new(self, parent: Node, key: Key) -> Node:
        self._created += 1
        node = Node(parent, key, self._created)
        node.last_access = self._time
        parent.children[self._page(key)] = node
        return node

    def match(self, key: Key) -> tuple[int, Node]:
        """Longest stored prefix of `key`: (tokens, node that ends there). Touches and may split nodes."""
        self._time += 1
        return self._descend(self._whole_pages(key))

    def peek(self, key: Key) -> int:
        """Tokens that `match` would return; the tree is left as it is."""
        key, node, matched = self._whole_pages(key), self.root, 0
        while key:
            child = node.children.get(self._page(key))
            if child is None:
                break
            common = self._common(child.key, key)
            matched += common
            if common < child.size:
                break
            node, key = child, key_slice(key, common, key_length(key))
        return matched

    def _common(self, a: Key, b: Key) -> int:
        common = common_length(a, b)
        return common - common % self.page_size

    def _descend(self, key: Key) -> tuple[int, Node]:
        node, matched = self.root, 0
        node.last_access = self._time
        while key:
            child = node.children.get(self._page(key))
            if child is None:
                break
            child.last_access = self._time
            common = self._common(child.key, key)
            matched += common
            if common < child.size:
                return matched, self._split(child, common)
            node, key = child, key_slice(key, common, key_length(key))
        return matched, node

    def _split(self, node: Node, at: int) -> Node:
        """Cut the edge of `node` after `at` tokens; return the new upper half. Both halves keep locks and last
        access.
        """
        parent = node.parent
        assert parent is not None
        upper = self._new(parent, key_slice(node.key, 0, at))
        upper.locks, upper.last_access = node.locks, node.last_access
        node.key, node.size, node.parent = key_slice(node.key, at, node.size), node.size - at, upper
        upper.children[self._page(node.key)] = node
        return upper

    def insert(self, key: Key) -> tuple[int, Node]:
        """Store a key; return (tokens that were there already, the node that now ends it)."""
        self._time += 1
        key = self._whole_pages(key)
        matched, node = self._descend(key)
        rest = key_slice(key, matched, key_length(key))
        if rest:
            node = self._new(node, rest)
            self.num_evictable += node.size
            self._note(rest, stored=True)
        return matched, node

    def _note(self, key: Key, stored: bool) -> None:
        """Keep account of the symbols that `stored` names: a symbol lies on one path, its end is dropped first."""
        for symbol, start, length in key:
            if symbol in self.stored:
                self.stored[symbol] = start + length if stored else start
                if self.changed is not None:
                    self.changed[symbol] = None

    def lock(self, node: Node) -> None:
        """Protect a node and its ancestors from eviction."""
        self._count_locks(node, 1)

    def unlock(self, node: Node) -> None:
        """Undo one `lock` of the node."""
        self._count_locks(node, -1)

    def _count_locks(self, node: Node, change: int) -> None:
        current: Node | None = node
        while current is not None and current is not self.root:
            before = current.locks
            current.locks += change
            if (before == 0) != (current.locks == 0):
                moved = current.size if current.locks else -current.size
                self.num_protected += moved
                self.num_evictable -= moved
            current = current.parent

    def num_idle_above(self, node: Node) -> int:
        """Evictable tokens that a lock on the node would protect."""
        total, current = 0, node
        while current.parent is not None:
            total += current.size if current.locks == 0 else 0
            current = current.parent
        return total

    def evict(self, num_tokens: int) -> int:
        """Drop unlocked leaves, least recently used first, whole leaves at a time; return the tokens dropped."""
        heap = [(node.last_access, node.number, node) for node in self._leaves() if node.locks == 0]
        heapify(heap)
        dropped = 0
        while heap and dropped < num_tokens:
            _, _, node = heappop(heap)
            parent = node.parent
            assert parent is not None
            del parent.children[self._page(node.key)]
            dropped += node.size
            self._note(node.key, stored=False)
            if not parent.children and parent.locks == 0:
                heappush(heap, (parent.last_access, parent.number, parent))
        self.num_evictable -= dropped
        return dropped

    def _leaves(self) -> Iterator[Node]:
        stack = [self.root]
        while stack:
            node = stack.pop()
            if node.children:
                stack.extend(node.children.values())
            elif node is not self.root:
                yield node

    def check_integrity(self) -> None:
        """Raise AssertionError where sizes and locks disagree with the nodes."""
        evictable = protected = 0
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            assert node.size == key_length(node.key) > 0
            assert node.locks >= max((child.locks for child in node.children.values()), default=0)
            evictable += node.size if node.locks == 0 else 0
            protected += node.size if node.locks else 0
            stack.extend(node.children.values())
        assert (evictable, protected) == (self.num_evictable, self.num_protected)
