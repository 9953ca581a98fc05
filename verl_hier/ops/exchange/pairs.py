"""Preference pairs from stored rollouts: what was said at one place and went well, against what did not.

Revised attempts follow Agent-R (https://arxiv.org/abs/2501.11425; bytedance/Agent-R, `path_collection.py`): a lost
attempt is cut behind its first error, a thought turns back, and the words of one that went right from there follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from verl_hier.graph import RolloutGraph, conversation
from verl_hier.graph.choices import REFUSED, Choice, Key, Turn, choices_of, on_path, turns_of
from verl_hier.ops.exchange.lessons import Fields, Lessons, about, answer

THOUGHT = "Wait, that was a mistake. I go back and do it another way."
ALONE, TIES, CLOSE, NO_WAY, SAME_ERROR, AT_THE_END, MENDED = (
    "places with one choice",
    "places whose choices are worth the same",
    "pairs whose values are too close",
    "lost attempts from whose places no other one was won",
    "lost attempts whose first error another one made too",
    "lost attempts whose context ends with their first error",
    "lost attempts that mended their first error at once",
)


def siblings(graph: RolloutGraph, lessons: Lessons) -> Iterator[Fields]:
    """At each place the choice of the highest value against that of the lowest.

    A choice is worth the mean return of the attempts that made it; the better one at least `least`, where that is set.
    """
    for choices in choices_of(graph).values():
        flaws = [(choice, _flaw(graph, choice, lessons)) for choice in choices.values()]
        better = [choice for choice, flaw in flaws if flaw is None]
        worse = [choice for choice, flaw in flaws if flaw in (None, REFUSED)]
        lessons.left_out.update(flaw for _, flaw in flaws if flaw not in (None, REFUSED))
        if not better or len(worse) < 2:
            lessons.left_out[ALONE] += 1
        else:
            yield from _pair(graph, max(better, key=_value), min(worse, key=_value), lessons)


def errors(graph: RolloutGraph, lessons: Lessons) -> Iterator[Fields]:
    """For each lost attempt its first error against what went right there, see `first_errors`."""
    for error in first_errors(graph, lessons):
        yield from _pair(graph, error.right, error.wrong, lessons)


def revisions(graph: RolloutGraph, lessons: Lessons) -> Iterator[Fields]:
    """After its first error, and what the world answered to it, a lost attempt turns back with the thought and the
    words that went right, against what it said instead."""
    turns = turns_of(graph)
    for error in first_errors(graph, lessons):
        later = _next(graph, turns, error, lessons)
        if later is None:
            continue
        told, right = conversation(graph, later.node)[:-1], error.right.said
        chosen = answer(f"{lessons.thought}\n{right.text}")
        row = {"prompt": told, "chosen": chosen, "rejected": answer(later.text)}
        yield row | about(graph, later.node) | _values(error.right, error.wrong)


def revised_attempts(graph: RolloutGraph, lessons: Lessons) -> Iterator[Fields]:
    """The same as rows of supervised training, a turn a row: the thought with the words that went right, and then each
    later turn of that attempt. What came before is in the prompts, and nobody learns to say it."""
    turns = turns_of(graph)
    for error in first_errors(graph, lessons):
        later = _next(graph, turns, error, lessons)
        if later is None:
            continue
        told = conversation(graph, later.node)[:-1]
        best = max(error.right.returns, key=lambda number: (error.right.returns[number], -number))
        path = on_path(graph, best, turns)
        start = next(turn for turn in path if turn in error.right.turns)
        shared = len(conversation(graph, start.node)) - 1
        for turn in path:
            if start.node not in graph.chain(turn.node):
                continue  # said before it, or in another context
            what = lessons.against(turn, graph.nodes[turn.node].role)
            if what is not None:
                lessons.left_out[what] += 1
                continue
            first, *others = conversation(graph, turn.node)[shared:]
            revised = [*answer(f"{lessons.thought}\n{first['content']}"), *others]
            row = {"prompt": [*told, *revised[:-1]], "completion": revised[-1:]}
            yield row | about(graph, turn.node) | {"return": graph.episodes[best].ret}


@dataclass(frozen=True)
class Error:
    """The first error of a lost attempt.

    Attributes:
        turn: the turn.
        wrong: what it said.
        right: the choice of the highest value there that was won.
    """

    turn: Turn
    wrong: Choice
    right: Choice


def first_errors(graph: RolloutGraph, lessons: Lessons) -> Iterator[Error]:
    """The first turn of each lost attempt after which no attempt was won, where one was won from its place.

    Attempts are won or lost as `Lessons.good` has it.
    """
    turns, good = turns_of(graph), lessons.good(graph)
    choices = choices_of(graph, turns)
    seen: set[tuple[Key, str]] = set()
    for episode in graph.complete():
        if episode.id in good:
            continue
        found = _first_error(choices, on_path(graph, episode.id, turns), good)
        if found is None:
            lessons.left_out[NO_WAY] += 1
            continue
        wrong = choices[found.place][found.text]
        if (found.place, found.text) in seen:
            lessons.left_out[SAME_ERROR] += 1
            continue
        seen.add((found.place, found.text))
        others = [choice for choice in choices[found.place].values() if good & choice.returns.keys()]
        flaws = [_flaw(graph, choice, lessons) for choice in others]
        sound = [choice for choice, flaw in zip(others, flaws, strict=True) if flaw is None]
        flaw = _flaw(graph, wrong, lessons)
        if sound and flaw in (None, REFUSED):
            yield Error(found, wrong, max(sound, key=_value))
        else:
            lessons.left_out[flaw or str(flaws[0])] += 1


def _first_error(choices: dict[Key, dict[str, Choice]], path: list[Turn], good: set[int]) -> Turn | None:
    for turn in path:
        here = choices[turn.place]
        if not good & here[turn.text].returns.keys() and any(good & other.returns.keys() for other in here.values()):
            return turn
    return None


def _next(graph: RolloutGraph, turns: dict[int, Turn], error: Error, lessons: Lessons) -> Turn | None:
    """The turn that continues the context of a first error, where it may stand in a row; else it is counted."""
    wrong = {turn.node for turn in error.wrong.turns}
    begins = {number: graph.pieces(graph.nodes[number])[0] for number in turns}
    found = next((turn for number, turn in turns.items() if begins[number].context in wrong), None)
    what = AT_THE_END if found is None else lessons.against(found, graph.nodes[found.node].role)
    if found is not None and found.text == error.right.said.text:
        what = MENDED
    if what not in (None, REFUSED):
        lessons.left_out[what] += 1
        return None
    return found


def _pair(graph: RolloutGraph, better: Choice, worse: Choice, lessons: Lessons) -> Iterator[Fields]:
    if better.value == worse.value:
        lessons.left_out[TIES] += 1
    elif better.value - worse.value < lessons.gap or (lessons.least is not None and better.value < lessons.least):
        lessons.left_out[CLOSE] += 1
    else:
        words = lessons.words(graph, better.said, chosen=better.said.text, rejected=worse.said.text)
        yield words | about(graph, better.said.node) | _values(better, worse)


def _values(better: Choice, worse: Choice) -> Fields:
    return {
        "chosen_return": better.value,
        "rejected_return": worse.value,
        "chosen_attempts": len(better.returns),
        "rejected_attempts": len(worse.returns),
    }


def _value(choice: Choice) -> float:
    return choice.value


def _flaw(graph: RolloutGraph, choice: Choice, lessons: Lessons) -> str | None:
    """Why nobody should learn to make a choice; None where somebody may."""
    return lessons.against(choice.said, graph.nodes[choice.said.node].role)
