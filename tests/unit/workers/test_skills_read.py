"""How the worker of skills reads: for a task, for each turn, when it asks; how many, how long, and what it may not."""

from __future__ import annotations

import asyncio
import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.rollout.test_embedder import Embeddings, letters
from verl_hier.environments.base import Environment, StepResult
from verl_hier.host.manager import PluginHost
from verl_hier.host.options import build_options
from verl_hier.rollout import Limits, Request, Rollout
from verl_hier.rollout.recorded_policy import RecordedPolicy, differences
from verl_hier.rollout.roles import Roles
from verl_hier.rollout.transcript import EnvironmentCall, Transcript, TranscriptTurn
from verl_hier.testing import rollout as kit
from verl_hier.testing.rollout import CharacterTokenizer, SideBySide
from verl_hier_plugins.environments.search.bm25 import split_words
from verl_hier_plugins.workers.skills.choice import by_bm25, by_share, by_words
from verl_hier_plugins.workers.skills.options import SkillsOptions

WORKER: Any = PluginHost.load({"builtin": True}).spec("worker", "skills")
OPTIONS = {
    "select": "bm25", "explore": 0.0, "verify": False, "conclude": 0.0, "most": 2,
    "prompt": "{instruction}", "aided_prompt": "[{skill}] {instruction}", "query": "{observation}",
    "aided_observation_prompt": "[{skill}] {observation}", "found_prompt": "[{skill}]",
}  # fmt: skip
BRASS, IRON = "brass locks open to the left", "iron locks want oil"


class Door(Environment):
    """Shows a brass lock after the first action, and opens for `left`."""

    def reset(self, task, seed):
        self._seen = False
        return StepResult("a door", info={"won": False})

    def step(self, action):
        if not self._seen:
            self._seen = True
            return StepResult("a lock of brass", info={"won": False})
        won = action == "turn 7"
        return StepResult("open" if won else "shut", float(won), True, info={"won": won})


def play(
    options: dict[str, Any], skills: list[str], *texts: str, validate: bool = False, task: Any = None, n: int = 1
) -> Any:
    said, tokenizer = iter(texts), CharacterTokenizer()
    policy = kit.ScriptedPolicy(tokenizer, lambda prompt, sampling: next(said))
    made = build_options(WORKER, {**OPTIONS, **options})
    task = {"instruction": "open the door", **(task or {})}
    told = {"skills": skills} if skills else {}
    request = Request(task=task, identity={"uid": "u", "index": 0}, n=n, told=told, validate=validate)
    setup = kit._setup(policy, tokenizer, Door, 0, Limits(30, 300, 5000), None, None)
    rollout = Rollout(request, setup, lambda: WORKER.factory(made), Roles.of(WORKER, made))
    graph = asyncio.run(kit.roll_out(rollout, SideBySide()))
    graph.check()
    assert next(said, None) is None, "every text was spoken"
    again = kit._setup(RecordedPolicy(graph), tokenizer, Door, 0, Limits(30, 300, 5000), None, None)
    repeated = Rollout(Request.of(graph, task), again, lambda: WORKER.factory(made), Roles.of(WORKER, made))
    assert differences(graph, asyncio.run(kit.roll_out(repeated, SideBySide()))) == []
    return graph


def prompts(graph: Any) -> list[str]:
    return [node.messages[-1].content for node in graph.nodes]


def test_what_is_seen_on_the_way_is_looked_up_before_each_turn_alone():
    graph = play({"read": "turn"}, [IRON, BRASS], "look", "turn 7")
    assert prompts(graph) == ["open the door", f"[{BRASS}] a lock of brass"]
    assert [node.extra["skill_used"] for node in graph.nodes] == [0, 1]
    assert graph.nodes[1].extra["skill"] == BRASS and "skill" not in graph.nodes[0].extra
    graph = play({"read": "task"}, [IRON, BRASS], "look", "turn 7")
    assert prompts(graph) == ["open the door", "a lock of brass"], "the task says nothing of brass"


def test_what_was_read_is_not_read_again():
    graph = play({"read": "turn", "query": "brass iron", "most": 1}, [IRON, BRASS], "look", "turn 7")
    first, second = prompts(graph)
    shown = {first[1 : first.index("]")], second[1 : second.index("]")]}
    assert shown == {BRASS, IRON} and graph.nodes[1].extra["skill"].count("\n") == 1


def test_an_agent_that_asks_reads_what_it_asks_for():
    asked = "<search_skills>brass</search_skills>"
    graph = play({"read": "asked", "most": 1}, [IRON, BRASS], "look", asked, "turn 7")
    assert prompts(graph) == ["open the door", "a lock of brass", f"[{BRASS}]"]
    assert [node.extra["skill_used"] for node in graph.nodes] == [0, 0, 1] and graph.episodes[0].success
    assert prompts(play({"read": "asked"}, [], "look", asked, "turn 7"))[2] == "[]", "nothing is found in nothing"


def test_the_last_of_question_and_action_counts():
    options = {"read": "asked", "action_tag": "act", "most": 1}
    both, turned = "<act>turn 8</act><search_skills>brass</search_skills>", "<act>turn 7</act>"
    graph = play(options, [BRASS], turned, both, turned)
    assert prompts(graph)[2] == f"[{BRASS}]" and graph.episodes[0].success
    graph = play(options, [BRASS], turned, "<search_skills>brass</search_skills>" + turned)
    assert len(graph.nodes) == 2 and graph.episodes[0].success


def test_no_more_tokens_are_read_than_may_be():
    # A token is a character here.
    skills = ["brass one", "brass two", "brass three brass"]
    found = {
        most: prompts(play({"read": "turn", "most": 3, "most_tokens": most}, skills, "look", "turn 7"))[1]
        for most in (16, 17, 200)
    }
    assert found[16] == "a lock of brass", "not even the first one fits"
    assert found[17] == "[brass three brass] a lock of brass" and all(skill in found[200] for skill in skills)


def test_a_skill_that_tells_the_answer_of_the_task_is_not_shown():
    options = {"read": "turn", "most": 3}
    graph = play(options, [BRASS, "brass wants turn 7"], "look", "turn 7", task={"answer": "turn 7"})
    assert prompts(graph)[1] == f"[{BRASS}] a lock of brass"
    graph = play(options, [BRASS, "brass wants turn 7"], "look", "turn 7")
    assert "turn 7" in prompts(graph)[1], "where the task does not say it, nobody knows"


def test_who_may_not_read_is_shown_nothing():
    graph = play({"read": "turn", "readers": []}, [BRASS], "look", "turn 7")
    assert prompts(graph) == ["open the door", "a lock of brass"]
    options = {
        "readers": ["concluder"], "query": "brass", "conclude": 1.0, "conclude_prompt": "{solution} knows {skill}",
        "solution": "all",
    }  # fmt: skip
    graph = play(options, [BRASS], "look", "turn 7", "<skill>oil</skill>")
    assert prompts(graph)[2] == f"a door look a lock of brass turn 7 open knows {BRASS}"


@pytest.mark.parametrize(("end", "start"), [("turn 7", "conclude: "), ("turn 8", "avoid: ")])
def test_a_lost_task_leaves_what_to_avoid(end, start):
    options = {"conclude": 1.0, "conclude_from": "each"}
    graph = play(options, [], "look", end, "<skill>oil it first</skill>")
    assert prompts(graph)[2] == f"{start}open the door | look {end}"
    assert graph.nodes[2].extra["new_skill"] == "oil it first" and graph.nodes[2].extra["verified"] == -1
    assert len(play({"conclude": 1.0}, [], "look", "turn 8").nodes) == 2, "without it nothing is written"


def test_what_a_lost_task_leaves_may_not_tell_its_answer_either():
    options = {"conclude": 1.0, "conclude_from": "each"}
    graph = play(options, [], "look", "turn 8", "<skill>it was turn 7</skill>", task={"golden_answers": ["turn 7"]})
    assert graph.nodes[2].extra["failure"] == "no_skill"
    graph = play(options, [], "look", "turn 8", "<skill>do not say <search_skills>x</skill>")
    assert graph.nodes[2].extra["failure"] == "no_skill"


def test_an_evaluation_reads_and_neither_explores_nor_writes():
    options = {"read": "turn", "explore": 1.0, "conclude": 1.0, "most": 1}
    graph = play(options, [IRON, BRASS], "look", "turn 7", validate=True)
    assert prompts(graph) == ["open the door", f"[{BRASS}] a lock of brass"]


WORDS = st.lists(st.sampled_from(["brass", "iron", "oil", "the", "key", "left"]), min_size=0, max_size=6).map(" ".join)


@given(st.lists(WORDS, max_size=6), WORDS)
def test_bm25_ranks_as_its_formula_says(skills, query):
    """Robertson's formula with k1 = 1.5, b = 0.75 and log(1 + (N - n + 0.5) / (n + 0.5)), written out."""
    texts = [(number, words) for number, words in enumerate(split_words(skills)) if words] if skills else []
    length = sum(len(words) for _, words in texts) / max(len(texts), 1)
    asked, scores = split_words([query])[0], {}
    for number, words in texts:
        scores[number] = sum(
            math.log(1 + (len(texts) - held + 0.5) / (held + 0.5))
            * words.count(word)
            / (words.count(word) + 1.5 * (0.25 + 0.75 * len(words) / length))
            for word in asked
            if (held := sum(word in other for _, other in texts))
        )
    found = by_bm25(query, skills)
    assert set(found) == {number for number, score in scores.items() if score > 0}
    assert all(scores[a] >= scores[b] - 1e-5 for a, b in pairwise(found))


def test_those_below_the_gate_are_left_out():
    assert by_share([0.2, 0.5, 0.3], 0.3) == [1, 2] and by_share([], 0.0) == []
    assert by_words("a b", ["c", "a c", "b a"], 0.3) == [2, 1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"read": "turn"}, "likelihood judges skills by the task"),
        ({"readers": ("concluder",)}, "likelihood judges skills by the task"),
        ({"search_tag": "answer"}, "search_tag and answer_tag must differ"),
    ],
)
def test_what_does_not_go_together_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        SkillsOptions(**options)


def test_without_its_package_bm25_is_refused(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "bm25s", None)
    with pytest.raises(ValueError, match="pip install"):
        SkillsOptions(select="bm25")
    assert SkillsOptions(select="words").levels() == {"solver": 0, "concluder": 1, "verifier": 1}
    assert SkillsOptions(verify=False).levels() == {"solver": 0, "concluder": 1}


def test_a_cold_start_shows_how_to_ask():
    calls = [EnvironmentCall("look", StepResult("brass")), EnvironmentCall("turn 7", StepResult("", 1.0, True))]
    episode = Transcript("open the door", None, tuple(TranscriptTurn(None, "", (call,)) for call in calls))
    options = SkillsOptions(read="asked", select="bm25", verify=False, action_tag="act", search_tag="ask")
    assert WORKER.transcribe(options, episode) == [
        *("<ask>open the door</ask>", "<act>look</act>", "<act>turn 7</act>", "<skill>look turn</skill>")
    ]


def test_embeddings_of_an_endpoint_choose_and_are_asked_for_once():
    with Embeddings(letters) as endpoint:
        options = {"read": "turn", "select": "embeddings", "endpoint": endpoint.url, "endpoint_model": "m", "gate": 0.9}
        graph = play({**options, "most": 1, "query": "{observation}"}, ["caab", "bbb"], "look", "turn 7")
        asked = [request["input"] for request in endpoint.requests]
    # "a lock of brass" has two a, one b and one c; the replay in `play` has asked nothing.
    assert prompts(graph)[1] == "[caab] a lock of brass" and sorted(asked) == [
        "a door",
        "a lock of brass",
        "bbb",
        "caab",
    ]
    assert len(graph.request["likelihoods"]) == 4
    for wrong in ({"select": "embeddings"}, {"select": "words", "endpoint": "http://x"}):
        with pytest.raises(ValueError, match="go together"):
            SkillsOptions(**wrong)
