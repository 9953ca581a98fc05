"""What a worker has of its episode: the environment, the policy, its own random numbers, and the turns it has made."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile
from typing import Any

from verl_hier.environments.base import StepResult
from verl_hier.environments.pool import EnvironmentFailure
from verl_hier.environments.reward_values import reward_of
from verl_hier.environments.wire import to_step
from verl_hier.errors import RolloutError
from verl_hier.graph.nodes import CONTINUED, Node
from verl_hier.rollout.ahead import Expected
from verl_hier.rollout.context import Context, rendered
from verl_hier.rollout.end_reason import EndIgnored, EndReason, EpisodeOver
from verl_hier.rollout.episode_state import EpisodeState, TurnRequest
from verl_hier.rollout.off_loop import off_loop
from verl_hier.rollout.policy import DEFAULT_POLICY, policy_of
from verl_hier.rollout.recorded_world import keep_answer, keep_reset, kept_answer
from verl_hier.rollout.replay_log import Event
from verl_hier.rollout.seeds import generator
from verl_hier.rollout.turn_view import Turn
from verl_hier.rollout.turns import restored_node, sample_node
from verl_hier.rollout.unfinished import sampled_earlier
from verl_hier.text import without_halves


class EpisodeView:
    """One episode as its worker sees it.

    Up to the fork of a forked episode the answers are those that its source was given; nothing happens again.

    Attributes:
        task: the task of the environment.
        rng: the worker's own random generator.
    """

    def __init__(self, state: EpisodeState) -> None:
        self._state = state
        self._rollout = state.rollout
        self._live = False  # whether the last call happened now, and not in the replay of a fork's past
        self.task = state.rollout.task
        self.rng = generator(state.rollout.seed or 0, state.worker_seed_name, "worker")

    @property
    def instruction(self) -> str:
        """The task in words."""
        return str(self.task.get("instruction", ""))

    def learns(self, level: int) -> bool:
        """Whether the turns of a level are trained in this step; in evaluation those of all are. A worker may ask its
        agents for something else where they learn by themselves. Stored with the task, so that forks and replays hear
        the same."""
        levels = self._rollout.request.levels
        return levels is None or level in levels

    @property
    def stand_ins(self) -> Mapping[str, str]:
        """Roles that the sampler leaves out of this episode, to see what they contribute: they take no turn, and where
        others would read one of their messages they read this text, or nothing where it is empty."""
        return self._state.stand_ins

    @property
    def speakers(self) -> tuple[str, ...]:
        """The role that the sampler wants to speak alone in each segment, from the first one on, where agents are arms
        of a search; behind its end the worker decides. Workers that do not know it decide always."""
        return self._state.speakers

    @property
    def validates(self) -> bool:
        """Whether the episode is an evaluation. Stored with the task, as `learns` is."""
        return self._rollout.request.validate

    @property
    def told(self) -> Mapping[str, Any]:
        """What the schedule has told the workers of this task; see `Schedule.told`. Stored with the task."""
        return self._rollout.request.told

    @property
    def longest_quote(self) -> int:
        """Characters of a text that a worker puts into later prompts; see `Limits`."""
        return self._rollout.limits.quote_characters

    def context(
        self,
        role: str,
        level: int | None = None,
        agent: str | None = None,
        *,
        system: str | None = None,
        policy: str = DEFAULT_POLICY,
        sampling: Mapping[str, float] | None = None,
    ) -> Context:
        """A new context of an agent.

        Args:
            role: name of its job, one of the roles that the worker's spec declares.
            level: its level, which the spec decides; it may be left out, and another one is refused.
            agent: name of the holder of the role, where several hold it; by default the role's name.
            system: its system message; None or empty for none.
            policy: name of the policy that generates its turns; by default that of the role in the recipe.
            sampling: `temperature`, `top_p` and `top_k` of its turns, where they are not the recipe's.

        Raises:
            PluginError: when the worker's spec does not declare the role, or declares it on another level.
        """
        setup = self._rollout.setup
        policy = policy_of(setup.assigned, role, policy)
        context = Context(setup.renderer_of(policy), role, self._rollout.level(role, level), agent, policy, sampling)
        return context.observe(system, role="system") if system else context

    async def reset(self) -> StepResult:
        """Reset the environment to the task; call it once, first.

        Raises:
            EpisodeOver: when the environment failed; the episode is then lost and counted.
        """
        state = self._state
        with self._until_over():
            if state.replay_log.goes_on:
                return self._answered(None, state.replay_log.step(None))
            if state.earlier_reset is not None:
                step = to_step(state.earlier_reset)
            else:
                try:
                    state.handle, step = await self._rollout.open_environment()
                except EnvironmentFailure as error:
                    raise state.fail(error) from error
            if self._rollout.keeps_answers:
                keep_reset(self._rollout.graph, step)
            return self._answered(None, step, live=True)

    async def act(
        self, action: str, turn: Turn | None = None, *, worth: Callable[[StepResult], float] | None = None
    ) -> StepResult:
        """Apply an action. Its reward and validity are those of the turn that wrote it; the end is the last turn's.

        Args:
            action: it.
            turn: the turn of this episode that wrote the action; by default the last one. Name it wherever others have
                spoken since, such as a critic that has let a draft pass: the critic would be paid otherwise. Where
                other episodes share the turn by now, the last turn has the reward, as with `pay`.
            worth: the reward that the turn gets for an answer, where it is not the answer's own: of a move that no
                agent has made, for instance, nothing.

        Raises:
            EpisodeOver: when the budget has no further call, or the environment failed; the episode is then lost and
                counted.
            RolloutError: when `turn` is no turn of this episode.
            TypeError, ValueError: when what `worth` returns is no reward, see `reward_of`.
        """
        state, action = self._state, without_halves(action)
        writer = state.last_node if turn is None else self._own(turn, "act")
        with self._until_over():
            if state.replay_log.goes_on:
                return self._answered(action, state.replay_log.step(action), writer)
            again = state.last_node is not None and sampled_earlier(state.last_node)
            if not (again or (state.grant or self._rollout.budget).spend_call()):
                self._rollout.count("budget_pruned")
                state.end("pruned", EndReason.BUDGET)
                raise EpisodeOver(EndReason.BUDGET)
            step = await self._asked(action, again)
            self._rollout.count("replayed_calls" if again else "environment_calls")
            if writer is not None:
                earned = (
                    step.reward if worth is None else reward_of("what `worth` of `episode.act` returns", worth(step))
                )
                state.credit(replace(step, reward=earned), writer)
            return self._answered(action, step, writer, live=True)

    async def _asked(self, action: str, again: bool) -> StepResult:
        """The world's answer; where it depends on the actions alone, what it has answered is not asked again."""
        state, last = self._state, self._state.last_node
        if again and last is not None and state.earlier_reset is not None:
            since = takewhile(lambda event: event.node is None, reversed(state.events))
            known = kept_answer(last, sum(1 for _ in since), action)
            if known is not None:
                return known
        try:
            if state.handle is None:
                answers = [event for event in state.events if event.node is None]
                state.handle = await self._rollout.environment_after(answers)
            step = await state.handle.step(action)
        except EnvironmentFailure as error:
            raise state.fail(error) from error
        if self._rollout.keeps_answers and last is not None:
            keep_answer(self._rollout.graph, last, action, step)
        return step

    def pay(self, turn: Turn, amount: float) -> None:
        """Add a reward to an earlier turn for what became clear after the last one, such as the outcome of a game.

        Where other episodes share that turn, the last turn has it, as with `StepResult.rewards`; the return of the
        episode is the same.

        Raises:
            RolloutError: when `turn` is no turn of this episode.
            TypeError, ValueError: for what is no reward, see `reward_of`.
        """
        paid, amount = self._own(turn, "pay"), reward_of("what `episode.pay` is given", amount)
        if self._live:
            self._state.pay(paid, amount)

    def finish(self) -> None:
        """Call the episode finished when the worker returns, though the environment has not ended it: for workers that
        pose tasks of their own. Its outcome is then not the environment's; it has a return and no success."""
        self._state.finished_by_worker = True

    def expect(self, turns: Mapping[Context, int | None], *, stop: tuple[str, ...] = ()) -> None:
        """Announce that the next turns are those of these contexts, in this order, with what they see by now.

        Their requests are then sent side by side, so that agents who do not wait for each other take no longer than the
        slowest of them; what happens is what would happen without this. A turn that is asked for otherwise than it was
        announced is generated anew, and so is each turn where the recipe limits what a task may spend.

        Args:
            turns: each context with the `max_tokens` that `generate` will be given for it.
            stop: as `generate` will be given it for each of them.
        """
        self._state.ahead.expect(Expected(context, self._most(limit), stop) for context, limit in turns.items())

    async def room(self, context: Context) -> int:
        """Tokens that the next turn of a context may have. Where there are none, taking it would end the episode."""
        prompt, _ = await off_loop(context.pending_characters, context.prompt)
        return max(self._rollout.limits.context_tokens - len(prompt), 0)

    async def likelihoods(self, context: Context, texts: Sequence[str]) -> list[float]:
        """How likely the policy finds it that an agent says each of these texts next: the mean log-prob of its tokens.

        The rollout server has to return log-probs of prompts (`WorkerSpec.needs_scores`). A text that has no token, or
        no place behind what the context holds, has -inf; a longer one is judged by its beginning.
        """
        prompt, _ = await off_loop(context.pending_characters, context.prompt)
        room = max(self._rollout.limits.context_tokens - len(prompt), 0)

        async def one(text: str) -> float:
            tokens = self._behind(context, prompt, text)[:room]
            return await self._rollout.likelihood(prompt, tokens, context.policy) if tokens else -math.inf

        return list(await asyncio.gather(*map(one, texts)))

    async def once(self, about: Sequence[str], ask: Callable[[], Awaitable[float]]) -> float:
        """A number that somebody outside of the rollout says, such as a served model. It is asked for once and stored
        with the task, so that forks and replays hear the same.

        Args:
            about: the texts that it is about.
            ask: asks for it.
        """
        return await self._rollout.once([without_halves(text) for text in about], ask)

    async def tokens_of(self, context: Context, text: str) -> int:
        """How many tokens a text has behind what a context holds, without those of a message around it."""
        prompt: list[int] = []
        if context.length or context.pending_characters:  # templates have no form for a conversation without messages
            prompt, _ = await off_loop(context.pending_characters, context.prompt)
        return len(await off_loop(len(text), self._behind, context, prompt, text))

    def _behind(self, context: Context, prompt: list[int], text: str) -> list[int]:
        """The tokens of a text behind a prompt."""
        message = {"role": CONTINUED, "content": without_halves(text)}
        said = rendered(self._rollout.setup.renderer_of(context.policy), context.agent, prompt, [], [message])
        return said[len(prompt) :]

    async def generate(
        self,
        context: Context,
        *,
        segment: int = 0,
        plan: Turn | None = None,
        max_tokens: int | None = None,
        stop: tuple[str, ...] = (),
    ) -> Turn:
        """Let the policy generate the next turn in `context`, once the sampler lets the episode go on.

        Args:
            context: whose turn it is; gains the prompt and the action.
            segment: running number of the subgoal or plan that the turn belongs to.
            plan: the turn of this episode that contains the plan above this one.
            max_tokens: limit of this turn, at most the recipe's.
            stop: strings that end the turn.

        Raises:
            EpisodeOver: when a limit of the episode is reached; it is then truncated.
            RolloutError: when `plan` is no turn of this episode.
        """
        state, graph = self._state, self._rollout.graph
        above = None if plan is None else self._own(plan, "generate")
        prompt, kept = await off_loop(context.pending_characters, context.prompt)
        most = self._most(max_tokens)
        state.ahead.reach(context)
        action: list[int] = []
        node: Node | None = None
        live = False
        with self._until_over():
            while node is None or node.partial:
                if state.replay_log.goes_on:
                    node = state.replay_log.node(prompt + action, graph)
                else:
                    live = True
                    request = TurnRequest(
                        context,
                        before=node or (context.node if kept else None),
                        observation=[] if node else prompt[kept:],
                        messages=[] if node else context.new_messages(kept > 0),
                        segment=segment,
                        plan=above,
                        stop=stop,
                    )
                    if state.earlier_nodes:
                        try:
                            node = restored_node(state, request)
                        except EnvironmentFailure as error:
                            raise state.fail(error) from error
                    else:
                        state.turn_request = request
                        state.paused.set()
                        await state.permits.acquire()
                        node = await sample_node(state, request, prompt + action, most - len(action))
                state.record.leaf = node.id
                state.events.append(Event(node=node))
                action = action + node.action if action else node.action
        self._live = live
        # A turn of one piece has been decoded already.
        whole = len(node.action) == len(action)
        text = node.text if whole else await off_loop(len(action), context.decode, action)
        return Turn(self._rollout, node, context.append_turn(prompt, action, node, text), live)

    def _own(self, turn: Turn, call: str) -> Node:
        """The node of a turn that a worker names, which its episode must have."""
        node = turn.node if isinstance(turn, Turn) else None
        if node is None or all(node is not own for own in self._state.nodes):
            raise RolloutError(
                f"worker {self._state.worker} gave `{call}` a turn that its episode does not have; name one that "
                "`generate` has returned in the same episode; this is a fault of the worker plugin named by "
                "`hier.worker.name`."
            )
        return node

    def _most(self, max_tokens: int | None) -> int:
        most = self._rollout.limits.max_tokens_per_turn
        return min(max_tokens or most, most)

    @contextmanager
    def _until_over(self) -> Iterator[None]:
        """Notes when a call tells the worker that its episode is over; a worker that calls again is stopped."""
        if self._state.told_to_end:
            raise EndIgnored
        try:
            yield
        except EpisodeOver:
            self._state.told_to_end = True
            raise

    def _answered(
        self, action: str | None, step: StepResult, writer: Node | None = None, live: bool = False
    ) -> StepResult:
        self._live = live
        self._state.events.append(Event(action=action, step=step, writer=writer))
        self._state.hear(step)
        return step
