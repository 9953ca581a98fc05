"""The flat worker: observe, speak, act, until the world or a limit ends it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from verl_hier.environments.base import Step
from verl_hier.rollout import Worker
from verl_hier.rollout.stage import Stage, Turn


@dataclass(frozen=True)
class ReactOptions:
    """Options of `react`.

    Templates may use {instruction}, {observation}, {overview} (what the first observation said of the world),
    {admissible} and, in `window_prompt`, {history}.
    """

    prompt: str = "task: {instruction} | {observation}"
    """First message of the context."""
    observation_prompt: str = "{observation}"
    """Every later message, when the whole history is the context."""
    system: str | None = None
    """System message for chat models."""
    history: int = 0
    """0 keeps one growing context; k > 0 makes a new context each turn from the last k turns."""
    window_prompt: str = "task: {instruction} | {history} | {observation}"
    """The whole prompt of a turn when `history` > 0."""
    action_tag: str | None = None
    """When set, the action is the text inside <tag>…</tag>, and a turn without it is invalid."""

    def __post_init__(self) -> None:
        if self.history < 0:
            raise ValueError(f"history must not be negative, got {self.history}")


def parse_action(text: str, tag: str | None) -> str | None:
    """The action inside a turn's text; None when the tag is wanted and missing.

    The last complete tag pair counts, so that a tag quoted while thinking does no harm.
    """
    if tag is None:
        return text.strip()
    found = re.findall(rf"<{tag}>(.*?)</{tag}>", text, flags=re.DOTALL)
    return found[-1].strip() if found else None


class React(Worker):
    """See `plugins/react`."""

    def __init__(self, options: ReactOptions) -> None:
        self._options = options

    async def run(self, stage: Stage) -> None:
        """See `Worker.run`."""
        options = self._options
        step = await stage.reset()
        overview = str(step.info.get("overview", step.text))
        context = stage.context("agent")
        past: list[str] = []
        first = True
        while not (step.done or step.truncated):
            fields = {
                "instruction": stage.instruction,
                "observation": step.text,
                "overview": overview,
                "admissible": "; ".join(step.admissible),
                "history": " ; ".join(past[-options.history :]),
            }
            if options.history:
                context = stage.context("agent")
            if options.system and (first or options.history):
                context.observe(options.system, role="system")
            template = options.prompt if first else options.observation_prompt
            context.observe((options.window_prompt if options.history and not first else template).format(**fields))
            turn = await stage.say(context)
            first = False
            seen, step = step.text, await self._act(stage, turn)
            past.append(f"{seen} > {turn.text}")

    async def _act(self, stage: Stage, turn: Turn) -> Step:
        action = parse_action(turn.text, self._options.action_tag)
        if action is None:
            turn.mark(valid=False)
        return await stage.act(action or "")
