"""What a role does before it lets others speak: one or several turns, with actions or a message."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from verl_hier.environments.base import StepResult
from verl_hier.rollout import Context, EpisodeView, Turn
from verl_hier.rollout.prompts import fields, fill, observe
from verl_hier_plugins.workers.react import parse_action
from verl_hier_plugins.workers.team.options import RatingOptions, RoleOptions, TeamOptions

UNSTATED = 0.5
"""The part of a role of which nothing readable was said."""
_NUMBER = re.compile(r"\d*\.\d+|\d+")


def stated_share(text: str) -> float | None:
    """The last number of a rating; None when there is none from 0.1 to 0.9."""
    numbers = _NUMBER.findall(text)
    share = float(numbers[-1]) if numbers else 0.0
    return share if 0.1 <= share <= 0.9 else None


@dataclass(frozen=True)
class Message:
    """What a role said to others.

    Attributes:
        role: who said it.
        text: it.
        turns: the turns that it was taken from; none when it is an observation.
    """

    role: str
    text: str
    turns: tuple[Turn, ...] = ()


class Scene:
    """What the members of a team share in an episode: the environment's last answer, and prompts."""

    def __init__(self, options: TeamOptions, episode: EpisodeView, first: StepResult) -> None:
        self.options = options
        self.episode = episode
        self.first = self.last = self.shown = first
        self.segment = 0

    def begin(self) -> None:
        """A step begins: what is shown to roles that read together."""
        self.shown = self.last

    @property
    def over(self) -> bool:
        """Whether the environment has ended the episode."""
        return self.last.done or self.last.truncated

    async def act(self, action: str, turn: Turn) -> None:
        """Apply an action that a turn wrote."""
        self.last = await self.episode.act(action, turn=turn)

    def context(self, name: str, agent: str | None = None) -> Context:
        """A new context of a role."""
        role = self.options.roles[name]
        return self.episode.context(name, agent=agent, system=role.system, policy=role.policy, sampling=role.sampling)

    def tell(
        self, context: Context, name: str, prompt: str, said: Sequence[Message] = (), task: Message | None = None
    ) -> None:
        """Add a prompt of a role to its context, with what others have said or with its task."""
        role, given = self.options.roles[name], "" if task is None else task.text
        turns: Mapping[str, list[Turn]] = {
            "said": [turn for each in said for turn in each.turns],
            "task": [] if task is None else list(task.turns),
        }
        brief = str(self.episode.told.get("briefs", {}).get(name, role.brief))
        together = self.options.topology.reads == "together" and prompt != "observation_prompt"
        seen = self.shown if together else self.last
        known = fields(self.episode, seen, self.first, said=self._joined(said), task=given, brief=brief)
        observe(context, role, prompt, known, turns, prefix=f"roles.{name}.")

    def ask(self, context: Context, ratings: RatingOptions, said: Sequence[Message]) -> None:
        """Add the question who has contributed to a context."""
        turns = {"said": [turn for each in said for turn in each.turns]}
        known = fields(self.episode, self.last, self.first, said=self._joined(said), task="", brief="")
        observe(context, ratings, "prompt", known, turns, prefix="ratings.")

    def _joined(self, said: Sequence[Message]) -> str:
        template = self.options.message
        lines = [fill(template, {"role": each.role, "text": each.text}, "message") for each in said]
        return self.options.between.join(lines)

    def message(self, name: str, text: str, turns: tuple[Turn, ...] = ()) -> Message:
        """What others read of a text."""
        return Message(name, text[: self.options.longest_message], turns)


@dataclass
class Visit:
    """The turns of one role between two others, or of one agent on its task.

    Attributes:
        scene: the episode.
        name: the role.
        context: what it has read so far; its next turn goes there.
        task: what a lead told it to do.
        turn: its last turn.
        said: its message, once it is over.
    """

    scene: Scene
    name: str
    context: Context
    task: Message | None = None
    turn: Turn | None = None
    said: Message | None = None
    _texts: list[str] = field(default_factory=list)

    @property
    def role(self) -> RoleOptions:
        """Its options."""
        return self.scene.options.roles[self.name]

    async def take_turn(self) -> None:
        """One turn, with the action that it makes."""
        scene, role = self.scene, self.role
        plan = self.task.turns[0] if self.task and self.task.turns else None
        turn = await scene.episode.generate(self.context, segment=scene.segment, plan=plan, max_tokens=role.max_tokens)
        self.turn, repeated = turn, self.task is not None and turn.text in self._texts[-1:]
        self._texts.append(turn.text)
        inner = parse_action(turn.text, role.message_tag) if role.message_tag else None
        content = parse_action(turn.text, role.action_tag)
        acts = role.action is not None and inner is None and (role.message_tag or role.may(content or ""))
        failure = self._failure(inner, content, bool(acts))
        self._note(turn, failure, bool(acts) and failure is None)
        if not acts:
            self.said = scene.message(self.name, turn.text if inner is None else inner, (turn,))
            return
        if failure is None or not role.message_tag:
            await scene.act(str(role.action).format(content=content or ""), turn)
        self._go_on(turn, repeated)

    def _failure(self, inner: str | None, content: str | None, acts: bool) -> str | None:
        """What is wrong with the form of a turn."""
        role = self.role
        if not acts:
            return "no_message" if role.message_tag and inner is None else None
        if content is None:
            return "no_action"
        return None if role.may(content) else "action_not_allowed"

    def _note(self, turn: Turn, failure: str | None, acted: bool) -> None:
        turn.mark(format=int(failure is None), access_calls=int(acted), limit_failed=0, repeat_failed=0, answered=0)
        turn.mark(rates=0, share=UNSTATED)
        if failure is not None:
            turn.mark(valid=False, failure=failure)
            turn.reward(-self.role.format_penalty)

    def _go_on(self, turn: Turn, repeated: bool) -> None:
        """After an action: read its answer, or end here."""
        scene, role = self.scene, self.role
        spent = len(self._texts) >= role.turns
        if scene.over or spent or repeated:
            # Without a report, what the environment has said last is the best one.
            reports = role.message_tag is not None
            if not scene.over:
                turn.mark(limit_failed=int(spent and reports), repeat_failed=int(repeated))
            self.said = scene.message(self.name, scene.last.text if reports else turn.text, () if reports else (turn,))
            return
        scene.tell(self.context, self.name, "observation_prompt", task=self.task)
