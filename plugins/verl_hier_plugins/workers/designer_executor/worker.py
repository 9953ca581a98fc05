"""The designer writes a script or a graph in one turn; executors carry it out. A plan that failed can be revised."""

from __future__ import annotations

from dataclasses import dataclass

from verl_hier.environments.base import StepResult
from verl_hier.rollout import EpisodeView, Turn, Worker
from verl_hier.rollout.prompts import fields, observe
from verl_hier_plugins.workers.designer_executor.design import ACT, DesignError
from verl_hier_plugins.workers.designer_executor.execution import Execution, listed
from verl_hier_plugins.workers.designer_executor.graph import read_graph
from verl_hier_plugins.workers.designer_executor.options import DesignerExecutorOptions
from verl_hier_plugins.workers.designer_executor.script import read
from verl_hier_plugins.workers.react import parse_action

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
"""The language, as the template field {grammar} describes it; docs/methods/metaagent_x.md has it in full."""
GRAPH_GRAMMAR = """\
<agent><agent_id>A1</agent_id><agent_name>NAME</agent_name>
<required_arguments><agent_input>what to do, with ${A0} for what A0 has said; empty: the task</agent_input>
</required_arguments></agent>   # for each agent; a debate also has <debate_roles>["one", "another"]</debate_roles>
<edge><from>A0</from><to>A1</to></edge>   # one block with all pairs; what the only last agent says is the answer"""
"""The same for `language: graph`; docs/methods/mas_orchestra.md has it in full."""
LANGUAGES = {"script": (read, GRAMMAR), "graph": (read_graph, GRAPH_GRAMMAR)}
"""How the text of a design is read, and what its writer is told."""


@dataclass
class _Feedback:
    """What a designer who plans again is told.

    Attributes:
        step: the environment's last answer.
        segment: number of the last call.
        by: the turn whose words `result` or `refusal` has.
        result: what the last call has said.
        refusal: why the design was refused.
        over: whether nothing is left to plan.
    """

    step: StepResult
    segment: int = -1
    by: Turn | None = None
    result: str = ""
    refusal: str = ""
    over: bool = False


class DesignerExecutor(Worker):
    """See the module."""

    def __init__(self, options: DesignerExecutorOptions) -> None:
        self._options = options
        self._limits = options.limits()
        self._read, self._grammar = LANGUAGES[options.language]

    async def run(self, episode: EpisodeView) -> None:
        """See `Worker.run`."""
        options = self._options
        first = await episode.reset()
        designer = episode.context("designer", system=options.designer_system)
        observe(designer, options, "designer_prompt", self._known(episode, first, first))
        found, paid = _Feedback(first), False
        for number in range(options.plans):
            if number:
                known = self._known(episode, found.step, first, result=found.result, refusal=found.refusal)
                by = [] if found.by is None else [found.by]
                observe(designer, options, "feedback_prompt", known, {"result": by, "refusal": by})
            turn = await episode.generate(designer, segment=max(found.segment, 0))
            try:
                found = await self._carry_out(episode, turn, found, first, 0.0 if paid else options.design_reward)
                paid = True
            except DesignError as error:
                self._refuse(turn, error.name)
                found = _Feedback(found.step, found.segment, turn, refusal=str(error))
            if found.over:
                return

    async def _carry_out(
        self, episode: EpisodeView, turn: Turn, before: _Feedback, first: StepResult, reward: float
    ) -> _Feedback:
        """Execute a design, or give the designer's own answer.

        Raises:
            DesignError: for a design that cannot be executed.
        """
        options = self._options
        if not turn.complete:
            raise DesignError("cut", "the designer's turn was cut by its token limit")
        answer = self._direct(turn)
        if answer is not None:
            turn.mark(design_valid=1, design_steps=0)
            turn.reward(reward)
            step = await episode.act((options.answer_action or "{content}").format(content=answer), turn=turn)
            return _Feedback(step, before.segment, turn, answer, over=step.done or step.truncated)
        design = self._read(self._script(turn), self._limits)
        turn.mark(design_valid=1, design_steps=design.steps)
        turn.reward(reward)
        execution = Execution(options, episode, design, turn, first, before.step, before.segment)
        await execution.play()
        if execution.empty:
            turn.reward(-reward)
            raise DesignError("empty", "no condition held, so that no role was called")
        text, by = execution.result
        return _Feedback(execution.step, execution.segment, by, text, over=execution.over)

    def _direct(self, turn: Turn) -> str | None:
        """The designer's own answer, if this turn is one; a design counts before an answer beside it."""
        tag = self._options.direct_tag
        if tag is None or (self._options.language == "graph" and "<agent>" in turn.text.lower()):
            return None
        return parse_action(turn.text, tag) or None

    def _refuse(self, turn: Turn, failure: str) -> None:
        turn.mark(valid=False, design_valid=0, design_steps=0, failure=f"design_{failure}")
        turn.reward(-self._options.design_penalty)

    def _known(self, episode: EpisodeView, step: StepResult, first: StepResult, **more: str) -> dict[str, str]:
        roles = self._options.roles
        described = (f"{name}: {role.brief} (tools: {listed(role.tools)})" for name, role in roles.items())
        return fields(
            episode,
            step,
            first,
            roles=listed(roles),
            catalogue="\n".join(described),
            tools=listed(dict.fromkeys((ACT, *self._options.tools))),
            grammar=self._grammar,
            **more,
        )

    def _script(self, turn: Turn) -> str:
        script = parse_action(turn.text, self._options.design_tag)
        if script is None:
            raise DesignError("missing", f"there is no <{self._options.design_tag}>…</{self._options.design_tag}>")
        return script
