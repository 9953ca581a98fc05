"""The closed forms of choosing one of k episodes, against all subsets of k."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations
from statistics import fmean

import pytest

from verl_hier.ops.selection import of_drawn, of_the_highest, of_the_vote, sizes_up_to


def _mean_over_subsets(n: int, k: int, chosen: Callable[[tuple[int, ...]], float]) -> float:
    return fmean(chosen(drawn) for drawn in combinations(range(n), k))


def _highest(scores: Sequence[float], outcomes: Sequence[float]) -> Callable[[tuple[int, ...]], float]:
    def chosen(drawn: tuple[int, ...]) -> float:
        most = max(scores[i] for i in drawn)
        return fmean(outcomes[i] for i in drawn if scores[i] == most)

    return chosen


def _voted(answers: Sequence[str | None], outcomes: Sequence[float]) -> Callable[[tuple[int, ...]], float]:
    worth = {
        answer: fmean(outcome for given, outcome in zip(answers, outcomes, strict=True) if given == answer)
        for answer in set(answers)
    }

    def chosen(drawn: tuple[int, ...]) -> float:
        votes = Counter(answers[i] for i in drawn if answers[i] is not None)
        if not votes:
            return worth[None]
        return fmean(worth[answer] for answer, count in votes.items() if count == max(votes.values()))

    return chosen


@pytest.mark.parametrize("seed", range(12))
def test_the_closed_forms_are_the_means_over_all_subsets(seed: int) -> None:
    rng = random.Random(seed)
    n = rng.randint(1, 9)
    outcomes = [float(rng.random() < 0.4) if seed % 2 else rng.random() for _ in range(n)]
    scores = [float(rng.randint(0, 3)) for _ in range(n)]
    answers = [rng.choice(["a", "b", "c", "d", None][: rng.randint(2, 5)]) for _ in range(n)]
    for k in range(1, n + 1):
        assert of_the_highest(scores, outcomes, k) == pytest.approx(
            _mean_over_subsets(n, k, _highest(scores, outcomes))
        )
        assert of_the_vote(answers, outcomes, k) == pytest.approx(_mean_over_subsets(n, k, _voted(answers, outcomes)))


def test_the_best_of_k_is_pass_at_k() -> None:
    """10 episodes of which 3 are right: pass@5 is 1 - C(7, 5) / C(10, 5) = 0.9166…"""
    outcomes = [1.0] * 3 + [0.0] * 7
    assert of_the_highest(outcomes, outcomes, 5) == pytest.approx(1 - 21 / 252)
    assert of_the_highest(outcomes, outcomes, 1) == pytest.approx(0.3)


def test_a_vote_of_two_is_worth_no_more_than_one_episode() -> None:
    """Two votes agree, or are drawn from; so that 2 is 1, and only from 3 on can a majority help."""
    answers, outcomes = ["x"] * 6 + ["y", "z", "u", "v"], [1.0] * 6 + [0.0] * 4
    assert of_the_vote(answers, outcomes, 2) == pytest.approx(of_the_vote(answers, outcomes, 1)) == pytest.approx(0.6)
    assert of_the_vote(answers, outcomes, 3) > 0.7
    assert of_the_vote(answers, outcomes, 10) == 1.0
    assert of_the_vote([None] * 4, [1.0, 0.0, 0.0, 0.0], 3) == 0.25, "where nobody answers, one of them is taken"


def test_what_is_shared_is_paid_once() -> None:
    """Three episodes: one piece is all theirs, one is of two of them, three are of one each."""
    owners, amounts = [{0, 1, 2}, {0, 1}, {0}, {1}, {2}], [10.0, 4.0, 1.0, 2.0, 8.0]
    for k in (1, 2, 3):
        mean = fmean(
            sum(amount for of, amount in zip(owners, amounts, strict=True) if of & set(drawn))
            for drawn in combinations(range(3), k)
        )
        assert of_drawn([len(of) for of in owners], amounts, 3, k) == pytest.approx(mean)


def test_curves_have_powers_of_two_and_the_end() -> None:
    assert [sizes_up_to(n) for n in (1, 2, 6, 16)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8, 16]]
