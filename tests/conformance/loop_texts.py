"""Texts of a policy, read and rewarded by what a composed recipe names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tests.conformance.layout import Case
from verl_hier.environments.base import Environment, StepResult
from verl_hier.graph import RolloutGraph
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.rollout import Limits, Sampler, Sampling
from verl_hier.rollout.rewards import rate
from verl_hier.testing.rollout import CharacterTokenizer, roll_out_scripted

ROOMY = Limits(max_turns=60, max_tokens_per_turn=4000, context_tokens=200_000)
_END = "\x00"
"""The one character of the last token of a turn, which ends it."""


class Closing(CharacterTokenizer):
    """Characters; the token that ends a turn is none of its text."""

    def __init__(self) -> None:
        super().__init__()
        self.encode("\x01" + _END)

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
        """Text of ids."""
        return super().decode(token_ids, skip_special_tokens).replace(_END, "")


class Heard(Environment):
    """An environment whose answers are those of another one, for a fixed number of actions; it notes them.

    Released rewards judge texts of any form, such as a search behind an answer, so the episode goes on until all turns
    of the case are played.
    """

    def __init__(
        self, inner: Environment | None, turns: int, won: bool = False, admissible: Sequence[str] = ()
    ) -> None:
        self.actions: list[str] = []
        self._inner = inner
        self._left = turns
        self._won = won
        self._admissible = tuple(admissible)

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """Start."""
        first = StepResult("start") if self._inner is None else self._inner.reset(task, seed)
        return replace(first, admissible=self._admissible or first.admissible)

    def step(self, action: str) -> StepResult:
        """Note the action."""
        self.actions.append(action)
        self._left -= 1
        over = self._left <= 0
        if self._inner is not None:
            return replace(self._inner.step(action), done=over, truncated=False)
        valid = action in self._admissible if self._admissible else True
        info = {"won": over and self._won}
        return StepResult("seen", done=over, valid=valid, admissible=self._admissible, info=info)


def play(
    recipe: ComposedRecipe,
    texts: Sequence[str],
    environment: Heard,
    task: Mapping[str, Any] | None = None,
    *,
    answer: Callable[[str, Sampling], str] | None = None,
    sampler: Sampler | None = None,
    n: int = 1,
) -> tuple[RolloutGraph, list[str]]:
    """Play the worker of a recipe with these turns, and rate the episodes by its rewards.

    Returns:
        the graph, and the prompts that the policy was given.
    """
    said = iter(texts)
    worker = recipe.parts.worker
    whole = dict(task or {"instruction": "x"})
    graph, policy = asyncio.run(
        roll_out_scripted(
            worker=worker.spec,
            options=worker.options,
            answer=answer or (lambda prompt, sampling: next(said, "")),
            environment=lambda: environment,
            task=whole,
            n=n,
            limits=ROOMY,
            sampler=sampler,
            tokenizer=Closing(),
        )
    )
    asyncio.run(rate(graph, whole, recipe.rewards))
    return graph, [policy.tokenizer.decode(prompt) for prompt in policy.prompts]


def question(recipe: ComposedRecipe, truth: str) -> tuple[Environment, Mapping[str, Any]]:
    """The search environment of a recipe, and a question of it whose true answer is another one."""
    spec, options = recipe.parts.environment.spec, recipe.parts.environment.options
    task = next(iter(spec.tasks(options, "train")))
    return spec.factory(options), {**task, "answers": [truth]}


def reward(recipe: ComposedRecipe, case: Case) -> float:
    """The return of an episode of these turns, rewards of the environment, the worker and the recipe together."""
    turns = case["turns"] if "turns" in case else [case["text"]]
    environment, task = question(recipe, case["truth"])
    graph, _ = play(recipe, turns, Heard(environment, len(turns)), task)
    return float(graph.episodes[0].ret)


def action_and_format(recipe: ComposedRecipe, case: Case) -> Mapping[str, Any]:
    """The action that reaches the environment, and whether the format of the turn counts as right."""
    world = Heard(None, 1)
    graph, _ = play(recipe, [case["text"]], world)
    return {"action": world.actions[0], "format": int(graph.nodes[0].extra["format"])}


def switch_and_keep(recipe: ComposedRecipe, case: Case) -> Mapping[str, Any]:
    """The reading of a second turn: action, format, whether it starts a segment, and which characters its tags have."""
    first = "<switch>SWITCH</switch><subgoal>first</subgoal><action>look</action>"
    world = Heard(None, 2)
    graph, _ = play(recipe, [first, case["text"]], world)
    before, turn = graph.nodes
    marks = {}
    for name in ("action", "subgoal", "switch"):
        chars = np.zeros(len(case["text"]), int)
        for start, stop in turn.masks.get(name, ()):
            chars[start:stop] = 1
        marks[f"{name}_chars"] = chars.tolist()
    return {
        "action": world.actions[1],
        "format": int(turn.extra["format"]),
        "starts_segment": turn.segment != before.segment,
        **marks,
    }


def tagged_steps(recipe: ComposedRecipe, case: Case) -> list[list[float]]:
    """Kind of each turn (-1 also for one that monitors), its reward by the rules, and whether its format is right."""
    from verl_hier_plugins.workers.rlvmr import MONITORING

    world = Heard(None, len(case["turns"]), case["won"], case["admissible"])
    graph, _ = play(recipe, case["turns"], world)
    found = []
    for node in graph.nodes:
        tag = int(node.extra["tag"])
        found.append([-1 if tag == MONITORING else tag, float(node.extra["tag_reward"]), int(node.extra["format"])])
    return found


def delegation_terms(recipe: ComposedRecipe, case: Case) -> Mapping[str, float]:
    """The terms of the reward of a planner and its executors."""
    environment, task = question(recipe, case.get("truth", "Paris"))
    texts = [text for _, text in case["turns"]]
    graph, _ = play(recipe, texts, Heard(environment, len(texts) + 1), task)
    info = graph.episodes[0].reward_info
    terms = {name: recipe.rewards[name].weight * info[name] for name in ("notes", "answer")}
    total = float(graph.episodes[0].ret)
    return {"format": total - sum(terms.values()), **terms, "total": total}


def what_agents_read(recipe: ComposedRecipe, case: Case) -> Mapping[str, list[list[str]]]:
    """Which responses each agent of a team has read in the second turn, in each slot."""
    order = list(recipe.parts.worker.options.order.names)
    names = dict(zip(order, case["input"]["order"], strict=True))
    slots, state = case["input"]["slots"], case["input"]["state_before_the_turn"]
    said: list[str] = []

    def answer(prompt: str, sampling: Sampling) -> str:
        number, place = divmod(len(said), len(order) * slots)
        said.append(f"[{state[place % len(state)]}]" if number == 0 else f"[new {len(said)}]")
        return said[-1]

    sampler = recipe.parts.sampler.spec.factory(recipe.parts.sampler.options)
    graph, _ = play(recipe, (), Heard(None, 2 * len(order)), answer=answer, sampler=sampler, n=slots)
    reads: dict[str, list[list[str]]] = {f"{name}_reads": [] for name in names.values()}
    for node in graph.nodes:
        if node.segment == 1:
            text = "".join(message.content for message in node.messages)
            known = [each for each in [*state, *(text[1:-1] for text in said)] if f"[{each}]" in text]
            reads[f"{names[node.role]}_reads"].append(list(dict.fromkeys(known)))
    return reads
