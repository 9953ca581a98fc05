"""ReAct (arXiv 2210.03629), one agent that generates and acts; docs/methods/react.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from verl_hier.environments.base import StepResult
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import NonNegative, Template
from verl_hier.host.specs import WorkerSpec
from verl_hier.rollout import EpisodeView, Turn, Worker
from verl_hier.rollout.prompts import fields, observe


@dataclass(frozen=True)
class ReactOptions:
    """Options of `react`.

    Templates may use {instruction}, {observation}, {admissible}, whatever the environment puts into the `info` of its
    reset and, in `window_prompt`, {history}.
    """

    prompt: Annotated[str, Template("history")] = "task: {instruction} | {observation}"
    """First message of the context."""
    observation_prompt: Annotated[str, Template("history")] = "{observation}"
    """Every later message, when the whole history is the context."""
    system: str | None = None
    """System message for chat models."""
    history: int = 0
    """0 keeps one growing context; k > 0 makes a new context each turn from the last k turns."""
    window_prompt: Annotated[str, Template("history")] = "task: {instruction} | {history} | {observation}"
    """The whole prompt of a turn when `history` > 0."""
    action_tag: str | None = None
    """When set, the action is the text inside <tag>…</tag>, and a turn without it is invalid."""
    required_tags: tuple[str, ...] = ()
    """Further tags, such as `think`, that a turn has to have for its format to count as right; its action is taken in
    any case."""
    format_penalty: NonNegative = 0.0
    """Taken from the reward, and so from the return, of a turn without its tags. Estimators have an option of this name
    that leaves the return as it is."""

    def __post_init__(self) -> None:
        if self.history < 0:
            raise ValueError(f"history must not be negative, got {self.history}")


def parse_action(text: str, tag: str | None) -> str | None:
    """The action inside a turn's text; None when the tag is wanted and missing.

    The last complete tag pair counts, so that a tag quoted while thinking does no harm.
    """
    if tag is None:
        return text.strip()
    # Linear in the text: a pattern would look for the end anew from each of a million beginnings.
    opening, closing = f"<{tag}>", f"</{tag}>"
    found, end = None, 0
    while (start := text.find(opening, end)) >= 0:
        stop = text.find(closing, start + len(opening))
        if stop < 0:
            break
        found, end = text[start + len(opening) : stop].strip(), stop + len(closing)
    return found


class React(Worker):
    """See the module."""

    def __init__(self, options: ReactOptions) -> None:
        self._options = options

    async def run(self, episode: EpisodeView) -> None:
        """See `Worker.run`."""
        options = self._options
        step = first = await episode.reset()
        context = episode.context("agent", system=options.system)
        past: list[str] = []
        opening = True
        while not (step.done or step.truncated):
            if options.history and not opening:
                context = episode.context("agent", system=options.system)
            name = "prompt" if opening else "window_prompt" if options.history else "observation_prompt"
            known = fields(episode, step, first, history=" ; ".join(past[-options.history :]))
            observe(context, options, name, known)
            turn = await episode.generate(context)
            opening = False
            seen, step = step.text, await self._act(episode, turn)
            past.append(f"{seen} > {turn.text[: episode.longest_quote]}")

    async def _act(self, episode: EpisodeView, turn: Turn) -> StepResult:
        options = self._options
        action = parse_action(turn.text, options.action_tag)
        if action is None:
            turn.mark(valid=False)
        form = action is not None and all(parse_action(turn.text, tag) is not None for tag in options.required_tags)
        turn.mark(format=int(form))
        if options.format_penalty and not form:
            turn.reward(-options.format_penalty)
        return await episode.act(action or "")


@hookimpl
def hier_workers() -> WorkerSpec:
    return WorkerSpec(
        "react",
        React,
        ReactOptions,
        summary="one agent acts turn by turn, on its whole history or on a window of it",
        source="ReAct, arXiv 2210.03629 §2; windowed prompts as verl-agent's memory",
        roles={"agent": 0},
        provides=("format",),
    )
