"""Episodes of any worker, told as one chain of agents: the serialisation step of multi-agent distillation.

Source: arXiv 2508.13167, the distillation of a multi-agent system's runs; its scripts are not public, so the mapping is
our own. What comes out is checked by playing it through the `chain_of_agents` worker.
"""

from __future__ import annotations

import re

from verl_hier.rollout.transcript import Transcript, TranscriptTurn
from verl_hier_plugins.workers.chain_of_agents.grammar import ANSWER, FAILED, LEVELS, SCORE, THINK, TOOL, UNREADABLE
from verl_hier_plugins.workers.chain_of_agents.worker import ChainOptions

LONGEST_QUOTE = 200
"""Characters of an observation that a reflection repeats."""

# Beginnings of role names of other workers, and the agent that tells their turns when they do nothing to the world.
_TOLD_AS = {
    "plan": "plan",
    "design": "plan",
    "strateg": "plan",
    "verif": "reflection",
    "reflect": "reflection",
    "critic": "reflection",
    "refin": "reflection",
    "generat": "suggested_answer",
}
_PAIR = re.compile(r"<(\w{1,64})>.*?</\1>", re.DOTALL)
_MARKER = re.compile(r"</?\w{1,64}>")
_BREAK = re.compile(r"[;\n]")
_BULLET = re.compile(r"^[\s\-*\d.)]+")


def transcribe(options: ChainOptions, transcript: Transcript) -> list[str]:
    """The parts of the sequence that the policy says, agent by agent; the world's answers are left to the worker.

    Planners become `plan`, what acts on the world becomes the tool agent whose template fits the action, turns of
    others `reflection`; before each stands a `think` with the turn's own words, else the subgoal, else the task. A call
    that the world refused is followed by a reflection on it. Episodes of `chain_of_agents` itself are told as they are.

    Args:
        options: of the `chain_of_agents` worker that shall say it.
        transcript: an episode of any worker.

    Raises:
        ValueError: with one word for the report, when the episode cannot be told.
    """
    if all(said.node.role in LEVELS for said in transcript.turns):
        return _verbatim(options, transcript)
    return _Teller(options, transcript).transcribe()


def _verbatim(options: ChainOptions, transcript: Transcript) -> list[str]:
    language = options.language()
    parts: list[str] = []
    rest = ""
    for said in transcript.turns:
        reading = language.read(rest + said.text)
        if reading.errors or said.node.role == UNREADABLE:
            raise ValueError(reading.errors[0][0] if reading.errors else "no_agent")
        parts += [_agent(segment.tag, segment.content) for segment in reading.segments]
        rest = "" if said.calls else reading.rest
    return parts


class _Teller:
    """One pass over a transcript."""

    def __init__(self, options: ChainOptions, transcript: Transcript) -> None:
        self._options = options
        self._language = options.language()
        self._transcript = transcript
        self._parts: list[str] = []
        self._last = "start"
        self._plan: list[str] = []

    def transcribe(self) -> list[str]:
        """See `transcribe`."""
        for said in self._transcript.turns:
            actions = [call.action for call in said.calls]
            thought = self._thought(said, actions)
            if not said.calls:
                self._write(said, thought)
            for call in said.calls:
                self._call(thought, call.action)
                over = call.step.done or call.step.truncated
                if not call.step.valid and not over and self._may(TOOL, "reflection") and self._may("reflection", TOOL):
                    quote = call.step.text[:LONGEST_QUOTE]
                    self._say(thought, "reflection", FAILED.format(observation=quote).strip())
        return self._parts

    def _write(self, said: TranscriptTurn, thought: str) -> None:
        """A turn that only writes."""
        content = _MARKER.sub("", said.text).strip()
        role = said.node.role.lower()
        agent = next((told for start, told in _TOLD_AS.items() if role.startswith(start)), None)
        agent = agent or ("plan" if said.node.level == 0 else "reflection")
        if agent == "plan":
            self._plan = [part for part in (_BULLET.sub("", p).strip() for p in _BREAK.split(content)) if part]
            thought = self._transcript.instruction
        if content and self._may(self._last, agent):
            self._say(thought, agent, content)

    def _call(self, thought: str, action: str) -> None:
        tag, content = self._tool(action)
        if tag == ANSWER and not self._may(self._last, ANSWER):
            self._say(thought, "suggested_answer", content)
            self._say(thought, "double_check", SCORE.format(score=self._options.accepting_score))
        self._say(thought, tag, content)

    def _say(self, thought: str, tag: str, content: str) -> None:
        if self._language.think_first:
            self._parts.append(_agent(THINK, thought))
        self._parts.append(_agent(tag, content))
        self._last = self._language.role(tag)

    def _may(self, agent: str, following: str) -> bool:
        return following in self._language.followers.get(agent, ())

    def _tool(self, action: str) -> tuple[str, str]:
        """The agent whose template makes this action, and the text between its tags; the longest template wins."""
        templates = dict(self._options.tools)
        if self._options.answer_action is not None:
            templates[ANSWER] = self._options.answer_action
        for tag, template in sorted(templates.items(), key=lambda item: -len(item[1])):
            before, _, after = template.partition("{content}")
            pattern = re.escape(before.format()) + "(.*)" + re.escape(after.format())
            found = re.fullmatch(pattern, action, flags=re.DOTALL)
            if found:
                return tag, found[1]
        raise ValueError("no_tool")

    def _thought(self, said: TranscriptTurn, actions: list[str]) -> str:
        """What an agent thought: its words beside tags and actions, else its subgoal, else the task."""
        words = _MARKER.sub("", _PAIR.sub("", said.text[: self._options.longest_content])).strip()
        if said.calls and words and words not in actions:
            return words
        if said.node.level > 0 and said.node.segment < len(self._plan):
            return self._plan[said.node.segment]
        return self._transcript.instruction


def _agent(tag: str, content: str) -> str:
    return f"<{tag}>{content}</{tag}>"
