"""Rewards of answers: how well an answer matches the true ones, what was found, and whether the tools were used.

Every function takes an episode or a turn. The true answers stand in the task of the environment, by default in its
field `answers`. Scores are those of SQuAD (arXiv 1606.05250) on normalised words, which see neither the sign nor the
decimal point of a number; for answers that are numbers there is `number`. See `verl_hier.environments.scoring`.
Thoughts hold no answer.
"""

from __future__ import annotations

import logging
import re
from asyncio import to_thread
from collections.abc import Mapping, Sequence
from functools import lru_cache

from verl_hier.environments import scoring
from verl_hier.environments.thoughts import without_thoughts
from verl_hier.rollout.rewards import RatedEpisode, RatedTurn

Rated = RatedEpisode | RatedTurn
ANSWER = r"<answer>([^<]*)</answer>|^\s*answer\s+(.*)"
"""An answer in either form of the search environment: `<answer>Paris</answer>`, or `answer Paris` as the whole turn."""

WORDS = ("search", "retrieval", "nq", "hotpotqa", "2wikimultihopqa", "musique", "triviaqa", "popqa", "bamboogle")
"""Data sources whose rule is SQuAD's, for their numbers too."""
_told: set[str] = set()
"""Functions for which it was said in this process that a true answer does not suit them."""
_log = logging.getLogger(__name__)


def f1(rated: Rated, answer: str = ANSWER, truths: str = "answers", missing: float = 0.0, offset: float = 0.0) -> float:
    """Token-level F1 of the answer in the last turn, for the best matching true answer.

    Args:
        rated: the episode, or a turn.
        answer: regular expression for the answer, which is its last group that matches; of several the last counts.
        truths: field of the task with the true answer or answers.
        missing: what a turn without an answer has instead of 0.
        offset: added in any case; with `weight: 6` and `offset: -0.5` the reward is 6 F1 - 3.
    """
    given = _last(answer, rated.text)
    return offset + (missing if given is None else scoring.f1(given, _words(rated, truths, "f1")))


def exact_match(rated: Rated, answer: str = ANSWER, truths: str = "answers", missing: float = 0.0) -> float:
    """1 when the answer in the last turn equals a true answer after normalisation, else 0; see `f1` for the options."""
    given = _last(answer, rated.text)
    return missing if given is None else float(scoring.exact_match(given, _words(rated, truths, "exact_match")))


def number(rated: Rated, answer: str = ANSWER, truths: str = "answers", missing: float = 0.0) -> float:
    """1 when the last number of the answer in the last turn is that of a true answer, in any notation, else 0.

    For the options see `f1`.
    """
    given = _last(answer, rated.text)
    return missing if given is None else float(scoring.number(given, _truths(rated, truths)))


def number_or_words(rated: Rated, answer: str = ANSWER, truths: str = "answers", missing: float = 0.0) -> float:
    """`number` for true answers that are numbers, `exact_match` for the others; for the options see `f1`."""
    given = _last(answer, rated.text)
    return missing if given is None else float(scoring.number_or_words(given, _truths(rated, truths)))


async def math_verify(rated: Rated, answer: str = ANSWER, truths: str = "answers", missing: float = 0.0) -> float:
    """1 when the answer in the last turn equals a true one in LaTeX, by `math-verify`; for the options see `f1`.

    A process of its own reads the last 2,000 characters of an answer and has five seconds for it; an answer that takes
    longer is wrong. `pip install 'verl-hier[math]'`.
    """
    given, true = _last(answer, rated.text), _truths(rated, truths)
    return missing if given is None else float(await to_thread(scoring.MATCHES["math_verify"], given, true))


def found(
    rated: Rated, pattern: str = r"<refine>([^<]*)</refine>", roles: Sequence[str] = (), truths: str = "answers"
) -> float:
    """1 when a true answer stands in what some turn has noted, else 0.

    Args:
        rated: the episode, or a turn.
        pattern: regular expression for notes in the text of a turn; its last group that matches is the note.
        roles: roles whose turns are searched; empty: all.
        truths: field of the task with the true answer or answers.
    """
    turns = [turn for turn in _turns(rated) if not roles or turn.role in roles]
    notes = [scoring.normalise(note) for turn in turns for note in _matches(pattern, without_thoughts(turn.text))]
    true = [scoring.normalise(truth) for truth in _truths(rated, truths)]
    return float(any(truth and truth in note for truth in true for note in notes))


def answer_and_tools(
    rated: Rated,
    tools: Mapping[str, Sequence[str]] | Sequence[str] = (),
    answer: str = ANSWER,
    truths: str = "answers",
    invalid: float = 0.0,
    wrong: float = 0.0,
    right: float = 0.0,
) -> float:
    """The F1 of an answer, with something for the use of tools: the rewards of HierSearch, ARPO and AEPO.

    The turns that count are those of the highest level in the episode, of the agent that took the last of them: the
    planner's, or those of an agent that works alone. Without an answer in the last one, or when one of them was
    refused, the reward is `invalid`. An answer that shares no word with a true one has `wrong` times the share of tools
    that were used, any other one its F1 plus `right` when all tools were used.

    HierSearch (arXiv 2508.08088) has `wrong: 0.1`; ARPO (arXiv 2507.19849) has `invalid: -1` and `right: 0.1`.

    Args:
        rated: the episode, or a turn.
        tools: a text for each tool, such as `<search>`, which turns that use it contain; or such lists by the name of
            the agent.
        answer, truths: see `f1`.
        invalid: reward without a sound answer.
        wrong: reward of a wrong answer for which all tools were used.
        right: added to the F1 of an answer for which all tools were used.
    """
    level = min(turn.level for turn in _turns(rated))
    above = [turn for turn in _turns(rated) if turn.level == level]
    speaker = above[-1].agent
    turns = [turn for turn in above if turn.agent == speaker]
    given = _last(answer, turns[-1].text)
    if given is None or not all(turn.valid for turn in turns):
        return invalid
    own = tools.get(speaker, ()) if isinstance(tools, Mapping) else tools
    said = [without_thoughts(turn.text) for turn in turns]
    used = [any(tool in text for text in said) for tool in own]
    share = sum(used) / len(used) if used else 1.0
    score = scoring.f1(given, _words(rated, truths, "f1"))
    return score + right * (share == 1.0) if score > 0 else wrong * share


def _turns(rated: Rated) -> tuple[RatedTurn, ...]:
    return (rated,) if isinstance(rated, RatedTurn) else rated.turns


def _truths(rated: Rated, field: str) -> list[str]:
    """The true answers of a task.

    Raises:
        ValueError: when the task has none.
    """
    if field not in rated.task:
        raise ValueError(
            f"the task has no field {field!r}; name the one with the true answer by the option `truths` of the reward"
        )
    value = rated.task[field]
    return [value] if isinstance(value, str) else [str(truth) for truth in value]


def _words(rated: Rated, field: str, function: str) -> list[str]:
    """The true answers of a task for a function that compares words; says once which of them are none."""
    found = _truths(rated, field)
    if function not in _told and rated.task.get("data_source") not in WORDS:
        why = next(((truth, said) for truth in found if (said := scoring.unfit(function, truth))), None)
        if why is not None:
            _told.add(function)
            _log.warning("hier.rewards, function %s: the true answer %r %s.", function, *why)
    return found


def _last(pattern: str, text: str) -> str | None:
    return next(reversed(_matches(pattern, without_thoughts(text))), None)


def _matches(pattern: str, text: str) -> list[str]:
    """What each match of a pattern captures: its last group that took part, the whole match without groups."""
    return [match[match.lastindex or 0].strip() for match in _compiled(pattern).finditer(text)]


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.DOTALL)
