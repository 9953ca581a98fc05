"""The language of a chain of agents: tags are agents, and a grammar says which may follow which.

Source: arXiv 2508.13167 and its released prompts, where the grammar is asked for in words. Here it is checked. What the
world says stands between `<observation>` and `</observation>`; the policy must not write that itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

START, TOOL, THINK, ANSWER, OBSERVATION = "start", "tool", "think", "answer", "observation"
FAILED = "that failed : {observation}"
SCORE = "score {score}"
UNREADABLE = "unreadable"

LEVELS = {
    "plan": 0,
    "reflection": 0,
    "double_check": 0,
    THINK: 1,
    TOOL: 1,
    "suggested_answer": 1,
    ANSWER: 1,
    UNREADABLE: 1,
}
"""Roles: the agents that steer are level 0, those that carry out are level 1. All tool agents share the role `tool`."""

FOLLOWERS: dict[str, tuple[str, ...]] = {
    START: ("plan", TOOL),
    "plan": (TOOL, "suggested_answer"),
    TOOL: (TOOL, "reflection", "suggested_answer"),
    "reflection": ("plan", TOOL, "suggested_answer"),
    "suggested_answer": ("double_check",),
    "double_check": (ANSWER, "plan", TOOL),
    ANSWER: (),
}
"""Which agent may come after which, apart from `think`, which comes before each of them."""

VIOLATIONS = {
    "no_agent": "the turn holds no complete agent and no beginning of one",
    "unclosed": "the text ends inside an agent",
    "stopped": "the model ended its message between two agents",
    "unopened": "a closing tag without its opening tag",
    "mismatched": "an agent is closed by another one's tag",
    "nested": "an agent is opened inside another one",
    "stray_text": "words between two agents",
    "unknown_agent": "a tag that is no agent's",
    "forged_observation": "the policy wrote `<observation>` itself",
    "too_long": "an agent's text has more characters than `longest_content`",
    "too_many": "more agents, or more faults, in one turn than `MOST_AGENTS`",
    "talked_on": "further agents in the same turn after a tool agent or the answer",
    "no_think": "an agent that no `think` comes before",
    "transition": "an agent that may not follow the one before",
    "no_replan": "a reflection said that something is poor, and no plan follows",
    "no_score": "a double check without a score",
    "not_accepted": "an answer although the double check's score was too low",
}
"""What can be wrong with a turn; the name of its failure is this name after `grammar_`."""

MOST_AGENTS = 100
"""Agents and faults of one turn; what follows them is not read."""
_TAG = re.compile(r"<(/?)(\w{1,64})>")
_BEGINNING = re.compile(r"(</?\w{0,64})?")
_SCORE = re.compile(r"score\D{0,40}(\d{1,3})", re.IGNORECASE)
_NUMBER = re.compile(r"\d{1,3}")


@dataclass(frozen=True)
class Segment:
    """One agent's part of a text, `<tag>content</tag>`; `stop` is the character after it."""

    tag: str
    content: str
    stop: int


@dataclass(frozen=True)
class Reading:
    """What a text says.

    Attributes:
        segments: its complete agents, in order.
        errors: (name of the violation, number of segments before it), in order.
        rest: what stands after the last agent and may be the beginning of the next one.
        open: whether the text ends inside an agent.
    """

    segments: tuple[Segment, ...]
    errors: tuple[tuple[str, int], ...]
    rest: str = ""
    open: bool = False


class Language:
    """Tags and transitions of one recipe.

    Attributes:
        tools: tags of the tool agents.
        agents: all tags that a policy may write, `think` and the tools included.
    """

    def __init__(
        self,
        tools: Iterable[str],
        grammar: Mapping[str, Iterable[str]] | None = None,
        think_first: bool = True,
        accept_score: int = 3,
        replan_word: str = "poor",
        longest_content: int = 20_000,
    ) -> None:
        """
        Args:
            tools: tags of the tool agents.
            grammar: what may follow an agent, where it differs from `FOLLOWERS`; `start` and `tool` are names for the
                beginning and for any tool agent. New names are new agents.
            think_first: whether every other agent needs a `think` before it.
            accept_score: a double check's score from which the answer, and only the answer, may follow.
            replan_word: a reflection with this word must be followed by a plan; empty: never.
            longest_content: characters of one agent's text.

        Raises:
            ValueError: for a name that cannot be a tag, or that is taken.
        """
        self.tools = tuple(tools)
        self.followers = FOLLOWERS | {agent: tuple(after) for agent, after in (grammar or {}).items()}
        self.think_first = think_first
        self.accept_score = accept_score
        self.replan_word = replan_word.lower()
        self.longest_content = longest_content
        named = dict.fromkeys(name for agent, after in self.followers.items() for name in (agent, *after))
        roles = [name for name in named if name not in (START, TOOL, THINK)]
        for name in (*roles, *self.tools):
            if not re.fullmatch(r"\w{1,64}", name) or name in (THINK, START, TOOL, OBSERVATION, UNREADABLE):
                raise ValueError(f"{name!r} cannot be the tag of an agent")
        if both := set(self.tools) & set(roles):
            raise ValueError(f"{sorted(both)[0]!r} is a tool and another agent; rename the tool")
        self.agents = (THINK, *roles, *self.tools)

    def role(self, tag: str) -> str:
        """The job of an agent: `tool` for every tool agent, else its tag."""
        return TOOL if tag in self.tools else tag

    def ends_turn(self, tag: str) -> bool:
        """Whether nothing may be said after this agent before the world has answered."""
        return tag in self.tools or tag == ANSWER

    def stops(self, every_agent: bool) -> tuple[str, ...]:
        """Stop strings of a turn: closing tags, and the beginning of a forged observation."""
        tags = [tag for tag in self.agents if every_agent or self.ends_turn(tag)]
        return (*(f"</{tag}>" for tag in tags), f"<{OBSERVATION}>")

    def read(self, text: str) -> Reading:
        """Find the agents of a text; one pass, whatever the text is."""
        return _Reader(self, text).read()


class _Reader:
    """One pass over a text, tag by tag."""

    def __init__(self, language: Language, text: str) -> None:
        self._language = language
        self._text = text
        self._open: str | None = None
        self._since = 0
        self._segments: list[Segment] = []
        self._errors: list[tuple[str, int]] = []

    def read(self) -> Reading:
        for tag in _TAG.finditer(self._text):
            if len(self._segments) + len(self._errors) >= MOST_AGENTS:
                self._error("too_many")
                return Reading(tuple(self._segments), tuple(self._errors))
            closing, name = bool(tag[1]), tag[2]
            if self._open is None:
                self._between(tag.start(), tag.end(), closing, name)
            else:
                self._inside(tag.start(), tag.end(), closing, name)
        rest = self._text[self._since :]
        if self._open is not None:
            self._error("unclosed")
        elif not _BEGINNING.fullmatch(rest.strip()):  # without space: two runs of it side by side are quadratic
            self._error("stray_text")
            rest = ""
        elif not self._segments and not self._errors and not rest.strip():
            self._error("no_agent")
        return Reading(tuple(self._segments), tuple(self._errors), rest, self._open is not None)

    def _between(self, start: int, stop: int, closing: bool, name: str) -> None:
        if self._text[self._since : start].strip():
            self._error("stray_text")
        self._since = stop
        if name == OBSERVATION:
            self._error("forged_observation")
        elif name not in self._language.agents:
            self._error("unknown_agent")
        elif closing:
            self._error("unopened")
        else:
            self._open = name

    def _inside(self, start: int, stop: int, closing: bool, name: str) -> None:
        if closing and name == self._open:
            if start - self._since > self._language.longest_content:
                self._error("too_long")
            else:
                self._segments.append(Segment(name, self._text[self._since : start].strip(), stop))
            self._open, self._since = None, stop
        elif name == OBSERVATION:
            self._error("forged_observation")
        elif name in self._language.agents:
            self._error("mismatched" if closing else "nested")

    def _error(self, name: str) -> None:
        self._errors.append((name, len(self._segments)))


class Walk:
    """Where a sequence stands in the grammar."""

    def __init__(self, language: Language) -> None:
        self._language = language
        self._thought = False
        self._allowed = language.followers[START]
        self._refused: dict[str, str] = {}

    def step(self, segment: Segment) -> str | None:
        """Go on to an agent, whether it may stand here or not.

        Returns:
            The name of the violation, if it is one.
        """
        role = self._language.role(segment.tag)
        if role == THINK:
            twice, self._thought = self._thought, True
            return "transition" if twice and self._language.think_first else None
        error = None
        if self._language.think_first and not self._thought:
            error = "no_think"
        elif role not in self._allowed:
            error = self._refused.get(role) or self._refused.get("*") or "transition"
        self._thought = False
        return self._leave(role, segment.content) or error

    def _leave(self, role: str, content: str) -> str | None:
        language = self._language
        self._allowed, self._refused = language.followers.get(role, ()), {}
        if role == "reflection" and language.replan_word and language.replan_word in content.lower():
            self._allowed, self._refused = ("plan",), {"*": "no_replan"}
        if role == "double_check":
            score = score_of(content)
            if score is not None and score >= language.accept_score:
                self._allowed = (ANSWER,)
                return None
            self._allowed = tuple(name for name in self._allowed if name != ANSWER)
            self._refused = {ANSWER: "not_accepted"}
            return "no_score" if score is None else None
        return None


def score_of(content: str) -> int | None:
    """The score in a double check: the number after the word, else the first number; None without one."""
    found = _SCORE.search(content)
    if found:
        return int(found[1])
    number = _NUMBER.search(content)
    return int(number[0]) if number else None
