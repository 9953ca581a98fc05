"""The gateway environment: an agent program plays, its requests are observations, the policy's turns their answers."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from verl_hier.environments.asynchronous import AsyncEnvironment
from verl_hier.environments.base import StepResult
from verl_hier.errors import RecipeError
from verl_hier_plugins.environments.gateway.agent import AgentProcess, Agents, require_agent
from verl_hier_plugins.environments.gateway.answers import FULL, answer_to, counted
from verl_hier_plugins.environments.gateway.chance import DrawnNames, settled
from verl_hier_plugins.environments.gateway.conversations import Conversation, Conversations, said_of
from verl_hier_plugins.environments.gateway.endpoint import Endpoint, serving
from verl_hier_plugins.environments.gateway.inbox import Asked, Inbox
from verl_hier_plugins.environments.gateway.messages import RefusedRequest
from verl_hier_plugins.environments.gateway.options import GatewayOptions
from verl_hier_plugins.environments.gateway.samples import sample_of
from verl_hier_plugins.environments.gateway.scoring import Scorer, scorer_of

NO_ROOM = "the conversation leaves no room for an answer in the context of the recipe (hier.rollout.context_tokens)."
NO_LOGPROBS = "the server of this recipe returns no log-probs; ask without `logprobs`."
PATIENCE_S = 2.0
"""Seconds for which a repeated agent that asks something else may still ask what is recorded."""


@dataclass(frozen=True)
class Over:
    """How an agent has come to its end.

    Attributes:
        why: `result`, `died`, `max_calls`, `agent_s`, `max_idle`, or `too_long`: it died because a conversation of it
            was longer than the recipe allows.
        result: what it says.
    """

    why: str
    result: str = ""


class GatewayEnvironment(AsyncEnvironment):
    """One episode: one run of the agent.

    Attributes:
        task: the task.
        exchanges: the observations so far, each with the action that answered it; for experts.
        shown: the present observation.
    """

    def __init__(self, endpoint: Endpoint, agents: Agents, score: Scorer) -> None:
        self.task: Mapping[str, Any] = {}
        self.exchanges: list[tuple[str, str]] = []
        self._calls = 0
        self.shown = ""
        self._endpoint = endpoint
        self._agents = agents
        self._options = endpoint.options
        self._score = score
        self._inbox: Inbox | None = None
        self._agent: AgentProcess | None = None
        self._ending: asyncio.Task[None] | None = None
        self._conversations = Conversations(endpoint.options.actions, endpoint.options.reminders)
        self._asked: tuple[Asked, Conversation] | None = None
        self._took_s = 0.0
        self._anchor = ""
        self._nonce = ""
        self._drawn = DrawnNames()

    async def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """Start the agent and wait for its first request."""
        return await self._begin(task, seed, None)

    async def step(self, action: str) -> StepResult:
        """Answer the agent's request and wait for its next one, or for its end."""
        return await self._answer(action, None)

    async def restore(
        self, task: Mapping[str, Any], seed: int, actions: Sequence[str], steps: Sequence[StepResult]
    ) -> Sequence[StepResult] | None:
        """Run the agent again and answer its requests as they were answered, whatever their order now.

        Raises:
            RecipeError: when the recipe says that an agent must not be run again.
        """
        if not self._options.repeatable:
            raise RecipeError(
                "hier.environment.repeatable: this agent must not be run again, so its episodes cannot be forked or "
                "rebuilt; allow it, or take a sampler that does not branch."
            )
        again = [await self._begin(task, seed, steps[0])]
        for action, step in zip(actions, steps[1:], strict=True):
            again.append(await self._answer(action, step))
        return again

    async def close(self) -> None:
        """End the agent."""
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            self._endpoint.close(inbox)
        agent, self._agent = self._agent, None
        if self._ending is not None:
            self._ending.cancel()
        if agent is not None:
            await agent.stop()

    def expert(self, rng: random.Random, skip_stage: float = 0.0, remember: bool = True) -> Any:
        """A scripted expert for the tasks of a sample agent; see `verl_hier.environments.expert`."""
        if "goal" not in self.task:
            raise RecipeError("hier.environment.data_path: the expert knows the tasks of the sample agents only.")
        return sample_of(self._options).expert(self, rng, skip_stage)

    def vocabulary(self) -> Iterable[str]:
        """The words of a sample agent."""
        return sample_of(self._options).words()

    async def _begin(self, task: Mapping[str, Any], seed: int, like: StepResult | None) -> StepResult:
        self.task = task
        self._inbox = self._endpoint.open()
        self._anchor = json.dumps(task, sort_keys=True)
        # The same when the agent is run again on its recorded answers, and no name that an agent makes up itself.
        self._nonce = _hash(self._anchor, str(seed))[:10]
        surroundings = {
            "OPENAI_BASE_URL": self._endpoint.url,
            "OPENAI_API_KEY": self._inbox.key,
            "OPENAI_MODEL": "policy",
            "ANTHROPIC_BASE_URL": self._endpoint.url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": self._inbox.key,
            "ANTHROPIC_MODEL": "policy",
            "AGENT_SEED": str(seed),
            **({"AGENT_CONTEXT_TOKENS": str(self._options.context_tokens)} if self._options.context_tokens else {}),
            "PYTHONHASHSEED": "0",
            "NO_PROXY": "127.0.0.1",
        }
        given = {name: value for name, value in task.items() if name not in self._options.hidden}
        async with self._endpoint.starts:
            self._agent = await self._agents.start(given, surroundings)
            self._ending = asyncio.create_task(_say_end(self._agent, self._inbox))
            step = await self._next(True, like)
        if step.done or step.truncated:
            refused = f" was answered ({self._inbox.fault.rstrip('.')})" if self._inbox.fault else ""
            raise RuntimeError(f"the agent ended before its first request{refused}: {self._agent.log}")
        return step

    async def _answer(self, action: str, like: StepResult | None) -> StepResult:
        if self._asked is None:
            return self._step("The agent has ended.", valid=False, done=True, info={"won": False, "score": 0.0})
        asked, conversation = self._asked
        self._asked = None
        if action == FULL:
            return await self._refused(asked, NO_ROOM, like, too_long=True)
        action, usage, logprobs = counted(action)
        if asked.request.logprobs and logprobs is None:
            return await self._refused(asked, NO_LOGPROBS, like)
        number = f"{self._nonce}_{len(self.exchanges)}"
        said = self._drawn.of_this(action)
        answer = answer_to(asked.request, said, number, self._options.actions == "plain", usage, logprobs)
        self.exchanges.append((self.shown, action))
        self._conversations.answered(conversation, answer.message)
        self._anchor = _hash(self._anchor, self.shown, action)
        if not asked.answer.done():
            asked.answer.set_result(answer)
        self._calls = len(answer.calls)
        return await self._next(answer.valid, like)

    async def _refused(
        self, asked: Asked, sentence: str, like: StepResult | None, too_long: bool = False
    ) -> StepResult:
        """Refuse the agent's request and wait for its next one, or for its end."""
        if not asked.answer.done():
            asked.answer.set_exception(RefusedRequest(sentence, too_long=too_long))
            asked.answer.exception()  # its client may have gone
        return await self._next(True, like)

    async def _next(self, valid: bool, like: StepResult | None) -> StepResult:
        """The next request, or how the agent ended."""
        came = await self._arrival(like)
        if isinstance(came, Asked) and len(self.exchanges) >= self._options.max_calls:
            came = Over("max_calls")
        if isinstance(came, Over):
            return await self._ended(came, valid)
        conversation, begins, new = self._conversations.take(came.request)
        if self._conversations.idle > self._options.max_idle:
            return await self._ended(Over("max_idle"), valid)
        self._asked = came, conversation
        self.shown = "\n".join(message.content for message in new)
        if like is not None:
            self._drawn.learn(like.text, self.shown)
        self.shown = self._drawn.of_the_first(self.shown)
        request = said_of(conversation, begins, new, came.request, self._drawn)
        if like is not None and (like.text == self.shown or settled(like.text) == settled(self.shown)):
            self.shown, request["messages"] = like.text, like.info["request"]["messages"]
        info: dict[str, Any] = {"won": False, "score": 0.0, "calls": self._calls, "request": request}
        return self._step(self.shown, valid=valid, info=info)

    async def _arrival(self, like: StepResult | None) -> Asked | Over:
        """Wait for a request, or for the agent's end; the time that passes is the agent's own.

        Args:
            like: the recorded step that shows the request; others may arrive before it.
        """
        assert self._inbox is not None and self._agent is not None
        inbox, agent, began = self._inbox, self._agent, time.monotonic()
        wanted = None if like is None else _identity_of(like)
        other: float | None = None
        try:
            while True:
                inbox.changed.clear()
                now = time.monotonic()
                here = [asked for asked in inbox.waiting if not asked.left]
                for asked in here:
                    if (
                        wanted is None
                        or asked.request.settled_with(self._drawn) == wanted
                        or (other and now > other + PATIENCE_S)
                    ):
                        inbox.waiting.remove(asked)
                        return asked
                other = other or (now if here else None)
                if agent.ended.is_set():
                    return Over("result", agent.result) if agent.status == 0 else Over("died")
                left = self._options.agent_s - self._took_s - (now - began)
                if left <= 0:
                    return Over("agent_s")
                look = asyncio.get_running_loop().call_later(
                    min(left, PATIENCE_S / 4) if other else left, inbox.changed.set
                )
                try:
                    await inbox.changed.wait()
                finally:
                    look.cancel()
        finally:
            self._took_s += time.monotonic() - began

    async def _ended(self, over: Over, valid: bool) -> StepResult:
        assert self._agent is not None and self._inbox is not None
        if over.why == "died" and self._inbox.limited:
            over = Over("too_long")
        if over.why == "died" and self._inbox.fault:
            # Not of what the policy said, so its score would be no word about the policy.
            raise RuntimeError(
                f"the agent died of a request that was not answered ({self._inbox.fault.rstrip('.')}); its last line: "
                f"{self._agent.log}"
            )
        if over.why == "died" and self._options.crashes == "lose":
            raise RuntimeError(f"the agent died with status {self._agent.status}: {self._agent.log}")
        truncated = over.why in ("max_calls", "agent_s", "max_idle", "too_long")
        score = 0.0
        if self.exchanges and not truncated:
            score = await asyncio.to_thread(self._score, self.task, over.result)
        if truncated:
            await self._agent.stop()
        info: dict[str, Any] = {"won": score >= self._options.won_at, "score": score, "calls": self._calls}
        info |= {"ended": over.why, "result": over.result[:2000]}
        if over.why == "died":
            info["died"] = self._agent.log
        return self._step("", valid=valid, reward=score, done=not truncated, truncated=truncated, info=info)

    def _step(self, text: str, **rest: Any) -> StepResult:
        return StepResult(text=text, anchor=_hash(self._anchor, text), **rest)


async def _say_end(agent: AgentProcess, inbox: Inbox) -> None:
    """Wake the one who waits for a request when the agent has ended, so that one event is all that is waited for."""
    await agent.ended.wait()
    inbox.changed.set()


def _identity_of(step: StepResult) -> str | None:
    """Identity of the request that a recorded step shows; None where it shows the agent's end."""
    request = step.info.get("request")
    return None if request is None else str(request["digest"])


def _hash(*said: str) -> str:
    return hashlib.sha256("\0".join(said).encode("utf-8", "replace")).hexdigest()


@asynccontextmanager
async def service(options: GatewayOptions) -> AsyncIterator[Callable[[], GatewayEnvironment]]:
    """One endpoint for all episodes of a process."""
    require_agent(options)
    score, agents = scorer_of(options), Agents(options)
    async with serving(options) as endpoint:
        try:
            yield lambda: GatewayEnvironment(endpoint, agents, score)
        finally:
            await agents.close()
