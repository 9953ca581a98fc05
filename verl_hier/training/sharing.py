"""What rows of tokens have in common: their order as a tree, and how many of their tokens are different ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.int64]


@dataclass(frozen=True)
class Sharing:
    """How much a set of rows shares, when every prefix that rows have in common counts once.

    Attributes:
        tokens: of all rows.
        unique: tokens of the tree of their prefixes.
        pairs: (query, key) pairs of causal attention in all rows.
        visible: the same pairs in the tree.
    """

    tokens: int = 0
    unique: int = 0
    pairs: int = 0
    visible: int = 0

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Sharing:
        """Count rows of token ids; none may be empty."""
        ordered = [rows[i] for i in depth_first(rows)]
        return cls.in_order(np.array([len(row) for row in ordered], np.int64), shared_with_previous(ordered))

    @classmethod
    def in_order(cls, lengths: NDArray[np.int64], shared: NDArray[np.int64]) -> Sharing:
        """Count rows in the order of `depth_first`.

        Args:
            lengths: (R,) tokens of each row.
            shared: (R,) as `shared_with_previous` gives them.
        """
        pairs = lengths * (lengths + 1) // 2
        return cls(
            tokens=int(lengths.sum()),
            unique=int((lengths - shared).sum()),
            pairs=int(pairs.sum()),
            visible=int((pairs - shared * (shared + 1) // 2).sum()),
        )

    @classmethod
    def expected(cls, prompt: int, response: int, rows: int, roots: int) -> Sharing:
        """Count the rows of a task before there are any, each of a prompt that all share and a response of its own.

        Args:
            prompt, response: tokens of both, of every row.
            rows: their number.
            roots: how many responses share nothing; each of the others begins with the first half of another one.
        """
        length, half = prompt + response, prompt + response // 2
        begun = [(prompt, roots - 1), (half, rows - roots)] if rows else []
        pairs = rows * (length * (length + 1) // 2)
        return cls(
            tokens=rows * length,
            unique=rows * length - sum(shared * count for shared, count in begun),
            pairs=pairs,
            visible=pairs - sum(shared * (shared + 1) // 2 * count for shared, count in begun),
        )

    @classmethod
    def total(cls, parts: Iterable[Sharing]) -> Sharing:
        """The sum of sets of rows that have nothing in common."""
        counts = [(part.tokens, part.unique, part.pairs, part.visible) for part in parts]
        return cls(*(int(number) for number in np.sum(counts, axis=0))) if counts else cls()

    def metrics(self) -> dict[str, float]:
        """What an engine that counts every prefix once forwards, as shares of what one forwards row by row."""
        if not self.tokens:
            return {}
        return {
            "hier/sharing/tokens": float(self.tokens),
            "hier/sharing/unique_share": self.unique / self.tokens,
            "hier/sharing/visible_share": self.visible / self.pairs,
        }


def depth_first(rows: Sequence[Row]) -> list[int]:
    """The order of rows in which those with a common prefix follow each other: by their tokens, as words in a book.

    Args:
        rows: token ids below 2^32.
    """
    # Bytes are compared in C; with the highest one first they are ordered as the numbers are.
    words = [np.asarray(row).astype(">u4").tobytes() for row in rows]
    return sorted(range(len(rows)), key=words.__getitem__)


def shared_with_previous(rows: Sequence[Row]) -> NDArray[np.int64]:
    """(R,) tokens at the beginning of each row that the row before it begins with, too; 0 for the first row."""
    shared = np.zeros(len(rows), np.int64)
    for place in range(1, len(rows)):
        above, row = rows[place - 1], rows[place]
        size = min(len(above), len(row))
        differs = above[:size] != row[:size]
        first = int(differs.argmax()) if size else 0
        shared[place] = first if size and differs[first] else size
    return shared
