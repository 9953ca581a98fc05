"""Episodes of any worker, transcribed as one chain of agents: the serialisation step of multi-agent distillation.

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

# Beginnings of role names of other workers, and the agent that their turns become when they do not act.
_BECOMES = {
    "plan": "plan",
    "design": "plan",
    "strateg": "plan",
    "verif": "reflection",
    "reflect": "reflection",
    "critic": "reflection",
    "refin": "reflection",
    "generat": "suggested_answer",
}
_OPENING = re.compile(r"<(\w{1,64})>")
_MARKER = re.compile(r"</?\w{1,64}>")
_BREAK = re.compile(r"[;\n]")
_BULLET = re.compile(r"^[\s\-*\d.)]+")


def transcribe(options: ChainOptions, transcript: Transcript) -> list[str]:
    """The parts of the sequence that the policy generates, agent by agent, without the environment's answers.

    Planners become `plan`, turns that act become the tool agent whose template matches the action, turns of
    others `reflection`; before each stands a `think` with the turn's own words, else the subgoal, else the task. A call
    that the environment refused is followed by a reflection on it. Episodes of `chain_of_agents` stay as they are.

    Args:
        options: of the `chain_of_agents` worker that will generate it.
        transcript: an episode of any worker.

    Raises:
        ValueError: with one word for the report, when the episode cannot be transcribed.
    """
    if all(turn.node.role in LEVELS for turn in transcript.turns):
        return _verbatim(options, transcript)
    return _Transcriber(options, transcript).transcribe()


def _verbatim(options: ChainOptions, transcript: Transcript) -> list[str]:
    language = options.language()
    parts: list[str] = []
    rest = ""
    for turn in transcript.turns:
        reading = language.read(rest + turn.text)
        if reading.errors or turn.node.role == UNREADABLE:
            raise ValueError(reading.errors[0][0] if reading.errors else "no_agent")
        parts += [_agent(segment.tag, segment.content) for segment in reading.segments]
        rest = "" if turn.calls else reading.rest
    return parts


class _Transcriber:
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
        for turn in self._transcript.turns:
            actions = [call.action for call in turn.calls]
            thought = self._thought(turn, actions)
            if not turn.calls:
                self._write(turn, thought)
            for call in turn.calls:
                self._call(thought, call.action)
                over = call.step.done or call.step.truncated
                if not call.step.valid and not over and self._may(TOOL, "reflection") and self._may("reflection", TOOL):
                    quote = call.step.text[:LONGEST_QUOTE]
                    self._add(thought, "reflection", FAILED.format(observation=quote).strip())
        return self._parts

    def _write(self, turn: TranscriptTurn, thought: str) -> None:
        """A turn that only writes."""
        content = _MARKER.sub("", turn.text).strip()
        role = turn.node.role.lower()
        agent = next((tag for start, tag in _BECOMES.items() if role.startswith(start)), None)
        agent = agent or ("plan" if turn.node.level == 0 else "reflection")
        if agent == "plan":
            self._plan = [part for part in (_BULLET.sub("", p).strip() for p in _BREAK.split(content)) if part]
            thought = self._transcript.instruction
        if content and self._may(self._last, agent):
            self._add(thought, agent, content)

    def _call(self, thought: str, action: str) -> None:
        tag, content = self._tool(action)
        if tag == ANSWER and not self._may(self._last, ANSWER):
            self._add(thought, "suggested_answer", content)
            self._add(thought, "double_check", SCORE.format(score=self._options.accepting_score))
        self._add(thought, tag, content)

    def _add(self, thought: str, tag: str, content: str) -> None:
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

    def _thought(self, turn: TranscriptTurn, actions: list[str]) -> str:
        """What an agent thought: its words beside tags and actions, else its subgoal, else the task."""
        words = _MARKER.sub("", _without_pairs(turn.text[: self._options.longest_content])).strip()
        if turn.calls and words and words not in actions:
            return words
        if turn.node.level > 0 and turn.node.segment < len(self._plan):
            return self._plan[turn.node.segment]
        return self._transcript.instruction


def _agent(tag: str, content: str) -> str:
    return f"<{tag}>{content}</{tag}>"


def _without_pairs(text: str) -> str:
    """The text without `<tag>…</tag>`, tags included. Linear: each closing tag is looked for once after an opening one
    that has none."""
    kept: list[str] = []
    unclosed: set[str] = set()
    place = 0
    for opening in _OPENING.finditer(text):
        name = opening[1]
        if opening.start() < place or name in unclosed:
            continue
        end = text.find(f"</{name}>", opening.end())
        if end < 0:
            unclosed.add(name)
            continue
        kept.append(text[place : opening.start()])
        place = end + len(name) + 3
    return "".join([*kept, text[place:]])
