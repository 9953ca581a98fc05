"""The `proposer_solver_judge` worker: a question, its answers side by side, what judges say of both, and rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from verl_hier.environments import scoring
from verl_hier.environments.base import StepResult
from verl_hier.rollout import Context, EpisodeView, Turn, Worker
from verl_hier.rollout.policy import DEFAULT_POLICY
from verl_hier.rollout.prompts import fields, observe
from verl_hier_plugins.workers.proposer_solver_judge import rewards
from verl_hier_plugins.workers.proposer_solver_judge.guards import fault_of, score_of
from verl_hier_plugins.workers.proposer_solver_judge.options import (
    EVALUATOR,
    JUDGE,
    PROPOSER,
    SOLVER,
    VERIFIER,
    ProposerSolverJudgeOptions,
)
from verl_hier_plugins.workers.react import parse_action


class ProposerSolverJudge(Worker):
    """See the module. In evaluations a solver answers the task of the environment, and nobody else speaks."""

    def __init__(self, options: ProposerSolverJudgeOptions) -> None:
        self._options = options

    async def run(self, episode: EpisodeView) -> None:
        """See `Worker.run`."""
        scene = _Scene(self._options, episode, await episode.reset())
        if episode.validates:
            await scene.answer_task()
        else:
            await scene.play()


@dataclass
class _Try:
    """One solver's work on a question: its context, its turn, its answer, and what an evaluator said of it."""

    context: Context
    turn: Turn | None = None
    answer: str = ""
    formed: bool = False
    critique: str = ""
    critic: Turn | None = None


class _Scene:
    """One question of one episode."""

    def __init__(self, options: ProposerSolverJudgeOptions, episode: EpisodeView, first: StepResult) -> None:
        self._options = options
        self._episode = episode
        self._first = self._last = first
        self._evidence = ""
        self._proposal: Turn | None = None
        self._segment = 0
        self._judged = JUDGE in self._options.levels()

    @property
    def _over(self) -> bool:
        return self._last.done or self._last.truncated

    async def play(self) -> None:
        """Question, answers, verdicts, rewards."""
        question = self._episode.instruction
        if self._options.questions == "proposer":
            proposed = await self._propose()
            if proposed is None or self._over:
                self._end()
                return
            question = proposed
        quality = await self._quality(question)
        scores = await self._rounds(question)
        if self._proposal is not None:
            made = rewards.Question(True, quality, tuple(scores))
            amount = rewards.proposer_reward(self._options.reward, made, self._options.threshold)
            self._episode.pay(self._proposal, amount)
        self._end()

    def _end(self) -> None:
        if not self._over:
            self._episode.finish()

    async def answer_task(self) -> None:
        """The environment's own task, by one solver."""
        context = self._context(SOLVER)
        self._tell(context, "solver_prompt", question=self._episode.instruction, said="")
        turn, answer = await self._work(context, self._options.answer_tag)
        turn.mark(format=int(answer is not None))
        if not self._over:
            await self._act(self._options.answer_action.format(content=answer or ""))

    # ---- the question ------------------------------------------------------------------------------------------------

    async def _propose(self) -> str | None:
        """The proposed question; None when it is not sound."""
        options, known = self._options, self._episode.told.get("questions")
        reference = self._episode.rng.choice(known) if isinstance(known, list) and known else ""
        context = self._context(PROPOSER)
        self._tell(context, "proposer_prompt", reference=reference, truth="; ".join(self._truths()))
        turn, question = await self._work(context, options.question_tag)
        fault = fault_of(question, reference, options.shortest, options.longest, options.similar)
        self._proposal = turn
        turn.mark(format=int(fault is None))
        if fault is not None or question is None:
            turn.mark(valid=False, failure=fault)
            return None
        turn.mark(question=question)
        if options.verify_prompt is None or self._over or await self._verified(question):
            return question
        return None

    async def _verified(self, question: str) -> bool:
        """Whether the question can be answered from what the proposer has read."""
        context = self._context(VERIFIER)
        self._tell(context, "verify_prompt", question=question, evidence=self._evidence)
        turn = await self._speak(context)
        answer = parse_action(turn.text, self._options.answer_tag)
        right = answer is not None and self._matches(answer)
        turn.mark(format=int(answer is not None))
        if not right:
            turn.mark(valid=False, failure="question_not_verified")
        return right

    async def _quality(self, question: str) -> float:
        """What a judge says of a proposed question; 1 where nobody is asked."""
        if self._proposal is None or not self._options.judge_questions:
            return 1.0
        context = self._context(JUDGE)
        self._tell(context, "question_prompt", question=question, said="")
        return rewards.mean_score([await self._judge(context, self._proposal)])

    # ---- answers -----------------------------------------------------------------------------------------------------

    async def _rounds(self, question: str) -> list[float]:
        """The scores of all answers, round by round."""
        tries = [_Try(self._context(SOLVER, f"{SOLVER} {number + 1}")) for number in range(self._options.solvers)]
        scores: list[float] = []
        for number in range(self._options.rounds):
            self._segment = number
            said = self._said(tries)
            for each in tries:
                if number:
                    self._tell(each.context, "later_prompt", question=question, said=said)
                else:
                    self._tell(each.context, "solver_prompt", question=question, said="")
            await self._solve(tries)
            if self._over:
                break
            await self._evaluate(question, tries)
            scores += await self._score(question, tries)
        return scores

    async def _solve(self, tries: Sequence[_Try]) -> None:
        if self._options.tool is None:
            self._episode.expect(dict.fromkeys((each.context for each in tries), None))
        for each in tries:
            each.turn, answer = await self._work(each.context, self._options.answer_tag)
            each.answer, each.formed = (answer or "")[: self._options.longest], answer is not None
            each.turn.mark(format=int(each.formed))
            if self._options.answers_by == "match":
                each.turn.mark(judge=self._matched(each))
            if answer is None:
                each.turn.mark(valid=False, failure="no_answer")
            if self._over:
                return

    async def _evaluate(self, question: str, tries: Sequence[_Try]) -> None:
        """Let an evaluator criticise each answer."""
        if not self._options.evaluator:
            return
        contexts = [self._context(EVALUATOR, f"{EVALUATOR} {number + 1}") for number in range(len(tries))]
        for each, context in zip(tries, contexts, strict=True):
            self._tell(context, "evaluator_prompt", [each], question=question, answer=each.answer, critique="")
        self._episode.expect(dict.fromkeys(contexts, None))
        for each, context in zip(tries, contexts, strict=True):
            each.critic = await self._speak(context, each.turn)
            each.critique = each.critic.text[: self._options.longest]
            each.critic.mark(format=int(bool(each.critique.strip())))

    async def _score(self, question: str, tries: Sequence[_Try]) -> list[float]:
        """The score of each answer; pays who made it and who criticised it."""
        options, verdicts = self._options, list[float]()
        if options.answers_by == "match":
            verdicts += [self._matched(each) for each in tries]
        else:
            contexts = [self._context(JUDGE) for _ in tries]
            for each, context in zip(tries, contexts, strict=True):
                known = {"question": question, "answer": each.answer, "critique": each.critique}
                self._tell(context, "judge_prompt", [each], **known)
            self._episode.expect(dict.fromkeys(contexts, None))
            for each, context in zip(tries, contexts, strict=True):
                verdicts.append(rewards.mean_score([await self._judge(context, each.turn)]))
        for each, score in zip(tries, verdicts, strict=True):
            if each.turn is not None:
                self._episode.pay(each.turn, rewards.solver_reward(options.reward, score, each.formed))
            if each.critic is not None:
                self._episode.pay(each.critic, rewards.evaluator_reward(options.reward, score))
        return verdicts

    async def _judge(self, context: Context, of: Turn | None) -> float | None:
        """The verdict on a turn, which is the plan of the judge's."""
        options = self._options
        turn = await self._speak(context, of)
        score = score_of(parse_action(turn.text, options.score_tag), options.lowest, options.highest)
        turn.mark(format=int(score is not None), judge=0.0 if score is None else score)
        if score is None:
            turn.mark(valid=False, failure="no_verdict")
        turn.reward(rewards.judge_reward(options.reward, score is not None, options.unparsable))
        return score

    # ---- turns -------------------------------------------------------------------------------------------------------

    async def _work(self, context: Context, tag: str) -> tuple[Turn, str | None]:
        """Turns of one agent, with actions in between, up to one with the tag or its last; its text inside the tag."""
        tool = self._options.tool
        for left in range(self._options.tool_turns - 1 if tool else 0, -1, -1):
            turn = await self._speak(context, self._proposal)
            content, action = parse_action(turn.text, tag), turn.text.strip()
            # A tag may follow a thought; a word begins the turn.
            called = tool is not None and (tool in action if tool.startswith("<") else action.startswith(tool))
            acts = called and content is None
            if not acts or not left:
                return turn, content
            turn.mark(format=1)
            await self._act(action)
            if self._over:
                return turn, None
            if context.role == PROPOSER:
                self._evidence = f"{self._evidence}\n{self._last.text}".strip()
            context.observe(self._last.text)
        raise AssertionError("an agent has one turn at least")

    async def _speak(self, context: Context, of: Turn | None = None) -> Turn:
        turn = await self._episode.generate(context, segment=self._segment, plan=of)
        if self._judged:
            # In a step without one sound question no judge speaks, and estimators read its column all the same.
            turn.mark(judge=0.0)
        return turn

    async def _act(self, action: str) -> None:
        self._last = await self._episode.act(action)

    def _context(self, role: str, agent: str | None = None) -> Context:
        options = self._options
        policy = options.policies.get(role, DEFAULT_POLICY)
        return self._episode.context(role, agent=agent, system=options.systems.get(role), policy=policy)

    def _tell(self, context: Context, prompt: str, of: Sequence[_Try] = (), **more: str) -> None:
        known = fields(self._episode, self._last, self._first, **more)
        asked = [self._proposal] if self._proposal is not None else []
        turns: Mapping[str, list[Turn]] = {
            "question": asked,
            "answer": [each.turn for each in of if each.turn is not None],
            "critique": [each.critic for each in of if each.critic is not None],
        }
        observe(context, self._options, prompt, known, turns)

    def _said(self, tries: Sequence[_Try]) -> str:
        """What was answered and criticised in the round before."""
        lines = (f"{each.context.agent}: {each.answer} {each.critique}".strip() for each in tries if each.turn)
        return " | ".join(lines)

    def _truths(self) -> list[str]:
        truth = self._episode.task.get(self._options.truth, [])
        return [str(each) for each in truth] if isinstance(truth, list | tuple) else [str(truth)]

    def _matched(self, each: _Try) -> float:
        return float(each.formed and self._matches(each.answer))

    def _matches(self, answer: str) -> bool:
        return scoring.exact_match(answer, self._truths())
