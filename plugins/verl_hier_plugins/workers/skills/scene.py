"""One task with skills: it is solved, a skill is written down from it, and that one is verified."""

from __future__ import annotations

from collections.abc import Sequence

from verl_hier.environments import scoring
from verl_hier.environments.base import StepResult
from verl_hier.rollout import Context, EpisodeView, Turn
from verl_hier.rollout.prompts import fields, fill, observe
from verl_hier_plugins.workers.react import parse_action
from verl_hier_plugins.workers.skills.library import Library
from verl_hier_plugins.workers.skills.options import CONCLUDER, SOLVER, UNVERIFIED, VERIFIER, SkillsOptions
from verl_hier_plugins.workers.skills.texts import skill_of


class Scene:
    """One task: its solution, and what is concluded from it.

    Args:
        options: of the worker.
        episode: that plays it.
        first: the environment's answer to the reset.
    """

    def __init__(self, options: SkillsOptions, episode: EpisodeView, first: StepResult) -> None:
        self._options = options
        self._episode = episode
        self._first = self._last = first
        self._library = Library(options, episode)
        self._turns: list[Turn] = []
        self._said: list[str] = []
        self._read: list[str] = []

    @property
    def over(self) -> bool:
        """Whether the environment has ended the episode."""
        return self._last.done or self._last.truncated

    @property
    def acted(self) -> bool:
        """Whether the solver has taken a turn."""
        return bool(self._turns)

    @property
    def right(self) -> bool:
        """Whether the task is solved."""
        won = self._last.info.get("won")
        return self._last.done and (self._last.reward >= self._options.right if won is None else bool(won))

    async def solve(self) -> None:
        """Act until the environment ends the episode, with the skills that are found on the way."""
        options = self._options
        found = [] if options.read == "asked" else await self._find(self._asked(SOLVER, "prompt"))
        context = self._asked(SOLVER, "aided_prompt" if found else "prompt", skill="\n".join(found))
        self._said.append(self._last.text)
        while not self.over:
            self._read += found
            turn = await self._episode.generate(context)
            self._turns.append(turn)
            self._said.append(turn.text)
            query = self._query_in(turn.text)
            if query is None:
                found = await self._act(turn, context)
            else:
                self._mark(turn, True, None, self._read)
                found = await self._find(context, query)
                self._tell(context, "found_prompt", skill="\n".join(found))

    async def _act(self, turn: Turn, context: Context) -> list[str]:
        """Play the action of a turn, and show what comes of it; returns the skills that are found for that."""
        options = self._options
        action = parse_action(turn.text, options.action_tag)
        self._mark(turn, action is not None, None if action is not None else "no_action", self._read)
        self._last = await self._episode.act(action or "")
        self._said.append(self._last.text)
        found = await self._find(context) if options.read == "turn" and not self.over else []
        self._tell(context, "aided_observation_prompt" if found else "observation_prompt", skill="\n".join(found))
        return found

    def _query_in(self, text: str) -> str | None:
        """What a turn asks the library; None when it acts, or acts behind its question."""
        options = self._options
        asked = parse_action(text, options.search_tag) if options.read == "asked" else None
        acts = text.rfind(f"</{options.action_tag}>") if options.action_tag else -1
        return asked if asked is not None and text.rfind(f"</{options.search_tag}>") > acts else None

    async def _find(self, context: Context, query: str | None = None, role: str = SOLVER) -> list[str]:
        """The skills for a query, by default the recipe's; none for a role that may not read."""
        if role not in self._options.readers:
            return []
        known = fields(self._episode, self._last, self._first)
        asked = fill(self._options.query, known, "query") if query is None else query
        return await self._library.find(asked, context, self._read if role == SOLVER else ())

    async def conclude(self) -> None:
        """Write a skill down; with `verify` solve the task again with it and nothing else."""
        options, prompt = self._options, "conclude_prompt" if self.right else "caution_prompt"
        solution = " ".join(self._said if options.solution == "all" else [turn.text for turn in self._turns])
        empty = self._episode.context(CONCLUDER, system=options.concluder_system)
        known = "\n".join(await self._find(empty, role=CONCLUDER))
        cut = solution[: options.longest_solution]
        context = self._asked(CONCLUDER, prompt, {"solution": self._turns}, solution=cut, skill=known)
        written = await self._episode.generate(context, plan=self._turns[-1])
        answers = [*([self._answer(self._turns[-1])] if self.right else []), *self._library.answers]
        skill = skill_of(written.text, options, answers)
        self._mark(written, skill is not None, None if skill else "no_skill")
        if skill is None:
            return
        written.mark(new_skill=skill)
        if self.right and options.verify:
            await self._verify(written, skill)

    async def _verify(self, written: Turn, skill: str) -> None:
        verifier = self._asked(VERIFIER, "aided_prompt", {"skill": [written]}, skill=skill)
        turn = await self._episode.generate(verifier, plan=written)
        verified = scoring.exact_match(self._answer(turn), [self._answer(self._turns[-1])])
        self._mark(turn, True, None)
        for each in (written, turn):
            each.mark(verified=int(verified))

    def _answer(self, turn: Turn) -> str:
        """The answer of a turn, else its action; that of a solved task is the true one."""
        options = self._options
        return parse_action(turn.text, options.answer_tag) or parse_action(turn.text, options.action_tag) or turn.text

    @staticmethod
    def _mark(turn: Turn, formed: bool, failure: str | None, skills: Sequence[str] = ()) -> None:
        turn.mark(format=int(formed), skill_used=int(bool(skills)), verified=UNVERIFIED)
        if skills:
            turn.mark(skill="\n".join(skills))
        if failure is not None:
            turn.mark(valid=False, failure=failure)

    def _asked(self, role: str, prompt: str, of: dict[str, Sequence[Turn]] | None = None, **more: str) -> Context:
        """A new context of a role that has read a prompt."""
        options = self._options
        system = options.concluder_system if role == CONCLUDER else options.system
        context = self._episode.context(role, system=system)
        self._tell(context, prompt, of, **more)
        return context

    def _tell(self, context: Context, prompt: str, of: dict[str, Sequence[Turn]] | None = None, **more: str) -> None:
        known = fields(self._episode, self._last, self._first, **more)
        observe(context, self._options, prompt, known, of)
