"""Rewards of whole conversations that search and answer, as the released trainers of this field compute them.

Each function reads what was generated in an episode, turn after turn; what the environment has shown is no part of it.
Words are compared as SQuAD does it to the letter (arXiv 1606.05250): an answer of which normalisation leaves nothing
equals a true one of which it leaves nothing. Thoughts are read like all other text, since the released readers do so.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Sequence
from typing import Literal

from verl_hier.environments.scoring import f1, normalise
from verl_hier.environments.tag_pairs import contents, pairs
from verl_hier.rollout.rewards import RatedEpisode

_TAG = re.compile(r"(</?(?:think|search|information|answer)>)")
_DOCUMENTS = "<information></information>"
_WORDS = str.maketrans(dict.fromkeys(string.punctuation, " "))
_FOLLOWS = {
    ("start", "<think>"): "<think>",
    ("</information>", "<think>"): "<think>",
    ("<think>", "</think>"): "</think>",
    ("</think>", "<search>"): "<search>",
    ("<search>", "</search>"): "</search>",
    ("</search>", "<information>"): "<information>",
    ("<information>", "</information>"): "</information>",
    ("</think>", "<answer>"): "<answer>",
    ("<answer>", "</answer>"): "</answer>",
}
"""Which tag may follow which one in a well-formed conversation."""


def tagged_answer(
    episode: RatedEpisode,
    score: Literal["f1", "exact_match"] = "f1",
    tools: Sequence[str] = (),
    all_tools: float = 0.1,
    wrong_format: float = -1.0,
    truths: str = "answers",
) -> float:
    """The score of the one answer of a conversation, with a fixed reward for a wrong format.

    The format is right when thoughts are opened as often as closed, at least once, and there is exactly one
    `<answer>…</answer>`. With `score: f1` this is the reward of ARPO (arXiv 2507.19849, `deep_research.py`), with
    `score: exact_match` that of AEPO and AT²PO as their scripts run them (`deep_research_em.py`).
    All three also ask for a `\\boxed{}` inside the answer and for a result behind each call, which is left out here.

    Args:
        episode: the episode.
        score: what an answer has. A conversation that used all tools has F1 and `all_tools` in either case, unless no
            word of its answer is right.
        tools: names of the tags by which tools are called; empty: no tools are asked for.
        all_tools: added when every tool was called.
        wrong_format: reward of a conversation with a wrong format.
        truths: field of the task with the true answer or answers.

    Raises:
        ValueError: when `score` is neither of the two.
    """
    if score not in ("f1", "exact_match"):
        raise ValueError(f"score must be f1 or exact_match, got {score!r}")
    text = _said(episode)
    thoughts, answers = text.count("<think>"), contents(text, "answer")
    once = text.count("<answer>") == text.count("</answer>") == 1
    if not thoughts or thoughts != text.count("</think>") or not once or not answers:
        return wrong_format
    true, given = _truths(episode, truths), answers[0].strip()
    share = f1(given, true)
    if tools and share > 0 and all(f"</{tool}>" in text for tool in tools):
        return share + all_tools
    return share if score == "f1" else float(_same(given, true))


def structured_exact_match(
    episode: RatedEpisode, structure: float = 0.2, final: float = 0.1, truths: str = "answers"
) -> float:
    """An exact match that is shaped by the form of the conversation: Tree-GRPO's reward (arXiv 2509.21240,
    `qa_em_format.py`).

    The last `<answer>…</answer>` of the conversation counts. A right one has 1, less `structure` where the form is
    wrong; a wrong one has `structure` where the form is right, and `final` where it is not; none has 0. The form is
    right when each turn is `<think>…</think><search>…</search>`, and the last one `<think>…</think><answer>…</answer>`,
    with nothing but white space between the tags; other tags inside of them are text.

    Args:
        episode: the episode.
        structure: what the form of the whole conversation is worth.
        final: what a wrong answer in tags is worth.
        truths: field of the task with the true answer or answers.
    """
    answers = contents(_said(episode), "answer")
    if not answers:
        return 0.0
    formed = _well_formed(_DOCUMENTS.join(turn.text for turn in episode.turns))
    if _same(answers[-1], _truths(episode, truths)):
        return 1.0 if formed else 1.0 - structure
    return structure if formed else final


def exact_or_partial(episode: RatedEpisode, least: float = 0.3, truths: str = "answers") -> float:
    """1 for an exact match, otherwise the F1 of the answer where it is large enough: BranPO's reward (arXiv 2602.03719,
    `search_reward.py`).

    The first `<answer>…</answer>` of the last turn counts; what stands in `<thinking>…</thinking>` does not.

    Args:
        episode: the episode.
        least: the F1 below which an answer has nothing.
        truths: field of the task with the true answer or answers.
    """
    found = contents(" ".join(_without(episode.text.strip(), "thinking").split()), "answer")
    given, true = found[0].strip() if found else "", _truths(episode, truths)
    if _same(given, true):
        return 1.0
    share = f1(given, true)
    return share if share >= least else 0.0


def overlap_of_word_sets(
    episode: RatedEpisode,
    tags: Sequence[str] = ("code", "tool_call", "think", "answer"),
    wrong_format: float = -2.0,
    truths: str = "answers",
) -> float:
    """F1 of the sets of words of the first answer and the best matching true one: IGPO's reward (arXiv 2510.14967,
    `info_gain.py`).

    Words are compared in small letters, with a space for each ASCII punctuation; articles are words, and a word that is
    repeated counts once. Capitals make no difference to tags.

    Args:
        episode: the episode.
        tags: tags that have to be closed as often as opened, each after its opening.
        wrong_format: reward of a conversation with unbalanced tags or without `<answer>…</answer>`.
        truths: field of the task with the true answer or answers.
    """
    text = _said(episode).lower()
    answers = contents(text, "answer")
    if not answers or not all(_balanced(text, tag) for tag in tags):
        return wrong_format
    given = set(answers[0].translate(_WORDS).split())
    shares = [0.0]
    for true in (set(truth.lower().translate(_WORDS).split()) for truth in _truths(episode, truths)):
        common = len(given & true)
        shares.append(2 * common / (len(given) + len(true)) if common else 0.0)
    return max(shares)


def _said(episode: RatedEpisode) -> str:
    return "\n".join(turn.text for turn in episode.turns)


def _without(text: str, tag: str) -> str:
    """The text without each `<tag>…</tag>`."""
    kept, place = [], 0
    for start, stop in pairs(text, tag):
        kept.append(text[place:start])
        place = stop
    return "".join([*kept, text[place:]])


def _truths(episode: RatedEpisode, field: str) -> list[str]:
    """The true answers of a task.

    Raises:
        ValueError: when the task has none.
    """
    if field not in episode.task:
        raise ValueError(
            f"the task has no field {field!r}; name the one with the true answer by the option `truths` of the reward"
        )
    value = episode.task[field]
    return [value] if isinstance(value, str) else [str(truth) for truth in value]


def _same(answer: str, truths: Iterable[str]) -> bool:
    return normalise(answer) in {normalise(truth) for truth in truths}


def _well_formed(text: str) -> bool:
    """Whether thoughts, searches, documents and one answer at the end follow each other with nothing between them."""
    state = "start"
    for number, part in enumerate(_TAG.split(text)):
        if number % 2:
            if (state, part) not in _FOLLOWS:
                return False
            state = _FOLLOWS[state, part]
        elif part.strip() and (state == "start" or state.startswith("</")):
            return False
    return state == "</answer>"


def _balanced(text: str, tag: str) -> bool:
    """Whether a tag is closed as often as it is opened, and every opening is followed by a closing."""
    opened, closed = f"<{tag}>", f"</{tag}>"
    return text.count(opened) == text.count(closed) and text.rfind(opened) <= text.rfind(closed)
