"""The rows of a micro-batch as one packed sequence in which every prefix that rows have in common stands once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from verl_hier.training.sharing import Row, depth_first, shared_with_previous

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Packed:
    """T tokens in depth-first order, of R rows.

    Attributes:
        tokens: (T,) token ids.
        positions: (T,) depth of each token: its position in each of its rows.
        parents: (T,) the token before each one, -1 for the first tokens of rows.
        end: (T,) the end of each token's subtree: token q sees token k if and only if k <= q < end[k].
        paths: for each row, in the order in which they were given, where its tokens are.
        starts: where each stretch of tokens begins after which, or before which, rows part; sorted, the first is 0.
    """

    tokens: Indices
    positions: Indices
    parents: Indices
    end: Indices
    paths: tuple[Indices, ...]
    starts: Indices

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Packed:
        """Pack rows of token ids.

        Raises:
            ValueError: when a row has no token.
        """
        if not all(map(len, rows)):
            raise ValueError("a row without tokens cannot be trained; leave it out of the batch.")
        order = depth_first(rows)
        ordered = [np.asarray(rows[i], np.int64) for i in order]
        shared = shared_with_previous(ordered)
        sizes = np.array([len(row) for row in ordered], np.int64) - shared
        bounds = np.concatenate([[0], np.cumsum(sizes)])
        end = np.empty(bounds[-1], np.int64)
        parents = np.empty(bounds[-1], np.int64)
        paths: list[Indices] = []
        path = np.empty(0, np.int64)
        for row, common, begin, stop in zip(ordered, shared, bounds[:-1], bounds[1:], strict=True):
            new = np.arange(begin, stop)
            if len(new):
                # What the row does not share with the one before is over for good.
                end[path[common:]] = begin
                parents[new] = new - 1
                parents[begin] = path[common - 1] if common else -1
                path = np.concatenate([path[:common], new])
            paths.append(path[: len(row)])
        end[path] = bounds[-1]
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return cls(
            tokens=np.concatenate([row[common:] for row, common in zip(ordered, shared, strict=True)]),
            positions=np.concatenate([np.arange(c, len(r)) for r, c in zip(ordered, shared, strict=True)]),
            parents=parents,
            end=end,
            paths=tuple(paths[place] for place in back),
            starts=np.flatnonzero(np.append(True, (parents[1:] != np.arange(len(end) - 1)) | (end[1:] != end[:-1]))),
        )

    def stretches(self) -> list[tuple[int, int, int]]:
        """(begin, stop, end) of each stretch: rows part nowhere inside [begin, stop), and the tokens of [stop, end) are
        those that come after it in some row."""
        stops = [*self.starts[1:].tolist(), len(self)]
        return [(begin, stop, int(self.end[begin])) for begin, stop in zip(self.starts.tolist(), stops, strict=True)]


@dataclass(frozen=True)
class Edges:
    """The steps from a token to a next one whose log-prob is asked for, each once.

    A token at which rows part has a step to each of its children, so log-probs belong to steps and not to tokens.

    Attributes:
        children: (E,) the token that each step leads to.
        parents: (E,) the token whose logits say how probable it is.
        places: (sum of the lengths of the rows,) for each token of each row the number of the step to its successor,
            E where that is not asked for.
    """

    children: Indices
    parents: Indices
    places: Indices

    @classmethod
    def of(cls, packed: Packed, prompts: Sequence[int]) -> Edges:
        """The steps to every token of a row that its prompt does not have.

        Args:
            packed: the rows.
            prompts: tokens at the beginning of each row whose log-probs nobody reads.
        """
        wanted = np.zeros(len(packed), bool)
        firsts = [max(int(prompt), 1) for prompt in prompts]
        for path, first in zip(packed.paths, firsts, strict=True):
            wanted[path[first:]] = True
        children = np.flatnonzero(wanted)
        number = np.cumsum(wanted) - 1
        places: list[Indices] = []
        for path, first in zip(packed.paths, firsts, strict=True):
            row = np.full(len(path), len(children), np.int64)
            row[first - 1 : len(path) - 1] = number[path[first:]]
            places.append(row)
        return cls(children, packed.parents[children], np.concatenate(places))
