"""What a worker sees of its episode: the world, the policy, its own random numbers, and the turns it has made."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from verl_hier.environments.base import StepResult
from verl_hier.graph.nodes import Node, RolloutGraph, cut_spans
from verl_hier.rollout.context import Context

if TYPE_CHECKING:
    from verl_hier.rollout.episode import Episode


class EpisodeOver(Exception):
    """Raised inside a worker to end its episode; never caught by workers."""


class Turn:
    """A turn that was just spoken: what the worker may read of it and say about it."""

    def __init__(self, graph: RolloutGraph, node: Node, text: str, live: bool = True) -> None:
        """
        Args:
            graph: what the turn is part of.
            node: the turn's entry in it; the last one when it was sampled in pieces.
            text: the decoded action, of all pieces.
            live: False while an episode is replayed up to its fork; the turn then has its rewards already.
        """
        self._graph = graph
        self._node = node
        self._text = text
        self._live = live

    @property
    def node(self) -> Node:
        """Its entry in the rollout graph, the last one of several pieces. To be read, not written."""
        return self._node

    @property
    def text(self) -> str:
        """The decoded action."""
        return self._text

    @property
    def tokens(self) -> list[int]:
        """The sampled token ids."""
        return [token for piece in self._graph.pieces(self._node) for token in piece.action]

    @property
    def complete(self) -> bool:
        """False when the turn was cut by its token limit."""
        return self._node.stop_reason not in ("length", "aborted")

    def mark(
        self, *, valid: bool | None = None, masks: Mapping[str, list[list[int]]] | None = None, **extra: Any
    ) -> None:
        """Note the validity, token masks ([start, stop) spans over the action) or extra columns of the turn."""
        if valid is not None:
            self._node.valid = valid
        start = 0
        for piece in self._graph.pieces(self._node) if masks else ():
            piece.masks.update(cut_spans(masks or {}, start, start + len(piece.action)))
            start += len(piece.action)
        self._node.extra.update(extra)

    def set_speaker(self, role: str, level: int, agent: str | None = None) -> None:
        """Say whose turn it was, where only the text tells: several agents in one context."""
        for piece in self._graph.pieces(self._node):
            piece.role, piece.level, piece.agent = role, level, agent or role

    def set_segment(self, segment: int) -> None:
        """Say which segment it belongs to, where only the text tells whether it begins one."""
        for piece in self._graph.pieces(self._node):
            piece.segment = segment

    def reward(self, amount: float) -> None:
        """Add a reward that the worker gives the turn, for instance a format penalty."""
        if self._live:
            self._node.reward += amount


class EpisodeView:
    """One episode as its worker sees it."""

    def __init__(self, episode: Episode, task: Mapping[str, Any], rng: random.Random) -> None:
        self._episode = episode
        self.task = task
        self.rng = rng

    @property
    def instruction(self) -> str:
        """The task in words."""
        return str(self.task.get("instruction", ""))

    def context(self, role: str, level: int = 0, agent: str | None = None) -> Context:
        """A new, empty context."""
        return Context(self._episode.rollout.renderer, role, level, agent)

    async def reset(self) -> StepResult:
        """Start the world; call it once, first."""
        return await self._episode.reset()

    async def act(self, action: str) -> StepResult:
        """Apply an action to the world. Reward, validity and end are noted on the turn that was spoken last.

        Raises:
            EpisodeOver: when the environment failed; the episode is then lost and counted.
        """
        return await self._episode.act(action)

    async def generate(
        self,
        context: Context,
        *,
        segment: int = 0,
        plan: Turn | None = None,
        max_tokens: int | None = None,
        stop: tuple[str, ...] = (),
    ) -> Turn:
        """Let the policy speak in `context`.

        Args:
            context: whose turn it is; gains the prompt and the action.
            segment: running number of the subgoal or plan that the turn belongs to.
            plan: the turn that holds the plan above this one.
            max_tokens: limit of this turn, at most the recipe's.
            stop: strings that end the turn.

        Raises:
            EpisodeOver: when a limit of the episode is reached; it is then truncated.
        """
        return await self._episode.generate(context, segment, None if plan is None else plan.node, max_tokens, stop)
