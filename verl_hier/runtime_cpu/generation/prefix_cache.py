"""Keys and values of token prefixes, in a radix tree: shared prefixes are stored once."""

import itertools
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

# Room for the logits of 64 prompts with a vocabulary of 260 thousand tokens in float32.
_LOGITS_BYTES = 64 * 1024**2


@dataclass(eq=False)
class _Node:
    """A run of tokens and its keys and values [layer, len(tokens), kv_head, head_dim]."""

    tokens: list[int]
    keys: torch.Tensor
    values: torch.Tensor
    parent: "_Node | None"
    used: int
    children: dict[int, "_Node"] = field(default_factory=dict)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    limit = min(len(a), len(b))
    if a[:limit] == b[:limit]:
        return limit
    return next(i for i in range(limit) if a[i] != b[i])


class LogitsCache:
    """The logits behind whole prompts, the least recently used out first.

    Keys and values alone do not say how a prompt goes on: without this a prompt that is asked again computes its last
    token again, which for a branch of a few tokens is a large part of its work.

    Args:
        max_bytes: Memory that is kept at most; 0 keeps nothing.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._rows: OrderedDict[tuple[int, ...], torch.Tensor] = OrderedDict()

    def clear(self) -> None:
        self._rows.clear()
        self.bytes = 0

    def get(self, tokens: Sequence[int]) -> torch.Tensor | None:
        """Logits [vocabulary] of the token that follows `tokens`."""
        key = tuple(tokens)
        row = self._rows.get(key)
        if row is not None:
            self._rows.move_to_end(key)
        return row

    def put(self, tokens: Sequence[int], row: torch.Tensor) -> None:
        """Keep a copy of `row` [vocabulary]."""
        key = tuple(tokens)
        if row.nbytes > self.max_bytes or key in self._rows:
            return
        self._rows[key] = row.clone()
        self.bytes += row.nbytes
        while self.bytes > self.max_bytes:
            self.bytes -= self._rows.popitem(last=False)[1].nbytes


class PrefixCache:
    """Bounded in tokens; the least recently used ends of the tree go first.

    Args:
        capacity: Number of tokens whose keys and values are kept at most; 0 keeps nothing.
        logits_bytes: Memory for the logits behind whole prompts.
    """

    def __init__(self, capacity: int, logits_bytes: int = _LOGITS_BYTES) -> None:
        self.capacity = capacity
        self.tokens = 0
        self.logits = LogitsCache(logits_bytes if capacity else 0)
        self._clock = itertools.count(1)
        self._root = _Node([], torch.empty(0), torch.empty(0), None, 0)

    def clear(self) -> None:
        self._root.children.clear()
        self.tokens = 0
        self.logits.clear()

    def match_length(self, tokens: Sequence[int]) -> int:
        """Number of leading tokens that are in the cache. Does not count as a use."""
        return sum(shared for _, shared in self._walk(tokens))

    def lookup(self, tokens: Sequence[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values of the longest known prefix, as consecutive runs."""
        now, runs = next(self._clock), []
        for node, shared in self._walk(tokens):
            node.used = now
            runs.append((node.keys[:, :shared], node.values[:, :shared]))
        return runs

    def _walk(self, tokens: Sequence[int]) -> Iterator[tuple[_Node, int]]:
        """The nodes along the longest known prefix, with how many of their tokens belong to it."""
        node, matched = self._root, 0
        while matched < len(tokens):
            child = node.children.get(tokens[matched])
            if child is None:
                return
            shared = common_prefix(child.tokens, tokens[matched : matched + len(child.tokens)])
            yield child, shared
            if shared < len(child.tokens):
                return
            node, matched = child, matched + shared

    def insert(self, tokens: list[int], keys: torch.Tensor, values: torch.Tensor, start: int) -> None:
        """Add a sequence of which the first `start` tokens are known already (see `match_length`).

        Args:
            tokens: The whole sequence.
            keys, values: Those of `tokens[start:]`, each [layer, len(tokens) - start, kv_head, head_dim]; kept.
            start: Must be the present result of `match_length(tokens)`.
        """
        now = next(self._clock)
        node, matched = self._root, 0
        while matched < start:
            child = node.children[tokens[matched]]
            shared = min(len(child.tokens), start - matched)
            if shared < len(child.tokens):
                child = self._split(child, shared)
            child.used = now
            matched += shared
            node = child
        if start < len(tokens):
            node.children[tokens[start]] = _Node(tokens[start:], keys, values, node, now)
            self.tokens += len(tokens) - start
            if self.tokens > self.capacity:
                self._evict()

    def _split(self, node: _Node, length: int) -> _Node:
        """Cut a node after `length` tokens; returns the upper part."""
        assert node.parent is not None
        upper = _Node(
            node.tokens[:length], node.keys[:, :length].clone(), node.values[:, :length].clone(), node.parent, node.used
        )
        node.parent.children[upper.tokens[0]] = upper
        node.tokens, node.parent = node.tokens[length:], upper
        node.keys, node.values = node.keys[:, length:].clone(), node.values[:, length:].clone()
        upper.children[node.tokens[0]] = node
        return upper

    def _leaves(self) -> list[_Node]:
        leaves, stack = [], list(self._root.children.values())
        while stack:
            node = stack.pop()
            if node.children:
                stack.extend(node.children.values())
            else:
                leaves.append(node)
        return leaves

    def _evict(self) -> None:
        """Drop leaves, oldest first, down to nine tenths of the capacity (not at every insertion)."""
        target = self.capacity * 9 // 10
        while self.tokens > target:
            leaves = sorted(self._leaves(), key=lambda leaf: leaf.used)
            for leaf in leaves:
                if self.tokens <= target:
                    break
                assert leaf.parent is not None
                del leaf.parent.children[leaf.tokens[0]]
                self.tokens -= len(leaf.tokens)
