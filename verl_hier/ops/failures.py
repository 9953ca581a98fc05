"""Who lost an attempt, by what would have become of it: the attempt is played again with one turn said otherwise.

A correction is what another attempt, which was won, said at an equal place. The first turn of which a correction wins,
with all other turns as they are recorded, has lost the attempt; that is how Who&When has it
(https://arxiv.org/abs/2505.00212). Where no single turn does, it is the last one from which the attempt is still won as
another one went on. No model is asked: all words are from the record, and the world answers.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from verl_hier.coldstart.distill import PreparedTurns
from verl_hier.coldstart.episodes import LocalEnvironment
from verl_hier.coldstart.expert_policy import ExpertPolicy, Noise, is_hierarchical
from verl_hier.credit.blame import Blame, by_the_others, place_of
from verl_hier.errors import GraphError, RecipeError
from verl_hier.graph import RolloutGraph
from verl_hier.graph.choices import Turn, good_attempts, on_path, turns_of
from verl_hier.ops.exchange.who_when import Fields, accuracy, case, history
from verl_hier.ops.players import LocalPlayer
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.rollout import Policy, Request, Sampler
from verl_hier.served.policy import Messages

MISTAKEN = Noise(random_action=0.15, skip_stage=0.25)
"""How far the attempts beside a planted error are from the expert."""
PATIENCE = 40
"""Attempts at planting an error in one successful attempt, and tasks for a case, before it is given up."""


class Recorded:
    """Plays the tasks of a recipe by texts that are told beforehand, or as the expert with mistakes."""

    def __init__(self, recipe: ComposedRecipe) -> None:
        if recipe.parts.environment.spec.tasks is None:
            raise RecipeError(
                "hier.environment.name: its tasks come from verl's data set, so no stored attempt can be played again."
            )
        self._recipe = recipe
        self._texts: Sequence[str] | None = None
        self._noise, self._dice = Noise(0.0, skip_stage=0.0), random.Random(0)
        self._player = LocalPlayer("the record", recipe, self._make)
        self._tasks: dict[str, list[dict[str, Any]]] = {}

    async def _make(self, environment: LocalEnvironment, messages: Messages, request: Request) -> Policy:
        if self._texts is not None:
            return PreparedTurns(self._texts, messages.turn)
        worker = self._recipe.parts.worker
        hierarchical = is_hierarchical(worker)
        return ExpertPolicy(environment, messages.turn, self._noise, self._dice, hierarchical, worker.options, True)

    def tasks(self, split: str) -> list[dict[str, Any]]:
        """The tasks of a split."""
        part = self._recipe.parts.environment
        if split not in self._tasks:
            self._tasks[split] = part.spec.tasks(part.options, split)
        return self._tasks[split]

    def request(self, number: int, split: str = "train", step: int = 0) -> Request:
        """The request of one attempt at a task."""
        task = self.tasks(split)[number]
        identity = {"uid": str(number), "index": number, "instruction": str(task.get("instruction", ""))}
        return Request(task=task, identity=identity, n=1, step=step)

    def request_of(self, graph: RolloutGraph) -> Request:
        """The request of one attempt at the task of a stored rollout.

        Raises:
            GraphError: where the recipe has no such task.
        """
        tasks, number = self.tasks("val" if graph.request.get("validate") else "train"), graph.task.get("index")
        if number is None or number >= len(tasks):
            raise GraphError(f"the recipe has no task {number}, of which a rollout is stored; give that of the run.")
        return replace(Request.of(graph, tasks[number]), n=1)

    async def say(self, request: Request, texts: Sequence[str]) -> RolloutGraph:
        """An attempt whose agents say these texts in turn, and then nothing."""
        self._texts = texts
        return await self._player.play(request, self._alone())

    async def attempt(self, request: Request, noise: Noise, dice: random.Random) -> RolloutGraph:
        """An attempt of the expert, with mistakes."""
        self._texts, self._noise, self._dice = None, noise, dice
        return await self._player.play(request, self._alone())

    def _alone(self) -> Sampler:
        """One attempt by itself, whatever the sampler of the recipe is."""
        independent = self._recipe.host.spec("sampler", "independent")
        return independent.factory(independent.options())

    async def close(self) -> None:
        """Release the environment."""
        await self._player.close()


def together(graphs: Sequence[RolloutGraph]) -> RolloutGraph:
    """The attempts of several graphs of one task in one graph."""
    whole = RolloutGraph(task=dict(graphs[0].task), step=graphs[0].step, request=dict(graphs[0].request))
    for graph in graphs:
        nodes, episodes = len(whole.nodes), len(whole.episodes)

        def moved(number: int, by: int = nodes) -> int:
            return number + by if number >= 0 else number

        for node in graph.nodes:
            told = [replace(each, sources=[moved(source) for source in each.sources]) for each in node.messages]
            links: dict[str, Any] = {name: moved(getattr(node, name)) for name in ("parent", "context", "plan")}
            whole.nodes.append(
                replace(node, id=node.id + nodes, episode=node.episode + episodes, messages=told, **links)
            )
        for record in graph.episodes:
            source = record.source + episodes if record.source >= 0 else -1
            whole.episodes.append(
                replace(
                    record, id=record.id + episodes, source=source, tree=record.tree + episodes, leaf=moved(record.leaf)
                )
            )
    whole.check()
    return whole


async def by_replay(
    graph: RolloutGraph, player: Recorded, request: Request, episodes: Sequence[int] | None = None
) -> list[Blame]:
    """For each lost attempt the first turn with a correction that wins; see the module.

    Args:
        graph: the attempts at a task.
        player: plays it.
        request: of one attempt at the task.
        episodes: the lost attempts; None for all of them.
    """
    turns, good = turns_of(graph), good_attempts(graph)
    paths = {episode.id: on_path(graph, episode.id, turns) for episode in graph.complete()}
    least = min((graph.episodes[number].ret for number in good), default=0.0)
    found = []
    for blame in by_the_others(graph):
        if episodes is not None and blame.episode not in episodes:
            continue
        path, winners = paths[blame.episode], [paths[number] for number in sorted(good)]
        place = -1
        if not _wins(await player.say(request, [turn.text for turn in path]), least):  # else the record holds no more
            singly, onward = corrections(graph, path, winners)
            # The first turn that alone would have been enough; else the last one from which there was a way.
            for at, texts in [*singly, *onward[::-1]]:
                if _wins(await player.say(request, texts), least):
                    place = at
                    break
        node = blame.turns[place] if place >= 0 else -1
        found.append(Blame(blame.episode, node, float(node >= 0), (), blame.turns))
    return found


Said = tuple[int, tuple[str, ...]]


def corrections(
    graph: RolloutGraph, path: Sequence[Turn], winners: Sequence[Sequence[Turn]]
) -> tuple[list[Said], list[Said]]:
    """The texts of an attempt that are said otherwise from a turn on, each with the number of the turn, in order.

    Returns:
        those with one turn as another attempt said it at an equal place, which go on as that one where the record ends;
        and those that go on as another one did from that place.
    """
    texts = [turn.text for turn in path]
    places = [[(place_of(graph, turn), number) for number, turn in enumerate(winner)] for winner in winners]
    singly: dict[Said, None] = {}
    onward: dict[Said, None] = {}
    for at, turn in enumerate(path):
        here = place_of(graph, turn)
        for winner, there in zip(winners, places, strict=True):
            for number in (number for place, number in there if place == here):
                onward[at, (*texts[:at], *(each.text for each in winner[number:]))] = None
                if winner[number].text != turn.text:
                    mended = (*texts[:at], winner[number].text, *texts[at + 1 :])
                    beyond = winner[number + len(texts) - at :]  # an error may have ended the record early
                    singly[at, mended] = None
                    singly[at, (*mended, *(each.text for each in beyond))] = None
    return [*singly], [*onward]


def _wins(graph: RolloutGraph, least: float) -> bool:
    return any(episode.ret >= least if episode.success is None else episode.success for episode in graph.complete())


@dataclass(frozen=True)
class Planted:
    """A lost attempt whose error is known, because it was planted in one that was won.

    Attributes:
        graph: the lost attempt, episode 0, and others at the task.
        node: the last node of the turn with the error.
        request: of an attempt at the task.
        instead: what was said there in the attempt that was won.
    """

    graph: RolloutGraph
    node: int
    request: Request
    instead: str

    def fields(self) -> Fields:
        """The case in the form of Who&When, see `who_when.case`."""
        said = self.graph.nodes[self.node].text
        reason = f"An error was planted: {said!r} is said in place of {self.instead!r}, with which the task was solved."
        return case(self.graph, 0, self.node, reason)

    def turns(self) -> tuple[int, ...]:
        """The last node of each turn of the lost attempt."""
        return tuple(turn.node for turn in on_path(self.graph, 0, turns_of(self.graph)))


async def plant(player: Recorded, count: int, seed: int, others: int) -> AsyncIterator[Planted]:
    """Cases from a recipe's tasks: in an attempt of the expert that was won one turn says what its role said elsewhere,
    all other turns are as they were, and the task is not solved any more.

    Args:
        player: of the recipe.
        count: how many.
        seed: of everything that is drawn.
        others: attempts of the expert with mistakes beside each lost one; they know nothing of the error.

    Raises:
        RecipeError: when the expert solves too few tasks, or no error loses them.
    """
    dice, said, made = random.Random(seed), dict[str, list[str]](), 0
    for step in range(1, PATIENCE * count + 1):
        request = player.request(dice.randrange(len(player.tasks("train"))), step=step)
        right = await player.attempt(request, Noise(0.0, skip_stage=0.0), dice)
        path = on_path(right, 0, turns_of(right))
        for turn in path:
            said.setdefault(right.nodes[turn.node].role, []).append(turn.text)
        lost = await _lost(player, request, right, path, said, dice) if right.episodes[0].success else None
        if lost is None:
            continue
        graph, at = lost
        beside = [await player.attempt(request, MISTAKEN, random.Random(f"{seed} {step} {k}")) for k in range(others)]
        whole = together([graph, *beside])
        yield Planted(whole, on_path(whole, 0, turns_of(whole))[at].node, request, path[at].text)
        made += 1
        if made == count:
            return
    raise RecipeError(
        f"hier.environment.name: only {made} of {count} cases could be made in {PATIENCE * count} tasks, because the "
        "expert did not solve the others, or no planted error lost them; ask for fewer --cases."
    )


async def _lost(
    player: Recorded,
    request: Request,
    right: RolloutGraph,
    path: Sequence[Turn],
    said: Mapping[str, Sequence[str]],
    dice: random.Random,
) -> tuple[RolloutGraph, int] | None:
    """The attempt with an error that loses it, and the number of its turn; None where none was found."""
    texts = [turn.text for turn in path]
    agents = [right.nodes[turn.node].agent for turn in path]
    agent = dice.choice(sorted({*agents}))  # so that agents with few turns err as often as others
    for _ in range(PATIENCE):
        at = dice.choice([number for number, name in enumerate(agents) if name == agent])
        error = dice.choice(said[right.nodes[path[at].node].role])
        if error == texts[at]:
            continue
        graph = await player.say(request, [*texts[:at], error, *texts[at + 1 :]])
        if not graph.episodes[0].success and graph.turns(0) > at and [*graph.complete()]:
            return graph, at
    return None


async def measure(player: Recorded, cases: Sequence[Planted]) -> dict[str, dict[str, float]]:
    """How often each rule finds the agent and the step of planted errors, see `who_when.accuracy`.

    `chance` names a turn at random, and is what that finds on average.
    """
    named: dict[str, list[tuple[Fields, str | None, int | None]]] = {}
    chance = {"agent": 0.0, "step": 0.0, "named": 1.0}
    for each in cases:
        label, turns = each.fields(), each.turns()
        places = history(each.graph, 0)[1]
        agents = [each.graph.nodes[node].agent for node in turns]
        chance["step"] += 1 / len(turns) / len(cases)
        chance["agent"] += agents.count(label["mistake_agent"]) / len(turns) / len(cases)
        replayed = await by_replay(each.graph, player, each.request, [0])
        for rule, node in (
            ("last turn", turns[-1]),
            ("the others", next(blame.node for blame in by_the_others(each.graph) if blame.episode == 0)),
            ("replay", replayed[0].node),
        ):
            known = node >= 0
            found = (each.graph.nodes[node].agent, places[node]) if known else (None, None)
            named.setdefault(rule, []).append((label, *found))
    return {"chance": chance, **{rule: accuracy(found) for rule, found in named.items()}}
