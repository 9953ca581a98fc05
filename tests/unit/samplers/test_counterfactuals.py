"""Episodes that only measure: other messages in the same place, and the same task without some of the roles."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from verl_hier.environments.base import Environment, StepResult
from verl_hier.errors import RecipeError
from verl_hier.graph import build_table, graph_rows
from verl_hier.host.manager import PluginHost
from verl_hier.host.options import build_options
from verl_hier.recipe.check import check_recipe
from verl_hier.recipe.compose import compose
from verl_hier.rollout import Limits
from verl_hier.testing.builtin import credit_of, full_credit
from verl_hier.testing.rollout import CharacterTokenizer, roll_out_scripted
from verl_hier_plugins.samplers.ccpo import hier_graph_finished as solos_again
from verl_hier_plugins.samplers.sharp import hier_graph_finished as masked_again

HOST = PluginHost.load({"builtin": True})
TEAM: Any = HOST.spec("worker", "team")
PAIR = {
    "roles": {
        "thinker": {"prompt": "think {instruction}"},
        "solver": {"prompt": "solve {said}", "action": "{content}", "level": 1},
    },
}
LIMITS = Limits(40, 100, 5000)


class Till(Environment):
    """Pays the number that an action ends with, and is over after `end NUMBER`."""

    def reset(self, task, seed):
        return StepResult("a till")

    def step(self, action):
        words = action.split()
        return StepResult("paid", float(words[-1]), words[0] == "end")


def play(sampler: str, options: dict[str, Any], worker: dict[str, Any], answer: Any, n: int) -> Any:
    """The graph and the prompts, as text, of one task."""
    spec = HOST.spec("sampler", sampler)
    tokenizer = CharacterTokenizer()
    graph, policy = asyncio.run(
        roll_out_scripted(
            worker=TEAM,
            options=build_options(TEAM, worker),
            answer=answer,
            environment=Till,
            sampler=spec.factory(build_options(spec, options)),
            n=n,
            tokenizer=tokenizer,
            limits=LIMITS,
        )
    )
    return graph, [tokenizer.decode(prompt) for prompt in policy.prompts]


def in_order(texts: list[str]) -> Any:
    said = iter(texts)
    return lambda prompt, sampling: next(said)


def trained_nodes(graph: Any) -> set[int]:
    rows = graph_rows(graph, lambda node: True)
    return {turn for row in rows for turn, mask in zip(row.turn_index, row.mask, strict=True) if mask}


CASES = json.loads((Path(__file__).parents[2] / "conformance" / "cases" / "c3.json").read_text())["cases"]


@pytest.mark.parametrize("number", [0, 3, 6])
def test_recorded_messages_of_c3_by_the_whole_way(number):
    """Sampler, worker, turn table, estimator; cases with two roles and no critic."""
    given, expected = CASES[number]["input"], CASES[number]["output"]
    first, second = given["fanout"]
    for question in sorted(set(given["question"])):
        mine = [row for row, name in enumerate(given["question"]) if name == question]
        roots = [row for row in mine if given["parent"][row] < 0]
        leaves = {root: [r for r in mine if given["parent"][r] == given["node"][root]] for root in roots}
        # The paths that wait speak first, then the forks behind each of them.
        order = [leaves[root][0] for root in roots] + [row for root in roots for row in leaves[root][1:]]
        texts = ["a thought"] * first + [f"end {given['leaf_reward'][row]}" for row in order]
        graph, _ = play("c3", {"fanout": [first, second]}, PAIR, in_order(texts), first * second)
        table = build_table([graph])
        rows = [roots[0]] * 0
        for episode in graph.episodes:
            rows += [roots[episode.id], order[episode.id]] if episode.id < first else [order[episode.id]]
        options = {"variant": given["variant"], "baseline": given["baseline"]}
        found = credit_of("c3", table, **options, replay=not given["no_replay"], standardise=False)
        assert table["return"] == pytest.approx(np.asarray(expected["subtree_reward"])[rows], abs=1e-5)
        assert found == pytest.approx(np.asarray(expected["advantage"])[rows], rel=2e-4, abs=2e-5)


def test_what_follows_the_last_alternatives_only_measures():
    roles = {**PAIR["roles"], "judge": {"prompt": "judge {said}", "action": "end {content}", "level": 2}}
    roles["solver"] = {"prompt": "solve {said}", "level": 1}
    draws = random.Random(3)

    def answer(prompt, sampling):
        return str(draws.randrange(10)) if prompt.startswith("judge") else "word"

    graph, prompts = play("c3", {"fanout": [2, 2], "replays": 3}, {"roles": roles}, answer, 4)
    complete = list(graph.complete())
    assert sum(episode.trained for episode in complete) == 4 and sum(episode.withheld for episode in complete) == 8
    assert {graph.nodes[n].role for n in trained_nodes(graph)} == {"thinker", "solver"}
    table = build_table([graph])
    for episode in (episode for episode in complete if episode.trained):
        solver = graph.path(episode.id)[1]
        below = [e.ret for e in complete if solver in graph.path(e.id)]
        assert len(below) == 3
        assert table["return"][solver] == pytest.approx(np.mean(below))
    assert not credit_of("c3", table)[np.asarray(table["role"]) == table.code("role", "judge")].any()
    assert len(prompts) == 2 + 4 + 12


def test_a_message_with_several_turns_is_one_message():
    roles = {"thinker": {}, "solver": {"action": "{content}", "turns": 3, "level": 1}}
    texts = ["t", "t", *["pay 0"] * 4, "end 1", "end 0", "end 0", "end 0"]
    graph, _ = play("c3", {"fanout": [2, 2]}, {"roles": roles}, in_order(texts), 4)
    table = build_table([graph])
    found = credit_of("c3", table, standardise=False)
    first, second = graph.path(0)[1:]
    assert found[first] == found[second] == pytest.approx(1.0)
    assert found[graph.path(0)[0]] == pytest.approx(0.5)


def answer_with_thought(prompt, sampling):
    """The solver is right where it has a thought."""
    if prompt.startswith("think"):
        return "a thought"
    return "end 1" if "thought" in prompt else "end 0"


def test_solo_episodes_are_without_the_thinker_and_without_training():
    graph, prompts = play("ccpo", {}, PAIR, answer_with_thought, 3)
    joint, solo = graph.episodes[:3], graph.episodes[3:]
    assert [episode.ret for episode in joint] == [1.0] * 3 and [episode.ret for episode in solo] == [0.0] * 3
    assert all(graph.nodes[n].role == "solver" for e in solo for n in graph.path(e.id))
    assert prompts.count("solve <act>") == 3 or sum("thought" not in p for p in prompts if "solve" in p) == 3
    assert trained_nodes(graph) == {n for e in joint for n in graph.path(e.id)}
    assert {graph.nodes[n].extra["solo_return"] for e in joint for n in graph.path(e.id)} == {0.0}
    assert graph.counts["solo_episodes"] == 3
    table = build_table([graph])
    from verl_hier_plugins.estimators.ccpo import CCPOOptions, rewards

    mine = np.asarray(table["trained"], bool)
    by_role = rewards(table, CCPOOptions())[mine].reshape(-1, 2)
    assert by_role.tolist() == [[1.2, 1.0]] * 3


def test_solo_returns_have_the_rewards_that_come_later():
    graph, _ = play("ccpo", {}, PAIR, answer_with_thought, 2)
    graph.episodes[2].ret = 0.25
    solos_again(graph=graph, validate=False)
    assert [graph.nodes[graph.path(e)[0]].extra["solo_return"] for e in (0, 1)] == [0.25, 0.0]


def test_masked_messages_are_read_as_a_placeholder():
    graph, prompts = play("sharp", {"placeholder": "(silent)"}, PAIR, answer_with_thought, 2)
    masked = [episode for episode in graph.episodes if "masked" in episode.decision]
    assert [(e.source, e.decision["masked"]) for e in masked] == [
        (0, "thinker"), (0, "solver"), (1, "thinker"), (1, "solver"),
    ]  # fmt: skip
    assert sum("thinker: (silent)" in prompt for prompt in prompts) == 2
    assert [e.status for e in masked] == ["finished", "pruned", "finished", "pruned"]
    # Without the thought the solver is wrong, and without the solver nobody answers.
    for episode in graph.episodes[:2]:
        assert [graph.nodes[n].extra["masked_return"] for n in graph.path(episode.id)] == [0.0, 0.0]
    table = build_table([graph])
    assert full_credit("sharp", table).values.shape == (len(table),)
    masked[0].ret = 0.5
    masked_again(graph=graph, validate=False)
    assert graph.nodes[graph.path(0)[0]].extra["masked_return"] == 0.5


STEPS = {
    "roles": {"left": {"sees": []}, "right": {"sees": [], "action": "pay {content}", "level": 1}},
    "topology": {"each": "step"},
}


def test_joint_actions_completion_by_completion():
    graph, _ = play("magrpo", {"steps": 2}, STEPS, lambda prompt, sampling: str(sampling.seed % 5), 2)
    assert len([e for e in graph.complete() if e.trained]) == 4
    table = build_table([graph])
    credit = credit_of("magrpo", table)
    steps = np.asarray(table["segment"])
    assert credit[steps > 1].tolist() == [0.0] * int((steps > 1).sum())
    for episode in graph.complete():
        left, right = graph.path(episode.id)[:2]
        assert credit[left] == credit[right]
        assert graph.nodes[left].extra["completion"] == graph.nodes[right].extra["completion"]


def test_crossed_completions_are_drawn_once_and_trained_once():
    draws = random.Random(0)
    graph, _ = play(
        "magrpo", {"joint": "cross", "steps": 1}, STEPS, lambda prompt, sampling: str(draws.randrange(100)), 3
    )
    first = [graph.nodes[n] for n in {graph.path(e.id)[1] for e in graph.complete()}]
    assert len(first) == 9 and len({node.text for node in first}) <= 3
    assert sum(node.trained for node in first) == 3
    table = build_table([graph])
    credit = credit_of("magrpo", table, discount=0.0)
    for node in (node for node in first if node.trained):
        same = [other.reward for other in first if other.extra["completion"] == node.extra["completion"]]
        all_ = [other.reward for other in first]
        assert credit[node.id] == pytest.approx(sum(same) - sum(all_) / 3)


def test_crossed_agents_must_not_read_each_other():
    worker = {"roles": {"left": {}, "right": {"action": "pay {content}", "level": 1}}, "topology": {"each": "step"}}
    with pytest.raises(
        RecipeError, match=r"^hier.sampler.joint: cross repeats what the role 'right' said .* `sees: \[\]`"
    ):
        play("magrpo", {"joint": "cross", "steps": 1}, worker, lambda p, s: str(s.seed % 7), 2)


def test_a_search_chooses_what_is_refined_and_by_whom():
    """A role whose solutions earn nothing is asked less often, and each solution has one of the chosen roles."""
    roles = {"good": {"action": "pay 0.9", "prompt": "good"}, "bad": {"action": "pay 0.0", "prompt": "bad", "level": 1}}
    worker = {"roles": roles, "topology": {"each": "step"}}
    graph, _ = play("mars2", {"roles": ["good", "bad"]}, worker, lambda prompt, sampling: "x", 16)
    assert len(graph.nodes) == 16
    said = [node.role for node in graph.nodes]
    assert said.count("good") > said.count("bad") > 0
    leaves = {episode.leaf for episode in graph.complete()}
    inner = {node.parent for node in graph.nodes}
    assert not leaves & inner and len((leaves | inner) - {-1}) == 16, "every solution is a leaf or is refined"
    for episode in graph.complete():
        path = [graph.nodes[n] for n in graph.path(episode.id)]
        assert [node.role for node in path] == episode.decision["speakers"]
        assert [node.segment for node in path] == list(range(len(path)))
    assert np.isfinite(credit_of("mars2", build_table([graph]))).all()
    with pytest.raises(RecipeError, match=r"hier.sampler.roles: there is no role 'god' .did you mean 'good'"):
        play("mars2", {"roles": ["god"]}, worker, lambda prompt, sampling: "x", 2)


@pytest.mark.parametrize(("slot_by", "goes_on"), [("first", 0), ("last", 1)])
def test_slots_play_all_agents_of_a_step(slot_by, goes_on):
    """AT-GRPO as released: agents of a slot share what it earns, and a badly formed answer costs its agent alone."""
    role = {"action": "pay 0{content}", "action_tag": "a", "format_penalty": 0.5}
    worker = {"roles": {"first": role, "second": {**role, "level": 1}}, "topology": {"each": "step"}}
    texts = ["<a>4</a>", "5", "1", "<a>0</a>", *["<a>2</a>"] * 200]
    graph, _ = play("best_of_turn", {"candidates": "slot", "slot_by": slot_by}, worker, in_order(texts), 2)
    step = [node for node in graph.nodes if node.segment == 0]
    assert [(node.text, node.extra["candidate_reward"]) for node in step] == [
        ("<a>4</a>", 4.0), ("1", 3.5), ("5", -0.5), ("<a>0</a>", 0.0),
    ]  # fmt: skip
    later = [node for node in graph.nodes if node.segment == 1 and node.role == "first"]
    assert len(later) == 2 and {node.parent for node in later} == {1}, "the slot that earned more"
    graph, _ = play("best_of_turn", {"candidates": "slot", "slot_by": slot_by, "alpha": 0}, worker, in_order(texts), 2)
    later = [node for node in graph.nodes if node.segment == 1 and node.role == "first"]
    assert {graph.nodes[node.parent].text for node in later} == {step[2 * goes_on + 1].text}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["hier.sampler.without=[thinkr]"], "leaves out the role 'thinkr' .did you mean 'thinker'.*, which the worker"),
        (["hier.worker={name: react}", "hier.schedule={name: joint}"], "sampler 'ccpo' plays episodes without some of"),
        (["actor_rollout_ref.rollout.n=1"], "the ccpo sampler compares n episodes, so n >= 2"),
    ],
)
def test_what_does_not_fit_is_refused(changes, sentence):
    with pytest.raises(RecipeError, match=sentence):
        check_recipe(compose("ccpo_math", ["size=cpu", *changes]))


def test_a_tree_of_messages_has_as_many_leaves_as_n():
    with pytest.raises(RecipeError, match=r"hier.sampler.fanout \[2, 4\] of the c3 sampler makes 8 leaves"):
        check_recipe(compose("c3_python_tool", ["size=cpu", "actor_rollout_ref.rollout.n=6"]))


def test_a_critic_that_is_missing_is_named():
    from verl_hier.errors import CreditError

    graph, _ = play("ccpo", {}, PAIR, answer_with_thought, 2)
    with pytest.raises(CreditError, match=r"value_last.*critic.enable: true and hier.value_heads"):
        credit_of("c3", build_table([graph]), variant="value_only")
