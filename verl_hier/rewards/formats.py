"""Format checks: reward functions for a turn, or for an episode, of which they read what was generated last."""

from __future__ import annotations

import re
from functools import lru_cache

from verl_hier.environments.tag_pairs import contents
from verl_hier.rollout.rewards import RatedEpisode, RatedTurn

Rated = RatedEpisode | RatedTurn
_TAG = re.compile(r"</?\w+>")
_OPENING = re.compile(r"\s*<(\w+)>")


def matches(rated: Rated, pattern: str) -> float:
    """1 when a regular expression matches the whole text, else 0; `.` matches line breaks too.

    Args:
        rated: the turn or episode.
        pattern: the regular expression, in Python's syntax.
    """
    return float(_compiled(pattern).fullmatch(rated.text.strip()) is not None)


def has_tags(rated: Rated, tags: tuple[str, ...] | list[str]) -> float:
    """The share of tags that are there exactly once, opened, then closed, and each after the one before.

    Args:
        rated: the turn or episode.
        tags: names without brackets, in order: `[think, action]` wants `<think>…</think>…<action>…</action>`.
    """
    place, right = 0, 0
    for tag in tags:
        opened, closed = f"<{tag}>", f"</{tag}>"
        start = rated.text.find(opened, place)
        stop = rated.text.find(closed, start)
        if 0 <= start < stop and rated.text.count(opened) == rated.text.count(closed) == 1:
            right += 1
            place = stop + len(closed)
    return right / len(tags) if tags else 1.0


def short(rated: Rated, characters: int) -> float:
    """1 up to a number of characters, then falling to 0 at twice as many.

    Args:
        rated: the turn or episode.
        characters: length that has the whole reward.
    """
    return max(0.0, min(1.0, 2.0 - len(rated.text) / characters))


def valid(rated: Rated) -> float:
    """1 when the environment and the worker accepted the turn, else 0; for an episode the share of its turns."""
    if isinstance(rated, RatedTurn):
        return float(rated.valid)
    return sum(turn.valid for turn in rated.turns) / len(rated.turns)


def spared(rated: Rated, limit: int, roles: tuple[str, ...] | list[str] = ()) -> float:
    """The share of a number of turns that an episode did not take, from 1 down to 0; 1 for a turn.

    Args:
        rated: the turn or episode.
        limit: turns that cost the whole reward.
        roles: those whose turns count; empty for all.
    """
    if isinstance(rated, RatedTurn):
        return 1.0
    return max(0.0, 1.0 - sum(not roles or turn.role in roles for turn in rated.turns) / limit)


def overlong(rated: Rated, limit: int, buffer: int = 512, factor: float = 1.0) -> float:
    """The soft penalty of DAPO (arXiv 2503.14476 §3.4) on texts that come near a limit: 0 down to `-factor`.

    It is 0 up to `limit - buffer` generated tokens and falls linearly from there to `-factor` at `limit`.

    Args:
        rated: the turn or episode; of an episode the tokens of all turns count.
        limit: the longest response in tokens.
        buffer: tokens before the limit in which the penalty grows.
        factor: penalty at the limit.
    """
    return factor * min((limit - buffer - rated.tokens) / buffer, 0.0)


def well_formed(episode: RatedEpisode, answer: str = "answer") -> bool:
    """Whether each turn is `<think>…</think>` and one action in tags, and only the last one is the answer.

    Args:
        episode: turns with anything else, a tag inside a tag among it, are not well formed.
        answer: tag of the answer.
    """
    actions = [_action(turn.text) for turn in episode.turns]
    return None not in actions and actions[-1] == answer and answer not in actions[:-1]


def _action(text: str) -> str | None:
    """The tag of the action of a turn that is `<think>…</think>` and one action, without tags within either."""
    thoughts, closed, rest = text.strip().partition("</think>")
    opening = _OPENING.match(rest)
    if not closed or not thoughts.startswith("<think>") or opening is None:
        return None
    inside = rest[opening.end() :].removesuffix(f"</{opening[1]}>")
    if len(inside) == len(rest) - opening.end() or _TAG.search(thoughts, len("<think>")) or _TAG.search(inside):
        return None
    return opening[1]


def format_shaping(episode: RatedEpisode, structure: float = 0.2, final: float = 0.1, answer: str = "answer") -> float:
    """Tree-GRPO's shaping of an exact match (arXiv 2509.21240; `qa_em_format.py`), to be added to 1 for a right answer.

    A right answer loses `structure` where the episode is not `well_formed`; a wrong or missing one gains `structure`
    where it is, and otherwise `final` if it has at least an answer in tags.

    Args:
        episode: with `success`, whether the answer was right.
        structure: what the form of the whole episode is worth.
        final: what the tags of the answer alone are worth.
        answer: tag of the answer.
    """
    formed = well_formed(episode, answer)
    if episode.success:
        return 0.0 if formed else -structure
    if formed:
        return structure
    return final if f"<{answer}>" in episode.text and f"</{answer}>" in episode.text else 0.0


THOUGHTS = {1: 0.2, 2: 0.3, 3: 0.4, 4: 0.6, 5: 0.8, 6: 1.0}
"""What a number of thoughts is worth in `thoughts_and_searches`; 7 and 8 are worth nothing, and more a half."""


def thoughts_and_searches(
    episode: RatedEpisode,
    experience: str = "search_experience",
    knowledge: tuple[str, ...] | list[str] = ("search", "web_search"),
    answer: str = "answer",
    roles: tuple[str, ...] | list[str] = ("solver",),
) -> float:
    """EvolveR's reward for the form of an episode: the mean of what its thoughts and its searches are worth.

    A search of one's own experience and one of documents are worth 0.5, one of them alone 0.2, and each further search
    0.1, up to 0.5 in all. An episode without a thought, a search or an answer has 0; what has less than three
    characters between its tags is none. (arXiv 2510.16079; Edaizi/EvolveR at e1b640e,
    evolver/rewards/reward_format.py, lines 11 to 89.)

    Args:
        episode: the episode.
        experience: tag of a search of one's own experience.
        knowledge: tags of searches of documents.
        answer: tag of the answer.
        roles: those whose turns count; empty for all.
    """
    said = "\n".join(turn.text for turn in episode.turns if not roles or turn.role in roles)

    def count(*tags: str) -> int:
        return sum(len(content.strip()) >= 3 for tag in tags for content in contents(said, tag))

    thoughts, own, documents = count("think"), count(experience), count(*knowledge)
    if not (thoughts and own + documents and count(answer)):
        return 0.0
    variety = 0.5 if own and documents else 0.2
    searches = variety + min(0.1 * (own + documents - 1), 0.5)
    return (THOUGHTS.get(thoughts, 0.5 if thoughts > 8 else 0.0) + searches) / 2


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.DOTALL)
