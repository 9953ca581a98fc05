"""Which rows go through the model together: micro-batches by their unique tokens, with trees kept whole."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from verl_hier.training.sharing import Row, Sharing, depth_first, shared_with_previous

Plan = list[list[int]]
OVERHEAD = 1 / 16
"""What a further micro-batch costs, as a share of the budget: between two plans, one that repeats a shorter prefix is
only better if it saves that much."""


class Planner:
    """Divides the rows of one rank.

    Rows are put into depth-first order, and every micro-batch takes rows that follow each other. A cut repeats the
    prefix that the rows on its two sides share, so the cheapest cuts are those between trees.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        """
        Args:
            rows: token ids of each row.
        """
        self._order = depth_first(rows)
        ordered = [rows[i] for i in self._order]
        self._lengths = np.array([len(row) for row in ordered], np.int64)
        self._shared = shared_with_previous(ordered)

    def by_tokens(self, budget: int) -> Plan:
        """Micro-batches of at most `budget` unique tokens; a row that is longer has one for itself.

        Returns:
            row numbers of each micro-batch; each row is in one.
        """
        size = len(self._order)
        lengths, shared = self._lengths.tolist(), self._shared.tolist()
        best = [0.0] + [float("inf")] * size
        begins = [0] * (size + 1)
        for stop in range(1, size + 1):
            later = 0
            for begin in range(stop - 1, -1, -1):
                new = lengths[begin] - shared[begin]
                if begin < stop - 1 and later + new > budget:
                    break
                if begin == stop - 1 or later + lengths[begin] <= budget:
                    cost = best[begin] + shared[begin] + OVERHEAD * budget
                    if cost < best[stop]:
                        best[stop], begins[stop] = cost, begin
                later += new
        cuts, stop = [], size
        while stop:
            cuts.append(stop)
            stop = begins[stop]
        return self._plan(cuts)

    def by_rows(self, rows: int) -> Plan:
        """Micro-batches of `rows` rows; the last one may have fewer."""
        size = len(self._order)
        return self._plan([*range(rows, size, rows), size])

    def divided(self, plan: Plan, number: int) -> Plan:
        """The plan with `number` micro-batches at least, made by further cuts where rows share least.

        Raises:
            ValueError: when there are fewer rows than that.
        """
        size = len(self._order)
        if number > size:
            raise ValueError(f"{size} row(s) cannot be divided into {number} micro-batches.")
        cuts = set(np.cumsum([len(part) for part in plan]).tolist()) if plan else {size}
        others = sorted(set(range(1, size)) - cuts, key=lambda cut: (int(self._shared[cut]), cut))
        return self._plan([*cuts, *others[: max(0, number - len(cuts))]])

    def _plan(self, cuts: Sequence[int]) -> Plan:
        stops = sorted(cuts)
        return [self._order[begin:stop] for begin, stop in zip([0, *stops[:-1]], stops, strict=True)]

    def sharing(self) -> Sharing:
        """What the rows share."""
        return Sharing.in_order(self._lengths, self._shared)

    def forwarded(self, plan: Plan) -> int:
        """Tokens that the plan sends through the model."""
        starts = np.cumsum([0, *(len(part) for part in plan[:-1])]) if plan else np.zeros(0, np.int64)
        return int((self._lengths - self._shared).sum() + self._shared[starts].sum())
