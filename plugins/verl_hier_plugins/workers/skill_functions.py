"""Functions as skills: what is defined for one question of a chain may be called in the next; docs/methods/sage.md.

Source: SAGE, arXiv 2512.17102 (paper).
"""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass
from typing import Annotated

from verl_hier.environments.action_parsing import parse_verb
from verl_hier.environments.base import StepResult
from verl_hier.errors import RecipeError
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import Count, NonNegative, Template
from verl_hier.host.specs import WorkerSpec
from verl_hier.rollout import Context, EpisodeView, Turn, Worker
from verl_hier.rollout.prompts import fields, observe

AGENT = "agent"
VERBS = ("python", "answer")
LONGEST_SCRIPT = 20_000
"""Characters of a script that is read; the tool refuses longer ones as well."""
MOST_SOURCES = 50
"""Questions of a chain whose functions can be named in a column: a number has 53 bits for them."""


@dataclass(frozen=True)
class SkillFunctionsOptions:
    """Options of `skill_functions`.

    Templates may use {instruction}, {observation}, {admissible} and whatever the environment puts into the `info` of
    its reset; {asked} is the question that is asked now, and {skills} are the functions that earlier ones have left.
    """

    prompt: Annotated[str, Template("asked", "skills")] = "skills: {skills} | question: {asked}"
    """What the agent reads first for each question, in a new context."""
    observation_prompt: str = "{observation}"
    """What it reads after a script."""
    system: str | None = None
    """System message, for chat models."""
    none: str = "none"
    """{skills} where there are none yet."""
    skills: Count = 64
    """Functions that are kept; the paper's library has no limit."""
    longest: Count = 2000
    """Characters of a function that is kept, with the imports of its script."""
    format_penalty: NonNegative = 0.0
    """Taken from the reward of a turn with neither a script nor an answer; 1 in the paper."""


@dataclass(frozen=True)
class Script:
    """What a script defines and calls, by its syntax alone.

    Attributes:
        functions: name to text of the functions that it defines, each with the imports of the script.
        calls: names that are called anywhere in it.
        called_by: the names that each of the functions calls.
    """

    functions: dict[str, str]
    calls: frozenset[str]
    called_by: dict[str, frozenset[str]]


NOTHING = Script({}, frozenset(), {})


def read(code: str) -> Script:
    """A script's functions and calls; nothing of a script that is too long or no Python. It is not run."""
    if len(code) > LONGEST_SCRIPT:
        return NOTHING
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
        imports = [ast.unparse(each) for each in tree.body if isinstance(each, ast.Import | ast.ImportFrom)]
        before = "".join(f"{line}\n" for line in imports)
        defined = [each for each in tree.body if isinstance(each, ast.FunctionDef) and not each.decorator_list]
        return Script(
            {each.name: before + ast.unparse(each) for each in defined},
            _calls(tree),
            {each.name: _calls(each) for each in defined},
        )
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return NOTHING


def _calls(tree: ast.AST) -> frozenset[str]:
    called = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return frozenset(each.id for each in called if isinstance(each, ast.Name))


@dataclass(frozen=True)
class Skill:
    """A function that is kept: its text, what it calls, and the question and turn that it comes from."""

    text: str
    calls: frozenset[str]
    question: int
    turn: Turn


class SkillFunctions(Worker):
    """See the module. The library begins empty in every episode."""

    def __init__(self, options: SkillFunctionsOptions) -> None:
        self._options = options

    async def run(self, episode: EpisodeView) -> None:
        """See `Worker.run`."""
        first = await episode.reset()
        fit(self._options, first)
        await _Chain(self._options, episode, first).play()


def fit(options: SkillFunctionsOptions, first: StepResult) -> None:
    """Refuse a world without chains of questions, by its answer to a reset.

    Raises:
        RecipeError: when it does not say which question is asked.
    """
    if not isinstance(first.info.get("asked"), str) or not isinstance(first.info.get("scores"), list):
        raise RecipeError(
            "hier.environment.chain: skill_functions needs several questions in an episode, and this environment asks "
            "one; take python_tool with `chain: 2`, or another worker."
        )


class _Chain:
    """One episode: its questions one after the other, and the functions that they leave."""

    def __init__(self, options: SkillFunctionsOptions, episode: EpisodeView, first: StepResult) -> None:
        self._options = options
        self._episode = episode
        self._first = self._last = first
        self._kept: dict[str, Skill] = {}

    @property
    def _over(self) -> bool:
        return self._last.done or self._last.truncated

    @property
    def _number(self) -> int:
        """Which question is asked now."""
        return len(self._last.info["scores"])

    async def play(self) -> None:
        """Ask every question."""
        while not self._over:
            await self._question(self._number)

    async def _question(self, number: int) -> None:
        """One question, until the next one is asked; then what it and earlier ones have earned is noted."""
        context = self._episode.context(AGENT, system=self._options.system)
        self._tell(context, "prompt")
        last, used = None, dict[str, Skill]()
        while not self._over and self._number == number:
            last = await self._episode.generate(context, segment=number)
            used |= await self._act(last, number)
            if not self._over and self._number == number:
                self._tell(context, "observation_prompt")
        scores = self._last.info["scores"]
        if last is not None and len(scores) > number and scores[number] >= 1.0 - 1e-9:
            # Noted with the turn at which it is known: other episodes may share the earlier ones.
            sources = {skill.question for skill in used.values() if skill.question < MOST_SOURCES}
            last.mark(question_solved=1, skill_sources=sum(1 << question for question in sources))

    async def _act(self, turn: Turn, number: int) -> dict[str, Skill]:
        """Do what a turn says, with the functions that it calls in front; returns those of earlier questions."""
        verb, body = parse_verb(turn.text, VERBS) or ("", "")
        script = read(body) if verb == "python" else NOTHING
        needed = self._needed(script)
        earlier = {name: skill for name, skill in needed.items() if skill.question < number}
        formed = bool(verb and body)
        turn.mark(format=int(formed), skill_made=0, skill_used=int(bool(earlier)), skill_sources=0, question_solved=0)
        if not formed:
            turn.mark(valid=False, failure="no_action")
            turn.reward(-self._options.format_penalty)
        before = "\n".join(skill.text for skill in needed.values())
        action = f"<python>{before}\n{body}</python>" if needed else turn.text
        self._last = await self._episode.act(action)
        if self._last.info.get("tool") == "ok":
            turn.mark(skill_made=self._keep(script, number, turn))
        return earlier

    def _needed(self, script: Script) -> dict[str, Skill]:
        """The kept functions that a script calls without defining them, and those that these call, as they were
        kept."""
        wanted, seen = [script.calls - script.functions.keys()], set[str]()
        while wanted:
            for name in wanted.pop() - seen:
                seen.add(name)
                if name in self._kept:
                    wanted.append(self._kept[name].calls - script.functions.keys())
        return {name: skill for name, skill in self._kept.items() if name in seen}

    def _keep(self, script: Script, number: int, turn: Turn) -> int:
        """Keep the functions of a script that has run; returns how many. A name's newest function is the one."""
        made = 0
        for name, text in script.functions.items():
            if len(text) <= self._options.longest and (name in self._kept or len(self._kept) < self._options.skills):
                self._kept[name] = Skill(text, script.called_by[name], number, turn)
                made += 1
        return made

    def _tell(self, context: Context, prompt: str) -> None:
        skills = "\n".join(skill.text for skill in self._kept.values()) or self._options.none
        known = fields(self._episode, self._last, self._first, asked=str(self._last.info["asked"]), skills=skills)
        observe(context, self._options, prompt, known, {"skills": [skill.turn for skill in self._kept.values()]})


@hookimpl
def hier_workers() -> WorkerSpec:
    return WorkerSpec(
        name="skill_functions",
        factory=SkillFunctions,
        options=SkillFunctionsOptions,
        summary="an agent answers a chain of questions, and may call functions that it has defined for earlier ones",
        source="SAGE, arXiv 2512.17102",
        roles={AGENT: 0},
        provides=("format", "skill_made", "skill_used", "skill_sources", "question_solved"),
        fits=fit,
    )
