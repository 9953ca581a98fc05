"""Episodes that answer a question as episodes of a designer whose roles only speak, for cold starts."""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass

from verl_hier.rollout.transcript import Transcript
from verl_hier_plugins.workers.designer_executor.options import WRONG, DesignerExecutorOptions
from verl_hier_plugins.workers.react import parse_action


def transcribe(options: DesignerExecutorOptions, transcript: Transcript) -> list[str]:
    """The turns of an episode that answers its task rightly by one call of a role, or by the designer's own answer.

    Which one is drawn by the words of the task. Some agents of blocks answer with another word of the task at first, so
    that each kind of agent is shown what it is there for: two of five before a vote, and in half of the episodes one
    before a critic or in the first round of a debate.

    Raises:
        ValueError: in one word, for an episode or options that cannot be written so.
    """
    if not transcript.turns or not transcript.turns[-1].calls:
        raise ValueError("no_answer")
    solved, question = transcript.turns[-1].calls[-1].action, transcript.instruction
    answer = parse_action(solved, options.answer_tag)
    if not answer or options.answer_tag is None:
        raise ValueError("no_answer")
    chance = random.Random(zlib.crc32(question.encode("utf-8", "replace")))
    ways: list[str | None] = [*options.roles, *([None] if options.direct_tag else [])]
    way = chance.choice(ways)
    if way is None:
        return [f"<{options.direct_tag}>{answer}</{options.direct_tag}>"]
    words = [word for word in question.split() if word != answer] or [WRONG]
    show = _Shown(options, solved, words, chance)
    return [show.plan(way), *show.call(options.roles[way].block)]


@dataclass(frozen=True)
class _Shown:
    """What the agents of a demonstration say.

    Attributes:
        options: of the worker.
        solved: a turn with the right answer.
        words: what a wrong answer can be.
        chance: draws who answers wrongly.
    """

    options: DesignerExecutorOptions
    solved: str
    words: list[str]
    chance: random.Random

    def plan(self, role: str) -> str:
        """The design that calls one role."""
        if self.options.language == "script":
            return role if self.options.design_tag is None else self._in(self.options.design_tag, role)
        name, agent = self._in("agent_id", "a1"), self._in("agent_name", role)
        graph = self._in("agent", name + agent + self._in("required_arguments", self._in("agent_input", "")))
        return graph if self.options.design_tag is None else self._in(self.options.design_tag, graph)

    def call(self, block: str) -> list[str]:
        """The turns of one call."""
        blocks, tag = self.options.blocks, str(self.options.answer_tag)
        if block == "call":
            return [self.solved]
        if block == "self_consistency":
            wrong = set(self.chance.sample(range(blocks.samples), 2 * blocks.samples // 5))
            return [self._wrong() if number in wrong else self.solved for number in range(blocks.samples)]
        errs = self.chance.random() < 0.5
        if block == "reflexion":
            first = [self._wrong(), self._in(tag, WRONG)] if errs else []
            return [*first, self.solved, self._in(tag, blocks.approve)]
        sides = len(blocks.sides)
        begins = [self._wrong() if errs and number == sides - 1 else self.solved for number in range(sides)]
        return [*begins, *[self.solved] * (sides * (blocks.rounds - 1) + 1)]

    def _wrong(self) -> str:
        return self._in(str(self.options.answer_tag), self.chance.choice(self.words))

    @staticmethod
    def _in(tag: str, text: str) -> str:
        return f"<{tag}>{text}</{tag}>"
