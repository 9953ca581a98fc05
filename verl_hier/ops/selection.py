"""What choosing one of k episodes of a task reaches in expectation when k of its n are drawn at random, in closed form.

Drawn without replacement, k of n independent episodes are k independent episodes, so that each figure is the unbiased
estimate of what a search with k of them reaches. For the best of k and outcomes of 0 and 1 it is pass@k of "Evaluating
Large Language Models Trained on Code" (arXiv 2107.03374 §2.1). Shapes: n episodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from math import comb


def of_the_highest(scores: Sequence[float], outcomes: Sequence[float], k: int) -> float:
    """The mean outcome of the episode with the highest score among k of them; equal scores are drawn from at random.

    Args:
        scores: (n,) what the choice goes by; the outcomes themselves give the best of k.
        outcomes: (n,) what counts in the end.
        k: episodes that are drawn, 1 to n.
    """
    n, found, below = len(scores), 0.0, 0
    by_score: dict[float, list[float]] = {}
    for score, outcome in zip(scores, outcomes, strict=True):
        by_score.setdefault(score, []).append(outcome)
    for score in sorted(by_score):
        equal = by_score[score]
        up_to = below + len(equal)
        # The highest score is this one where all k lie up to it, and not all of them below it.
        found += (comb(up_to, k) - comb(below, k)) * sum(equal) / len(equal)
        below = up_to
    return found / comb(n, k)


def of_the_vote(answers: Sequence[Hashable | None], outcomes: Sequence[float], k: int) -> float:
    """The mean outcome of the answer that most of k episodes give; equally many votes are drawn from at random.

    An episode without an answer has no vote; where none of the k has one, the outcome is the mean of theirs.

    Args:
        answers: (n,) in a form in which equal answers are equal, None without one.
        outcomes: (n,) what counts in the end; of an answer, the mean of the episodes that give it.
        k: episodes that are drawn, 1 to n.
    """
    sizes = Counter(answer for answer in answers if answer is not None)
    silent = [outcome for answer, outcome in zip(answers, outcomes, strict=True) if answer is None]
    total = comb(len(silent), k) * sum(silent) / len(silent) if silent else 0.0
    for answer, size in sizes.items():
        worth = sum(o for a, o in zip(answers, outcomes, strict=True) if a == answer) / size
        others = [count for other, count in sizes.items() if other != answer]
        wins = sum(
            comb(size, votes) * _ways(others, len(silent), votes, k - votes) for votes in range(1, min(size, k) + 1)
        )
        total += worth * wins
    return total / comb(len(answers), k)


def _ways(others: Sequence[int], silent: int, votes: int, left: int) -> float:
    """In how many ways `left` episodes are drawn so that no other answer has more than `votes`, each way weighed by one
    over the number of answers that have `votes`.

    Args:
        others: episodes of each other answer.
        silent: episodes without an answer.
        votes: of the answer that is looked at.
        left: episodes that are drawn besides.
    """
    # ways[drawn][ties]: other answers that have just as many votes.
    ways = [[0] * (len(others) + 1) for _ in range(left + 1)]
    ways[0][0] = 1
    for size in others:
        ways = [
            [
                sum(comb(size, own) * ways[drawn - own][ties] for own in range(min(size, votes - 1, drawn) + 1))
                + (comb(size, votes) * ways[drawn - votes][ties - 1] if ties and votes <= min(size, drawn) else 0)
                for ties in range(len(others) + 1)
            ]
            for drawn in range(left + 1)
        ]
    return sum(
        comb(silent, left - drawn) * count / (1 + ties)
        for drawn, by_ties in enumerate(ways)
        for ties, count in enumerate(by_ties)
    )


def of_drawn(counts: Sequence[int], amounts: Sequence[float], n: int, k: int) -> float:
    """The expected sum of what k of n episodes have used; what several of them share counts once.

    Args:
        counts: of each piece, how many of the n episodes have it, at least 1.
        amounts: of each piece, what it has used.
        n: episodes.
        k: episodes that are drawn.
    """
    whole = comb(n, k)
    missed = {count: comb(n - count, k) / whole for count in set(counts)}
    return sum(amount * (1 - missed[count]) for count, amount in zip(counts, amounts, strict=True))


def sizes_up_to(n: int) -> list[int]:
    """1, 2, 4, … and n itself."""
    return [*(2**power for power in range(n.bit_length()) if 2**power < n), n]
