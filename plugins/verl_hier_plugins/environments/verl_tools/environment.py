"""The environment with verl's tools: a turn with calls is answered by them, a turn without ends the episode."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from verl_hier.environments.asynchronous import AsyncEnvironment
from verl_hier.environments.base import StepResult
from verl_hier.environments.tools import TOOL_REWARDS, Said, Tools, ToolSession, turn_of
from verl_hier.errors import RecipeError, did_you_mean
from verl_hier_plugins.environments.verl_tools.options import VerlToolsOptions


class VerlToolsEnvironment(AsyncEnvironment):
    """One row of verl's data set."""

    def __init__(self, options: VerlToolsOptions, tools: Tools) -> None:
        self._options = options
        self._tools = tools
        self._task: Mapping[str, Any] = {}
        self._session: ToolSession | None = None
        self._turns = 0
        self._answered = 0
        self._over = False
        self._learned: list[str] = []

    async def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """Give the messages of the row and the tools that it allows. `seed` has no effect."""
        session = self._begin(task)
        messages = task.get("messages", ())
        text = "\n".join(str(message["content"]) for message in messages)
        return StepResult(
            text,
            anchor=self._anchor(),
            info={
                "commands": "\n".join(json.dumps(schema, ensure_ascii=False) for schema in session.schemas),
                "tools": list(session.schemas),
                "stop_tokens": list(session.stop_tokens),
                "messages": list(messages),
            },
        )

    async def step(self, action: str) -> StepResult:
        """Make the calls of a turn, side by side; a turn without a call, or the last one that verl allows, ends.

        verl also ends where a call was begun and its parser reads none; such a turn is not valid.
        """
        if self._over:
            return StepResult("The task is over.", done=True, valid=False, anchor=self._anchor())
        session = self._playing
        self._turns += 1
        if self._at_its_end(session):
            self._over = True
            return StepResult("", truncated=True, anchor=self._anchor(), info=self._used())
        said = await session.parse(turn_of(action))
        if not said.calls:
            self._over = True
            return StepResult(
                "",
                reward=-self._options.invalid_penalty if said.broken else 0.0,
                done=True,
                valid=not said.broken,
                anchor=self._anchor(),
                info={"message": said.message, **self._used()},
            )
        told = await session.call(said)
        return self._told(said, told.messages, told.rewards)

    async def restore(
        self, task: Mapping[str, Any], seed: int, actions: Sequence[str], steps: Sequence[StepResult]
    ) -> Sequence[StepResult] | None:
        """Take the answers from the record; only tools that remember an episode are called again, and compared.

        Raises:
            RecipeError: when a tool has remembered something and is not named as `stateful`.
        """
        session, again = self._begin(task), [replace(steps[0], anchor=self._anchor())]
        asked = False
        for action, step in zip(actions, steps[1:], strict=True):
            self._turns += 1
            if "messages" not in step.info:
                self._over = step.done or step.truncated
                again.append(step)
                continue
            said = await session.parse(turn_of(action))
            stateful = [name in self._options.stateful for name, _ in said.calls]
            was = step.info["messages"]
            known = [None if new else message for new, message in zip(stateful, was, strict=True)]
            told = await session.call(said, known)
            if step.info["keeps"] and not session.keeps:
                named = ", ".join(dict.fromkeys(name for name, _ in said.calls))
                raise RecipeError(
                    f"hier.environment.stateful: a tool ({named}) has noted something in `agent_data`, which a "
                    "fork cannot have without calling it again; name the tools that do so, or take a sampler that does "
                    "not branch."
                )
            asked = asked or any(stateful)
            again.append(self._told(said, told.messages, step.info[TOOL_REWARDS]))
        return again if asked else None

    @property
    def _playing(self) -> ToolSession:
        assert self._session is not None, "the pool resets an environment first"
        return self._session

    def _begin(self, task: Mapping[str, Any]) -> ToolSession:
        self._task, self._session = task, self._tools.session(task)
        for name in self._options.stateful:
            if name not in self._tools.names:
                known = ", ".join(self._tools.names)
                raise RecipeError(
                    f"hier.environment.stateful: there is no tool {name!r}{did_you_mean(name, self._tools.names)}; "
                    f"there are {known}."
                )
        return self._session

    def _at_its_end(self, session: ToolSession) -> bool:
        """verl reads neither a turn that is the last of its limit, nor one after the last answer."""
        turns, answers = session.most_turns, session.most_answers
        return (turns is not None and self._turns >= turns) or (answers is not None and self._answered >= answers)

    def _told(self, said: Said, messages: Sequence[Mapping[str, Any]], rewards: Sequence[float]) -> StepResult:
        session = self._playing
        self._answered += 1
        texts = [str(message["content"]) for message in messages]
        self._learned += [json.dumps([*call, text]) for call, text in zip(said.calls, texts, strict=True)]
        valid = any(name in session.names and _is_json(arguments) for name, arguments in said.calls)
        reward = self._options.reward_weight * sum(rewards)
        return StepResult(
            "\n".join(texts),
            reward=reward if valid else reward - self._options.invalid_penalty,
            valid=valid,
            anchor=self._anchor(),
            info={
                "message": said.message,
                "messages": list(messages),
                TOOL_REWARDS: list(rewards),
                "left_out": said.left_out,
                "keeps": session.keeps,
            },
        )

    def _used(self) -> dict[str, Any]:
        return {"used_tool": bool(self._learned)}

    def _anchor(self) -> str:
        """What the agent was asked, and what it has learned: in order where tools remember the episode."""
        learned = self._learned if self._options.stateful else sorted(set(self._learned))
        asked = [self._task.get(name) for name in ("messages", "tools_kwargs", "extra_info")]
        known = json.dumps([*asked, learned, self._over], default=str)
        return hashlib.sha256(known.encode()).hexdigest()


def _is_json(arguments: str) -> bool:
    try:
        json.loads(arguments)
    except (ValueError, TypeError, RecursionError):
        return False
    return True
