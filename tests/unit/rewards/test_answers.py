"""Rewards of answers against a slow reading of their definitions."""

from __future__ import annotations

import re
import string
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_hier.environments import scoring
from verl_hier.rewards.answers import answer_and_tools, exact_match, f1, found
from verl_hier.rollout.rewards import RatedEpisode, RatedTurn

TASK = {"instruction": "where?", "answers": ["Bay of the Lake", "pond"]}


def turn(text: str, role: str = "agent", agent: str = "", valid: bool = True, **task) -> RatedTurn:
    return RatedTurn(TASK | task, role, agent or role, int(role == "executor"), 0, (), text, valid, 0.0, {})


def episode(*turns: RatedTurn) -> RatedEpisode:
    return RatedEpisode(turns[-1].task, turns, 0.0, None, False)


def slow_f1(answer: str, truth: str) -> float:
    """Words of both are paired off one by one."""

    def words(text: str) -> list[str]:
        plain = "".join(sign for sign in text.lower() if sign not in string.punctuation)
        return [word for word in re.split(r"\s+", re.sub(r"\b(a|an|the)\b", " ", plain)) if word]

    said, left = words(answer), words(truth)
    if said == left:
        return float(bool(said))
    closed = ("yes", "no", "noanswer")
    if " ".join(said) in closed or " ".join(left) in closed:
        return 0.0
    total, common = len(said) + len(left), 0
    for word in said:
        if word in left:
            left.remove(word)
            common += 1
    precision_and_recall = 2 * common / total if total else 0.0
    return precision_and_recall


WORDS = st.lists(st.sampled_from(["the", "a", "Lake", "lake!", "bay", "yes", "no", "of", "of.", ""]), max_size=6).map(
    " ".join
)


@given(WORDS, st.lists(WORDS, min_size=1, max_size=3))
def test_f1_is_that_of_words_paired_off_one_by_one(answer: str, truths: list[str]) -> None:
    expected = max(slow_f1(answer, truth) for truth in truths)
    assert scoring.f1(answer, truths) == pytest.approx(expected)
    rated = turn(f"<answer>{answer}</answer>", answers=truths)
    assert f1(rated) == pytest.approx(expected)
    assert exact_match(rated) == max(
        bool(scoring.normalise(answer)) and scoring.normalise(answer) == scoring.normalise(truth) for truth in truths
    )


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("<think>so</think> <answer>the lake bay</answer>", 0.8),
        ("answer the lake bay", 0.8),
        ("<answer>hill</answer> no, <answer>pond</answer>", 1.0),
        ("I would answer pond", -1.0),
        ("<answer>pond", -1.0),
        ("<search>pond</search>", -1.0),
        ("<answer></answer>", 0.0),
    ],
)
def test_the_last_answer_of_the_last_turn_counts(text: str, share: float) -> None:
    assert f1(turn(text), missing=-1.0) == pytest.approx(share)
    assert f1(episode(turn("<answer>pond</answer>"), turn(text)), missing=-1.0) == pytest.approx(share)
    assert f1(turn(text), missing=-1.0, offset=-0.5) == pytest.approx(share - 0.5)


def test_the_true_answer_may_be_one_text_in_a_field_of_another_name() -> None:
    rated = turn("<answer>42</answer>", answer="42")
    assert f1(rated, truths="answer") == exact_match(rated, truths="answer") == 1.0
    with pytest.raises(ValueError, match="no field 'solution'; name the one"):
        f1(rated, truths="solution")


def test_a_true_answer_is_found_in_the_notes_of_the_roles_that_count() -> None:
    noted = episode(
        turn("pond", "planner"),
        turn("<refine>it is the Pond, they say</refine>", "executor"),
        turn("<answer>hill</answer>", "planner"),
    )
    assert found(noted) == found(noted, roles=["executor"]) == 1.0
    assert found(noted, roles=["planner"]) == 0.0
    assert found(noted, pattern=".+", roles=["planner"]) == 1.0
    assert found(episode(turn("pond"), turn("<refine>hill</refine>"))) == 0.0


TEAM = {"planner": ["<local>", "<web>"], "local": ["search"]}


def by_definition(
    score: float, sound: bool, used: int, tools: int, invalid: float, wrong: float, right: float
) -> float:
    if not sound:
        return invalid
    if score > 0:
        return score + right if used == tools else score
    return wrong * used / tools


@pytest.mark.parametrize(
    ("said", "used", "valid", "kind"),
    list(product(["pond", "lake", "hill", None], [0, 1, 2], [True, False], [(0.0, 0.1, 0.0), (-1.0, 0.0, 0.1)])),
)
def test_answer_and_tools_by_definition(said: str | None, used: int, valid: bool, kind: tuple[float, ...]) -> None:
    invalid, wrong, right = kind
    planner = [turn(f"{tag}ask</>", "planner", valid=valid) for tag in TEAM["planner"][:used]]
    others = [turn("<local> <web> search", "executor", "local", valid=False)]
    last = turn("<think>" if said is None else f"<answer>{said}</answer>", "planner", valid=valid)
    reward = answer_and_tools(episode(*planner, *others, last), tools=TEAM, invalid=invalid, wrong=wrong, right=right)
    score = 0.0 if said is None else max(slow_f1(said, truth) for truth in TASK["answers"])
    sound = said is not None and valid
    assert reward == pytest.approx(by_definition(score, sound, used, 2, invalid, wrong, right))


def test_another_agent_has_other_tools_and_a_list_is_everybodys() -> None:
    alone = episode(turn("search pond", "executor", "local"), turn("<answer>hill</answer>", "executor", "local"))
    assert answer_and_tools(alone, tools=TEAM, wrong=0.1) == 0.1
    assert answer_and_tools(alone, tools=["search", "web"], wrong=0.1) == 0.05
    assert answer_and_tools(alone, tools={"planner": ["x"]}, wrong=0.1) == 0.1, "nothing was left unused"


def test_an_agents_report_is_not_the_answer_of_its_planner() -> None:
    """An episode that a limit ends while an agent works has no answer, however good the agent's last words are."""
    cut = episode(turn("<local>ask</local>", "planner"), turn("<answer>pond</answer>", "executor", "local"))
    assert answer_and_tools(cut, tools=TEAM, invalid=-1.0) == -1.0
