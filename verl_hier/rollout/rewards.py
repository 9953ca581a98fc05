"""Reward functions: named and weighted, on the turns or the episodes of any environment with any worker.

They are asked when all episodes of a task have ended, and what they say is added to the environment's rewards. Samplers
that choose among episodes by their return see the environment's rewards alone.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from verl_hier.environments.reward_values import reward_of
from verl_hier.errors import RolloutError, raised
from verl_hier.graph.chat import conversation
from verl_hier.graph.nodes import EpisodeRecord, Node, RolloutGraph

Per = Literal["episode", "turn"]
COLUMN = "reward/"
"""Prefix of the names of reward functions in `Node.extra`."""


@dataclass(frozen=True)
class RatedTurn:
    """One turn, as a reward function sees it.

    Attributes:
        task: task of the environment.
        role, agent, level: whose turn it was.
        number: 0-based number of the turn in its episode.
        messages: the agent's conversation up to this turn, `{"role", "content"}` each; the last one is the turn's text.
        text: what the agent generated, as the worker read it.
        valid: False when the environment or the worker refused the turn.
        reward: what the environment and the worker gave for it.
        extra: what the worker has noted on the turn.
        tokens: how many tokens were generated.
    """

    task: Mapping[str, Any]
    role: str
    agent: str
    level: int
    number: int
    messages: tuple[Mapping[str, str], ...]
    text: str
    valid: bool
    reward: float
    extra: Mapping[str, Any]
    tokens: int = 0


@dataclass(frozen=True)
class RatedEpisode:
    """One episode, as a reward function sees it.

    Attributes:
        task: task of the environment.
        turns: in the order of time, of all agents.
        ret: sum of the rewards of the environment and the worker.
        success: whether the task was solved, None when the environment does not say.
        truncated: whether a limit ended it.
    """

    task: Mapping[str, Any]
    turns: tuple[RatedTurn, ...]
    ret: float
    success: bool | None
    truncated: bool

    @property
    def text(self) -> str:
        """What was generated last."""
        return self.turns[-1].text

    @property
    def tokens(self) -> int:
        """How many tokens were generated."""
        return sum(turn.tokens for turn in self.turns)

    @property
    def messages(self) -> tuple[Mapping[str, str], ...]:
        """The conversation of the agent that took the last turn."""
        return self.turns[-1].messages


@dataclass(frozen=True)
class RewardOptions:
    """One entry of `hier.rewards`."""

    function: str
    """`package.module:function`; it is called with the episode, or the turn, and with `options` by name, and returns a
    number, or None where it has nothing to say. It may be a coroutine function."""
    weight: float = 1.0
    """What its number is multiplied by before it is added to the reward."""
    per: Per = "episode"
    """`episode` asks once at the end of each episode, with a `RatedEpisode`; `turn` asks for each turn, with a
    `RatedTurn`."""
    roles: tuple[str, ...] = ()
    """Roles whose turns are rated; with `per: episode`, those whose last turn is given the reward. Without roles and
    agents: all turns, and the last turn of the episode."""
    agents: tuple[str, ...] = ()
    """The same by the names of agents, where several hold a role."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the function."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.weight):
            raise ValueError(f"weight must be a finite number, got {self.weight}")


@dataclass(frozen=True)
class Reward:
    """A reward function with its weight; see `RewardOptions` for the other fields."""

    function: Callable[..., Any]
    weight: float = 1.0
    per: Per = "episode"
    roles: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def rates(self, node: Node) -> bool:
        """Whether a turn is one that it rates."""
        anybody = not (self.roles or self.agents)
        return anybody or node.role in self.roles or node.agent in self.agents


Function = TypeVar("Function", bound=Callable[..., Any])


def checks_options(check: Callable[[Mapping[str, Any]], None]) -> Callable[[Function], Function]:
    """A decorator that gives a reward function a check of its options, which `verl-hier check` asks before a run.

    Args:
        check: is given the options of the recipe and raises a `ValueError`, whose text is the sentence that is shown.
    """

    def decorate(function: Function) -> Function:
        function.check_options = check  # type: ignore[attr-defined]
        return function

    return decorate


async def rate(graph: RolloutGraph, task: Mapping[str, Any], rewards: Mapping[str, Reward]) -> None:
    """Ask reward functions about the complete episodes of a task, and add what they say to its graph.

    The reward of a turn and the return of an episode grow by weight times number. The number of an episode, or the mean
    of those of its turns, is kept as `reward_info[name]` of the episode, 0 when there is none; that of a turn as
    `extra["reward/name"]` of its node. A turn that several episodes share is rated once. An episode's reward for the
    last turn of a role goes to the last turn of the episode when that turn is shared.

    Raises:
        RolloutError: naming `hier.rewards`, when a function raises or returns something else than a number.
    """
    episodes = list(graph.complete())
    if not rewards or not episodes:
        return
    views = _Views(graph, task)
    whole = {episode.id: views.episode(episode) for episode in episodes}
    for name, reward in rewards.items():
        if reward.per == "turn":
            await _rate_turns(views, episodes, name, reward)
        else:
            await _rate_episodes(views, episodes, whole, name, reward)
    for episode in episodes:
        episode.ret = sum(graph.nodes[number].reward for number in graph.path(episode.id))


async def _rate_turns(views: _Views, episodes: list[EpisodeRecord], name: str, reward: Reward) -> None:
    graph = views.graph
    turns = {e.id: [n for n in views.ends(e) if reward.rates(n)] for e in episodes}
    asked = list({node.id: node for nodes in turns.values() for node in nodes}.values())
    numbers = await _ask(name, reward, [views.turn(node) for node in asked])
    said = {node.id: number for node, number in zip(asked, numbers, strict=True) if number is not None}
    for place, number in said.items():
        graph.nodes[place].reward += reward.weight * number
        graph.nodes[place].extra[COLUMN + name] = number
    for episode in episodes:
        found = [said[node.id] for node in turns[episode.id] if node.id in said]
        episode.reward_info[name] = sum(found) / len(found) if found else 0.0


async def _rate_episodes(
    views: _Views, episodes: list[EpisodeRecord], whole: Mapping[int, RatedEpisode], name: str, reward: Reward
) -> None:
    # Episodes with the same last turn are the same.
    leaves = {episode.leaf: episode for episode in episodes}
    numbers = await _ask(name, reward, [whole[episode.id] for episode in leaves.values()])
    said = dict(zip(leaves, numbers, strict=True))
    for episode in episodes:
        number = said[episode.leaf]
        episode.reward_info[name] = 0.0 if number is None else number
    for leaf, episode in leaves.items():
        for node in views.last_turns(episode, reward) if said[leaf] is not None else ():
            node.reward += reward.weight * (said[leaf] or 0.0)
            node.extra[COLUMN + name] = said[leaf]


async def _ask(name: str, reward: Reward, rated: Iterable[Any]) -> list[float | None]:
    """What a function says about each of several turns or episodes, side by side when it is a coroutine function."""

    async def one(item: Any) -> float | None:
        try:
            answer = reward.function(item, **reward.options)
            if inspect.isawaitable(answer):
                answer = await answer
        except RolloutError:
            raise
        except Exception as error:
            raise RolloutError(f"hier.rewards.{name}: the reward function raised {raised(error)}.") from error
        if answer is None:
            return None
        try:
            return reward_of(f"hier.rewards.{name}: what the reward function returned", answer)
        except (TypeError, ValueError) as error:
            raise RolloutError(f"{error}.") from error

    return list(await asyncio.gather(*(one(item) for item in rated)))


class _Views:
    """Turns and episodes of one graph as reward functions see them, before any function has added to the rewards."""

    def __init__(self, graph: RolloutGraph, task: Mapping[str, Any]) -> None:
        self.graph = graph
        self._task = task
        self._turns: dict[int, RatedTurn] = {}
        self._owners = Counter(number for episode in graph.complete() for number in graph.path(episode.id))

    def ends(self, episode: EpisodeRecord) -> list[Node]:
        """The turns of an episode; of those that were sampled in pieces the last one."""
        nodes = (self.graph.nodes[number] for number in self.graph.path(episode.id))
        return [node for node in nodes if not node.partial or node.id == episode.leaf]

    def turn(self, node: Node) -> RatedTurn:
        """A turn by its last node."""
        if node.id not in self._turns:
            messages = conversation(self.graph, node.id)
            pieces = self.graph.pieces(node)
            self._turns[node.id] = RatedTurn(
                task=self._task,
                role=node.role,
                agent=node.agent,
                level=node.level,
                number=node.turn,
                messages=tuple(messages),
                text="".join(piece.text for piece in pieces),
                valid=node.valid,
                reward=node.reward,
                extra=dict(node.extra),
                tokens=sum(len(piece.action) for piece in pieces),
            )
        return self._turns[node.id]

    def episode(self, record: EpisodeRecord) -> RatedEpisode:
        """A complete episode."""
        turns = tuple(self.turn(node) for node in self.ends(record))
        return RatedEpisode(self._task, turns, record.ret, record.success, record.status == "truncated")

    def last_turns(self, episode: EpisodeRecord, reward: Reward) -> Iterable[Node]:
        """The turns that are given the reward of an episode: one for each of the roles or agents that spoke in it."""
        turns = self.ends(episode)
        if not (reward.roles or reward.agents):
            return [turns[-1]]
        last = {("role", role): node for role in reward.roles for node in turns if node.role == role}
        last |= {("agent", agent): node for agent in reward.agents for node in turns if node.agent == agent}
        return [node if self._owners[node.id] == 1 else turns[-1] for node in last.values()]
