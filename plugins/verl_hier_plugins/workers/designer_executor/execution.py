"""One execution of a design: each call in the context that the design names, or as a block."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from verl_hier.environments.base import StepResult
from verl_hier.rollout import Context, EpisodeView, Turn
from verl_hier.rollout.prompts import fields, observe
from verl_hier_plugins.workers.designer_executor.blocks import BLOCKS, MESSAGE_CHARACTERS, Asking, Said
from verl_hier_plugins.workers.designer_executor.design import (
    ACT,
    Call,
    Choice,
    Design,
    Leave,
    Loop,
    Role,
    Statement,
    TextOf,
)
from verl_hier_plugins.workers.designer_executor.options import DesignerExecutorOptions
from verl_hier_plugins.workers.react import parse_action

ORDER_CHARACTERS = 16_384
"""An order is cut to so many characters: a script can name a text in it thousands of times."""
ACTION_CHARACTERS = 4000
"""A longer action is refused."""


def listed(names: Iterable[str]) -> str:
    """Names as prompts have them."""
    return ", ".join(names) or "none"


class Execution:
    """One execution of a valid design."""

    def __init__(
        self,
        options: DesignerExecutorOptions,
        episode: EpisodeView,
        design: Design,
        plan: Turn,
        first: StepResult,
        step: StepResult | None = None,
        segment: int = -1,
    ) -> None:
        """
        Args:
            options: of the worker.
            episode: where it is executed.
            design: what is executed.
            plan: the designer's turn.
            first: the environment's answer to the reset.
            step: its last answer, where other designs were executed before.
            segment: number of their last call.
        """
        self._options = options
        self._episode = episode
        self._design = design
        self._plan = plan
        self._first, self._step = first, step or first
        self._segment = segment
        self._contexts: dict[str, Context] = {}
        self._texts: dict[str, str] = {}
        self._turns: dict[str, Turn] = {}
        self._result: Said | None = None
        self._last: Turn | None = None
        self._accepted = False
        self._delivered: str | None = None

    async def play(self) -> None:
        """Follow the script until it, the environment or a delivery ends the execution; then judge the final text."""
        await self._block(self._design.body)
        options = self._options
        if self._last is None:
            return
        if options.answer_action is not None and self._result is not None and not self.over:
            result = self._result
            self._step = await self._episode.act(options.answer_action.format(content=result.text), turn=result.turn)
            self._accepted = self._step.valid
        step = self._step
        if step.truncated:
            return
        if options.delivery_tag is None and step.done:
            self._hand_in(self._last, self._last.text)
        self._last.mark(delivered=int(self._delivered is not None), final_valid=int(self._final_is_valid()))
        if self._final_is_valid():
            self._last.reward(options.final_reward)

    @property
    def empty(self) -> bool:
        """Whether no role was called, as when all calls stand under a condition that does not hold."""
        return self._last is None

    @property
    def step(self) -> StepResult:
        """The environment's last answer."""
        return self._step

    @property
    def segment(self) -> int:
        """Number of the last call."""
        return self._segment

    @property
    def result(self) -> tuple[str, Turn | None]:
        """What the last call has said, and its turn."""
        return ("", None) if self._result is None else (self._result.text, self._result.turn)

    @property
    def over(self) -> bool:
        """Whether the environment or a delivery has ended it."""
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
        """Follow statements in order; returns the `Leave` statement that ended them, if any."""
        for statement in body:
            if self.over:
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
            holds = statement.text.lower() in self._texts.get(statement.name, "").lower()
            return await self._block(statement.then if holds != statement.negated else statement.otherwise)
        return await self._loop(statement)

    async def _loop(self, loop: Loop) -> Leave | None:
        for number in range(loop.times):
            self._texts[loop.name] = str(number)
            self._turns.pop(loop.name, None)
            leave = await self._block(loop.body)
            if leave is not None:
                return leave if leave.what == "execution" else None
        return None

    # ---- a call ------------------------------------------------------------------------------------------------------

    async def _call(self, call: Call) -> None:
        """What is done for one call, and whose words it is."""
        role = self._design.roles[call.role]
        self._segment += 1
        known, turns = self._order(call, role), self._sources(call, role)
        if role.block == "call":
            await self._work(role, known, turns)
        else:
            given = fields(self._episode, self._step, self._first, **known)
            asking = Asking(
                self._options, self._episode, role.name, given, turns, self._plan, self._segment, call.sides
            )
            self._result = said = await BLOCKS[role.block](asking)
            self._last, self._accepted = said.turn, said.sound
            self._texts[role.name], self._turns[role.name] = said.text, said.turn
        if call.result is not None:
            self._texts[call.result], self._turns[call.result] = self._texts[role.name], self._turns[role.name]

    def _order(self, call: Call, role: Role) -> dict[str, str]:
        """What the templates may use."""
        order, room = [], ORDER_CHARACTERS
        for part in call.order:
            order.append((self._texts.get(part.name, "") if isinstance(part, TextOf) else part)[:room])
            room -= len(order[-1])
        return {
            "role": role.name,
            "brief": role.brief,
            "order": "".join(order),
            "tools": listed(role.tools),
            "design": self._plan.text,
        }

    async def _work(self, role: Role, known: dict[str, str], turns: dict[str, list[Turn]]) -> None:
        """The turns of one agent: several with tools, one without."""
        context = self._context(role)
        self._observe(context, "executor_prompt", known, turns)
        for _ in range((role.turns or self._options.turns) if role.tools else 1):
            turn = await self._episode.generate(context, segment=self._segment, plan=self._plan)
            turn.set_speaker("executor", agent=role.name)  # a shared context has no agent of its own
            self._last, self._accepted = turn, True
            said = Said(role.name, turn.text[:MESSAGE_CHARACTERS], turn, True)
            if self._options.answer_tag is not None and (not role.tools or self._answers(turn)):
                said = Said.of(self._options, role.name, turn)
                self._accepted = said.sound
            self._result, self._texts[role.name], self._turns[role.name] = said, said.text, turn
            if await self._follow(role, turn, context, known, turns) or self.over:
                break

    def _sources(self, call: Call, role: Role) -> dict[str, list[Turn]]:
        """The turns that fill the fields of the templates: text of the script is the designer's, a name is a role's."""
        named = [part.name for part in call.order if isinstance(part, TextOf)]
        written = any(not isinstance(part, TextOf) and part.strip() for part in call.order)
        order = [self._plan] * written + [self._turns[name] for name in named if name in self._turns]
        defined = [] if role.name in self._options.roles else [self._plan]
        return {"design": [self._plan], "order": order, "role": defined, "brief": defined, "tools": defined}

    def _observe(self, context: Context, option: str, known: dict[str, str], turns: dict[str, list[Turn]]) -> None:
        observe(context, self._options, option, fields(self._episode, self._step, self._first, **known), turns)

    def _context(self, role: Role) -> Context:
        name = {"own": "", "kept": role.name, "shared": "*"}[role.context]
        context = self._contexts.get(name) if name else None
        if context is None:
            system = self._options.executor_system
            context = self._contexts[name] = self._episode.context("executor", agent=role.name, system=system)
        return context

    async def _follow(
        self, role: Role, turn: Turn, context: Context, known: dict[str, str], turns: dict[str, list[Turn]]
    ) -> bool:
        """Carry out a turn; True when the call ends with it."""
        if await self._deliver(turn):
            return True
        if role.tools and (self._options.done_word in turn.text or self._answers(turn)):
            return True
        action = parse_action(turn.text, self._options.action_tag)
        if not role.tools and (action is None or self._options.action_tag is None):
            return True  # text for the other roles
        failure, refusal = self._refusal(role, action)
        if failure:
            self._fail(turn, failure)
            turn.reward(-self._options.tool_penalty)
            self._observe(context, "refusal_prompt", known | {"refusal": refusal}, turns)
            return not role.tools
        self._step = await self._episode.act(action or "")
        self._accepted = self._step.valid
        self._observe(context, "observation_prompt", known, turns)
        return False

    def _answers(self, turn: Turn) -> bool:
        """Whether a turn has an answer for others, which ends the call."""
        tag = self._options.answer_tag
        return tag is not None and bool(parse_action(turn.text, tag))

    async def _deliver(self, turn: Turn) -> bool:
        """Whether this turn hands the work in."""
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
        """Why an action is refused (a name that is counted, and a text for the executor), or two empty strings."""
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
