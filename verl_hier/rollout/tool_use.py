"""Tools that a chat template shows to an agent, for workers: its context, its calls, and their answers.

    first = await episode.reset()
    context = episode.context("agent")
    tools = ToolUse(context, first)
    ...
    turn = await episode.generate(context)
    step = await tools.act(episode, turn)    # the calls of the turn; the context has their answers

With an environment that has no tools it acts by the text of the turn, and its answers are messages of the user.
"""

from __future__ import annotations

from verl_hier.environments.base import StepResult
from verl_hier.environments.tools import action_of
from verl_hier.rollout.context import Context
from verl_hier.rollout.episode_view import EpisodeView
from verl_hier.rollout.turn_view import Turn


class ToolUse:
    """The tools of one context."""

    def __init__(self, context: Context, first: StepResult) -> None:
        """
        Args:
            context: of the agent that calls the tools; before its first turn.
            first: the environment's answer to the reset, whose `info` has `tools` and `stop_tokens`, if any.
        """
        self._context = context
        self._has_tools = "tools" in first.info
        context.tools = tuple(first.info.get("tools", ()))
        context.stop_tokens = tuple(first.info.get("stop_tokens", ()))

    async def act(self, episode: EpisodeView, turn: Turn) -> StepResult:
        """Make the calls of a turn, and add their answers to the context.

        The environment reads the tokens of the turn, because its text lacks special tokens, which are the marks of a
        call in some families of models.
        """
        step = await episode.act(action_of(turn.tokens) if self._has_tools else turn.text, turn=turn)
        message = step.info.get("message")
        if message is not None:
            self._context.read_as(**{name: value for name, value in message.items() if name != "role"})
        if not (step.done or step.truncated):
            for answer in step.info.get("messages", [{"role": "user", "content": step.text}]):
                self._context.observe(**answer)
        return step
