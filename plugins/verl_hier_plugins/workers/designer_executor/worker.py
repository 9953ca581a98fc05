"""The designer speaks once and writes a script; the executors act it out, each call in the context that it says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from verl_hier.environments.base import StepResult
from verl_hier.rollout import Context, EpisodeView, Turn, Worker
from verl_hier.rollout.prompts import fields, fill, source_nodes
from verl_hier_plugins.workers.designer_executor.design import (
    ACT,
    Call,
    Choice,
    Design,
    DesignError,
    Leave,
    Loop,
    Role,
    Said,
    Statement,
)
from verl_hier_plugins.workers.designer_executor.options import DesignerExecutorOptions
from verl_hier_plugins.workers.designer_executor.script import read
from verl_hier_plugins.workers.react import parse_action

MESSAGE_CHARACTERS = 4000
"""What one role said reaches another one cut to so many characters."""
ACTION_CHARACTERS = 4000
"""A longer action is refused."""

GRAMMAR = """\
NAME = Role("its job", tools=["act"], context="own", turns=5)  # define a role
NAME                           # let it work; also NAME("what to do", OTHER), or: NAME what to do
TEXT = OTHER("what to do")     # keep what it says as TEXT
for i in range(3):             # repeat
    NAME
    if "ok" in OTHER: break    # leave the loop when OTHER said ok
if "yes" not in TEXT:          # decide
    NAME
else:
    stop                       # end the execution
Nothing else is allowed: no imports, no functions, no while."""
"""The language in the words of {grammar}; docs/methods/metaagent_x.md has it in full."""


class DesignerExecutor(Worker):
    """See `plugins/designer_executor`."""

    def __init__(self, options: DesignerExecutorOptions) -> None:
        self._options = options
        self._limits = options.limits()

    async def run(self, episode: EpisodeView) -> None:
        """See `Worker.run`."""
        options = self._options
        first = await episode.reset()
        designer = episode.context("designer", level=0)
        if options.designer_system:
            designer.observe(options.designer_system, role="system")
        designer.observe(fill(options.designer_prompt, self._known(episode, first), "designer_prompt"))
        turn = await episode.generate(designer)
        try:
            design = read(self._script(turn), self._limits)
        except DesignError as error:
            self._refuse(turn, error.name)
            return
        turn.mark(design_valid=1, design_steps=design.steps)
        turn.reward(options.design_reward)
        execution = _Execution(options, episode, design, turn, first)
        await execution.play()
        if execution.silent:
            turn.reward(-options.design_reward)
            self._refuse(turn, "empty")

    def _refuse(self, turn: Turn, failure: str) -> None:
        turn.mark(valid=False, design_valid=0, design_steps=0, failure=f"design_{failure}")
        turn.reward(-self._options.design_penalty)

    def _known(self, episode: EpisodeView, first: StepResult) -> dict[str, str]:
        roles = self._options.roles
        described = (f"{name}: {role.brief} (tools: {_listed(role.tools)})" for name, role in roles.items())
        return fields(
            episode,
            first,
            first,
            roles=_listed(roles),
            catalogue="\n".join(described),
            tools=_listed(dict.fromkeys((ACT, *self._options.tools))),
            grammar=GRAMMAR,
        )

    def _script(self, turn: Turn) -> str:
        if not turn.complete:
            raise DesignError("cut", "the designer's turn was cut by its token limit")
        script = parse_action(turn.text, self._options.design_tag)
        if script is None:
            raise DesignError("missing", f"there is no <{self._options.design_tag}>…</{self._options.design_tag}>")
        return script


class _Execution:
    """One execution of a sound design."""

    def __init__(
        self, options: DesignerExecutorOptions, episode: EpisodeView, design: Design, plan: Turn, first: StepResult
    ) -> None:
        self._options = options
        self._episode = episode
        self._design = design
        self._plan = plan
        self._first = self._step = first
        self._segment = -1
        self._contexts: dict[str, Context] = {}
        self._said: dict[str, str] = {}
        self._spoke: dict[str, Turn] = {}
        self._last: Turn | None = None
        self._accepted = False
        self._delivered: str | None = None

    async def play(self) -> None:
        """Follow the script to its end, the world's, or a delivery; then judge the final text."""
        await self._block(self._design.body)
        options, step = self._options, self._step
        if self._last is None or step.truncated:
            return
        if options.delivery_tag is None and step.done:
            self._hand_in(self._last, self._last.text)
        self._last.mark(delivered=int(self._delivered is not None), final_valid=int(self._final_is_valid()))
        if self._final_is_valid():
            self._last.reward(options.final_reward)

    @property
    def silent(self) -> bool:
        """Whether nobody was called, as when the only calls stand under a condition that does not hold."""
        return self._last is None

    @property
    def _over(self) -> bool:
        return self._step.done or self._step.truncated or self._delivered is not None

    def _hand_in(self, turn: Turn, work: str) -> None:
        self._delivered = work
        turn.reward(self._options.delivery_reward)

    def _final_is_valid(self) -> bool:
        if self._options.final_pattern is None:
            return self._accepted
        text = self._delivered if self._delivered is not None else self._last.text if self._last else ""
        return re.search(self._options.final_pattern, text[-MESSAGE_CHARACTERS:]) is not None

    # ---- the script --------------------------------------------------------------------------------------------------

    async def _block(self, body: Sequence[Statement]) -> Leave | None:
        """Follow statements in order; what is left, when something is."""
        for statement in body:
            if self._over:
                return Leave("execution")
            leave = await self._statement(statement)
            if leave is not None:
                return leave
        return None

    async def _statement(self, statement: Statement) -> Leave | None:
        if isinstance(statement, Leave):
            return statement
        if isinstance(statement, Call):
            await self._call(statement)
            return None
        if isinstance(statement, Choice):
            holds = statement.text.lower() in self._said.get(statement.name, "").lower()
            return await self._block(statement.then if holds != statement.negated else statement.otherwise)
        return await self._loop(statement)

    async def _loop(self, loop: Loop) -> Leave | None:
        for number in range(loop.times):
            self._said[loop.name] = str(number)
            self._spoke.pop(loop.name, None)
            leave = await self._block(loop.body)
            if leave is not None:
                return leave if leave.what == "execution" else None
        return None

    # ---- a call ------------------------------------------------------------------------------------------------------

    async def _call(self, call: Call) -> None:
        """The turns of one role: as many as it takes with tools, one without."""
        role = self._design.roles[call.role]
        self._segment += 1
        parts = (self._said.get(part.name, "") if isinstance(part, Said) else part for part in call.order)
        known = {
            "role": role.name,
            "brief": role.brief,
            "order": "".join(parts),
            "tools": _listed(role.tools),
            "design": self._plan.text,
        }
        context, words = self._context(role), self._words(call, role)
        self._tell(context, "executor_prompt", known, words)
        for _ in range((role.turns or self._options.turns) if role.tools else 1):
            turn = await self._episode.generate(context, segment=self._segment, plan=self._plan)
            turn.set_speaker("executor", 1, agent=role.name)  # a shared context belongs to whoever speaks
            self._last, self._accepted = turn, True
            self._said[role.name], self._spoke[role.name] = turn.text[:MESSAGE_CHARACTERS], turn
            if await self._hear(role, turn, context, known, words) or self._over:
                break
        if call.result is not None:
            self._said[call.result], self._spoke[call.result] = self._said[role.name], self._spoke[role.name]

    def _words(self, call: Call, role: Role) -> dict[str, list[Turn]]:
        """Whose words fill the fields of the templates: the script's are the designer's, a name stands for a role's."""
        named = [part.name for part in call.order if isinstance(part, Said)]
        written = any(not isinstance(part, Said) and part.strip() for part in call.order)
        order = [self._plan] * written + [self._spoke[name] for name in named if name in self._spoke]
        defined = [] if role.name in self._options.roles else [self._plan]
        return {"design": [self._plan], "order": order, "role": defined, "brief": defined, "tools": defined}

    def _tell(self, context: Context, option: str, known: dict[str, str], words: dict[str, list[Turn]]) -> None:
        template = getattr(self._options, option)
        filled = fill(template, fields(self._episode, self._step, self._first, **known), option)
        context.observe(filled, sources=source_nodes(template, words))

    def _context(self, role: Role) -> Context:
        name = {"own": "", "kept": role.name, "shared": "*"}[role.context]
        context = self._contexts.get(name) if name else None
        if context is None:
            context = self._episode.context("executor", level=1, agent=role.name)
            if self._options.executor_system:
                context.observe(self._options.executor_system, role="system")
            self._contexts[name] = context
        return context

    async def _hear(
        self, role: Role, turn: Turn, context: Context, known: dict[str, str], words: dict[str, list[Turn]]
    ) -> bool:
        """Do what a turn says; True when the call ends with it."""
        if await self._deliver(turn):
            return True
        if role.tools and self._options.done_word in turn.text:
            return True
        action = parse_action(turn.text, self._options.action_tag)
        if not role.tools and (action is None or self._options.action_tag is None):
            return True  # words to the others
        failure, refusal = self._refusal(role, action)
        if failure:
            self._fail(turn, failure)
            turn.reward(-self._options.tool_penalty)
            self._tell(context, "refusal_prompt", known | {"refusal": refusal}, words)
            return not role.tools
        self._step = await self._episode.act(action or "")
        self._accepted = self._step.valid
        self._tell(context, "observation_prompt", known, words)
        return False

    async def _deliver(self, turn: Turn) -> bool:
        """Whether the work was handed in by this turn."""
        tag = self._options.delivery_tag
        if tag is None or f"<{tag}>" not in turn.text:
            return False
        work = parse_action(turn.text, tag)
        if work is None:
            self._fail(turn, "unclosed_delivery")
            return False
        self._hand_in(turn, work)
        if len(work) > ACTION_CHARACTERS:
            self._fail(turn, "action_too_long")
        elif self._options.delivery_acts:
            self._step = await self._episode.act(work)
            self._accepted = self._step.valid
        return True

    def _refusal(self, role: Role, action: str | None) -> tuple[str, str]:
        """What is wrong with an action (a name that is counted, and words for the executor), or two empty texts."""
        if not action:
            return "no_action", "this is no action"
        if len(action) > ACTION_CHARACTERS:
            return "action_too_long", "this is too long for an action"
        tool = action.split(maxsplit=1)[0].lower()
        if ACT in role.tools or tool in role.tools:
            return "", ""
        if tool in self._options.tools or not role.tools:
            return "tool_in_wrong_role", f"{role.name} has no tool {tool!r}"
        return "unknown_tool", f"there is no tool {tool[:40]!r}"

    def _fail(self, turn: Turn, failure: str) -> None:
        turn.mark(valid=False, failure=failure)
        self._accepted = False


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
