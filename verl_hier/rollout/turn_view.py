"""A turn as its worker sees it: what was said, and what the worker may note on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verl_hier.environments.reward_values import reward_of
from verl_hier.errors import RecipeError
from verl_hier.graph.nodes import Node, cut_spans
from verl_hier.graph.records import CUT
from verl_hier.rollout.policy import policy_of
from verl_hier.rollout.task import TaskRollout
from verl_hier.text import repaired, without_halves


class Turn:
    """A turn that was just generated: what the worker may read of it and note on it."""

    def __init__(self, rollout: TaskRollout, node: Node, text: str, live: bool = True) -> None:
        """
        Args:
            rollout: the rollout whose graph contains the turn.
            node: the turn's node; the last one when it was sampled in pieces.
            text: the decoded action, of all pieces.
            live: False while an episode is replayed up to its fork; the turn then has its rewards already.
        """
        self._rollout = rollout
        self._graph = rollout.graph
        self._node = node
        self._text = text
        self._live = live

    @property
    def node(self) -> Node:
        """Its node in the rollout graph, the last one of several pieces. Workers must not write to it."""
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
    def logprobs(self) -> list[float]:
        """Log p of each sampled token id; empty when the server gives none."""
        return [logprob for piece in self._graph.pieces(self._node) for logprob in piece.logprobs]

    @property
    def complete(self) -> bool:
        """False when the turn was cut by its token limit: its tokens end neither with an end token nor at a stop
        string."""
        return self._node.stop_reason not in CUT

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
        self._node.extra.update(repaired(extra))

    def set_speaker(self, role: str, level: int | None = None, agent: str | None = None) -> None:
        """Set whose turn it was, where only its text shows it: several agents in one context.

        Args:
            role, level, agent: see `EpisodeView.context`.

        Raises:
            PluginError: when the worker's spec does not declare the role, or declares it on another level.
            RecipeError: when the recipe gives the two roles different policies: a context has one.
        """
        level = self._rollout.level(role, level)
        assigned, before = self._rollout.setup.assigned, self._node.role
        if policy_of(assigned, role) != policy_of(assigned, before):
            raise RecipeError(
                f"hier.policies: the roles {before!r} and {role!r} speak in one context of this worker, and a context "
                "has one policy; give both the same one."
            )
        for piece in self._graph.pieces(self._node):
            piece.role, piece.level, piece.agent = role, level, without_halves(agent or role)

    def set_segment(self, segment: int) -> None:
        """Set the segment of the turn, where only its text shows whether it begins one."""
        for piece in self._graph.pieces(self._node):
            piece.segment = segment

    def reward(self, amount: float) -> None:
        """Add a reward that the worker gives the turn, for instance a format penalty.

        Raises:
            TypeError, ValueError: for what is no reward, see `reward_of`.
        """
        amount = reward_of("what `turn.reward` is given", amount)
        if self._live:
            self._node.reward += amount
