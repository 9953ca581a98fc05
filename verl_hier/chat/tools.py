"""verl's own tools and tool parsers as `environments.tools.Tools`.

What happens in a call, and how a turn is read, is verl's `ToolAgentLoop` itself
(verl/experimental/agent_loop/tool_agent_loop.py): its methods are called on an instance that has the tools of an
episode and no server.
"""

from __future__ import annotations

import asyncio
import copy
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from verl_hier.environments.thoughts import without_thoughts
from verl_hier.environments.tools import TOOL_REWARDS, Said, Told, ToolSession
from verl_hier.errors import RecipeError, did_you_mean, first_line
from verl_hier.graph import RolloutGraph
from verl_hier.text import repaired

_LINE = "actor_rollout_ref.rollout.multi_turn"


class VerlTools:
    """The tools of a recipe, see `environments.tools.Tools`."""

    def __init__(self, config: Any, tokenizer: Any, tools: Sequence[Any] | None = None) -> None:
        """
        Args:
            config: the whole composed verl configuration.
            tokenizer: of the model.
            tools: what verl has loaded already; loaded when omitted.

        Raises:
            RecipeError: when a tool cannot be loaded, there is none, or verl has no such parser.
        """
        from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
        from verl.experimental.agent_loop.tool_parser import ToolParser

        settings = config.actor_rollout_ref.rollout.multi_turn
        found = load_tools(settings) if tools is None else list(tools)
        if not found:
            raise RecipeError(f"{_LINE}: there is no tool; name yours in `tool_config_path` or `function_tool_path`.")
        known = ToolParser._registry
        if settings.format not in known:
            raise RecipeError(
                f"{_LINE}.format: verl has no tool parser {settings.format!r}{did_you_mean(settings.format, known)}; "
                f"it has {', '.join(sorted(known))}."
            )
        self.settings = settings
        self.tools = {tool.name: tool for tool in found}
        self.tokenizer = tokenizer
        self.parser = ToolParser.get_tool_parser(settings.format, tokenizer)
        self._openings = openings(self.parser)
        self.loop: Callable[[], Any] = lambda: ToolAgentLoop.__new__(ToolAgentLoop)

    @property
    def names(self) -> list[str]:
        """See `environments.tools.Tools`."""
        return list(self.tools)

    def begins_call(self, turn: str | Sequence[int]) -> bool:
        """Whether a turn has the opening of a call outside of its thoughts."""
        text = turn if isinstance(turn, str) else self.tokenizer.decode(turn, skip_special_tokens=False)
        said = without_thoughts(text)
        return any(opening in said for opening in self._openings)

    def session(self, task: Mapping[str, Any]) -> ToolSession:
        """See `environments.tools.Tools.session`."""
        return VerlToolSession(self, task)


class VerlToolSession:
    """The tools of an episode, see `environments.tools.ToolSession`."""

    def __init__(self, run: VerlTools, task: Mapping[str, Any]) -> None:
        from verl.experimental.agent_loop.tool_agent_loop import AgentData

        settings = run.settings
        extra_info = task.get("extra_info") or {}
        chosen = extra_info.get("tool_selection")
        self._run = run
        self._tools = {name: run.tools[name] for name in chosen if name in run.tools} if chosen else run.tools
        self.schemas = [dump(tool.tool_schema) for tool in self._tools.values()]
        self.names = list(self._tools)
        self.stop_tokens = list(run.parser.stop_token_ids)
        self.most_turns = settings.max_assistant_turns or None
        self.most_answers = settings.max_user_turns or None
        self._data = AgentData(
            messages=copy.deepcopy(list(task.get("messages", ()))),
            image_data=None,
            video_data=None,
            audio_data=None,
            mm_processor_kwargs=None,
            metrics={},
            request_id=uuid.uuid4().hex,
            tools_kwargs=task.get("tools_kwargs") or extra_info.get("tools_kwargs") or {},
        )
        self._data._active_tools = self._tools
        self._loop = run.loop()
        self._loop.tools = run.tools
        self._loop.max_parallel_calls = settings.max_parallel_calls
        self._loop.max_tool_response_length = settings.max_tool_response_length
        self._loop.tool_response_truncate_side = settings.tool_response_truncate_side

    async def parse(self, turn: str | Sequence[int]) -> Said:
        """See `environments.tools.ToolSession.parse`."""
        tokens = self._run.tokenizer.encode(turn, add_special_tokens=False) if isinstance(turn, str) else list(turn)
        schemas = [tool.tool_schema for tool in self._tools.values()]
        content, calls = await self._run.parser.extract_tool_calls(tokens, schemas)
        for call in calls:
            call.arguments = _whole(call.arguments)
        self._data.response_ids, self._data.tool_calls = tokens, calls
        self._data.assistant_turns += 1
        message = self._loop._build_assistant_message(content, self._data)
        self._data.messages.append(message)
        made = calls[: self._loop.max_parallel_calls]
        broken = not calls and self._run.begins_call(turn if isinstance(turn, str) else tokens)
        return Said(message, tuple((call.name, call.arguments) for call in made), len(calls) - len(made), broken)

    async def call(self, said: Said, known: Sequence[Mapping[str, Any] | None] = ()) -> Told:
        """See `environments.tools.ToolSession.call`."""
        calls, data = self._data.tool_calls[: self._loop.max_parallel_calls], self._data
        known = known or [None] * len(calls)
        made = [call for call, was in zip(calls, known, strict=True) if was is None]
        answers = await asyncio.gather(*(self._loop._call_tool(call, data.tools_kwargs, data) for call in made))
        given, messages = iter(answers), []
        for call, was in zip(calls, known, strict=True):
            if was is not None:
                messages.append(dict(was))
                continue
            answer = next(given)[0]
            if answer.image or answer.video:
                raise RecipeError(
                    f"{_LINE}.tool_config_path: the tool {call.name!r} answered with a picture or a film; only texts "
                    "reach the policy here."
                )
            number = {} if call.tool_call_id is None else {"tool_call_id": call.tool_call_id}
            messages.append({"role": "tool", "content": answer.text or "", **number})
        data.messages.extend(messages)
        data.user_turns += 1
        rewards = tuple(float(reward) for _, reward, _ in answers if reward is not None)
        data.tool_rewards.extend(rewards)
        return Told(tuple(messages), rewards)

    @property
    def keeps(self) -> bool:
        """See `environments.tools.ToolSession`."""
        return bool(self._data.extra_fields)


def openings(parser: Any) -> tuple[str, ...]:
    """What opens a call in the language of one of verl's tool parsers, which name it `tool_call_start_token` or
    alike; gpt-oss has it in its pattern alone. Empty for a parser that does not say it."""
    named = [
        value
        for name, value in vars(parser).items()
        if isinstance(value, str)
        and value
        and name.startswith("tool_call")
        and name.endswith(("start_token", "begin_token"))
    ]
    return tuple(named) or ((" to=functions.",) if type(parser).__name__ == "GptOssToolParser" else ())


def _whole(arguments: str) -> str:
    """The arguments of a call without escapes of halves of characters, which tools would hand on."""
    if "\\ud" not in arguments.lower():
        return arguments
    try:
        said = json.loads(arguments)
        return arguments if repaired(said) is said else json.dumps(repaired(said), ensure_ascii=False)
    except (ValueError, RecursionError):
        return arguments  # verl says what is wrong


@dataclass(frozen=True)
class ToolCounts:
    """What verl's reward functions are told of an episode with tools, counted as verl's tool agent loop does.

    Attributes:
        num_turns: the prompt, the turns of the agent, and the answers to its calls.
        rewards: those that the tools gave, in order.
    """

    num_turns: int
    rewards: list[float]

    @classmethod
    def of(cls, graph: RolloutGraph, episode: int) -> ToolCounts:
        """The counts of an episode of a graph."""
        notes = [graph.nodes[number].extra for number in graph.path(episode)]
        answered = [note[TOOL_REWARDS] for note in notes if TOOL_REWARDS in note]
        rewards = [reward for each in answered for reward in json.loads(each)]
        return cls(1 + graph.turns(episode) + len(answered), rewards)


def dump(schema: Any) -> dict[str, Any]:
    """A tool's schema as verl gives it to the chat template."""
    found: dict[str, Any] = schema.model_dump(exclude_unset=True, exclude_none=True)
    return found


def load_tools(settings: Any) -> list[Any]:
    """The tools that `tool_config_path` and `function_tool_path` name.

    Args:
        settings: `actor_rollout_ref.rollout.multi_turn`.

    Raises:
        RecipeError: when one cannot be loaded.
    """
    from verl.tools.tool_registry import load_all_tools

    try:
        return list(load_all_tools(settings.get("tool_config_path"), settings.get("function_tool_path")))
    except Exception as error:  # the user's own code
        raise RecipeError(
            f"{_LINE}: the tools cannot be loaded ({type(error).__name__}: {first_line(error)})."
        ) from error


def task_of_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The task of a row of verl's data set for an environment with tools: messages, `tools_kwargs`, `extra_info`.

    Raises:
        RecipeError: when a message has more than text.
    """
    messages = plain(list(row["raw_prompt"]))
    if not all(isinstance(message.get("content"), str) for message in messages):
        raise RecipeError(
            "data.prompt_key: a prompt has more than text, which hier.environment.name: verl_tools reads."
        )
    instruction = next((each["content"] for each in reversed(messages) if each["role"] == "user"), "")
    return {
        "messages": messages,
        "instruction": instruction,
        "tools_kwargs": plain(row.get("tools_kwargs") or {}),
        "extra_info": plain(row.get("extra_info") or {}),
    }


def plain(value: Any) -> Any:
    """Arrays and numbers of numpy, which a Parquet file may bring, as JSON has them."""
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value
