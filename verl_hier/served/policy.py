"""A policy behind an endpoint with OpenAI's chat completions.

A rollout deals with tokens, the endpoint with messages. `Messages` is a renderer whose tokens are whole messages, so
the policy needs no tokenizer here and no text is lost.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from verl_hier.errors import RolloutError
from verl_hier.graph.nodes import CONTINUED
from verl_hier.rollout import Generation, Limits, Sampling, Scored
from verl_hier.served.client import ChatClient

_OPENING = re.compile(r"<(\w{1,64})>")


class Messages:
    """See `rollout.Renderer`: token i is the i-th distinct message."""

    def __init__(self) -> None:
        self._messages: list[tuple[str, str]] = []
        self._numbers: dict[tuple[str, str, bool], int] = {}
        self._cut: set[int] = set()

    @property
    def texts(self) -> list[str]:
        """The contents of all messages so far."""
        return [content for _, content in self._messages]

    def number(self, role: str, content: str, cut: bool = False) -> int:
        """The token of a message; one that was cut has another than a whole one of the same content."""
        message = (role, content, cut)
        if message not in self._numbers:
            self._numbers[message] = len(self._messages)
            self._messages.append((role, content))
            if cut:
                self._cut.add(self._numbers[message])
        return self._numbers[message]

    def turn(self, content: str, cut: bool = False) -> list[int]:
        """The tokens of a turn; there is one."""
        return [self.number("assistant", content, cut)]

    def render(
        self,
        tokens: list[int],
        history: list[dict[str, Any]],
        pending: list[dict[str, Any]],
        tools: Sequence[dict[str, Any]] = (),
    ) -> list[int]:
        """See `Renderer.render`."""
        if tools:
            raise RolloutError(
                "hier.worker.name: the worker shows its tools by the chat template, and an endpoint has its own; take "
                "a worker whose prompts contain {commands}."
            )
        return tokens + [self.number(message["role"], message["content"]) for message in pending]

    def decode(self, tokens: list[int]) -> str:
        """See `Renderer.decode`."""
        return "".join(self._messages[token][1] for token in tokens).strip()

    def ends(self, tokens: list[int], stop: Sequence[str] = ()) -> bool:
        """See `Renderer.ends`; a token is a whole turn, which ends unless the endpoint has said that it was cut."""
        return bool(tokens) and tokens[-1] not in self._cut

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """See `Renderer.stop_tokens`; an endpoint stops by itself."""
        return ()

    def conversation(self, tokens: list[int]) -> list[dict[str, str]]:
        """The messages for an endpoint; a continuation of an assistant message is appended to it."""
        found: list[dict[str, str]] = []
        for role, content in (self._messages[token] for token in tokens):
            own = role in ("assistant", CONTINUED)
            if own and found and found[-1]["role"] == "assistant":
                found[-1]["content"] += content
            else:
                found.append({"role": "assistant" if own else role, "content": content})
        return found


class ServedPolicy:
    """See `rollout.Policy`; its tokens are those of `Messages`.

    Attributes:
        refused: requests that the endpoint refused, for instance because a conversation is too long; their episodes end
            there.
    """

    def __init__(self, client: ChatClient, messages: Messages) -> None:
        """
        Args:
            client: of the endpoint.
            messages: the renderer of the rollout.
        """
        self._client = client
        self._messages = messages
        self.refused = 0

    async def generate(self, prompt: list[int], sampling: Sampling, conversation: str) -> Generation:
        """See `rollout.Policy.generate`; one token, which is the whole answer, and no log-probs."""
        messages = self._messages.conversation(prompt)
        request: dict[str, Any] = {
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        if sampling.stop:
            request["stop"] = list(sampling.stop)
        if sampling.seed is not None:
            request["seed"] = sampling.seed
        if messages[-1]["role"] == "assistant":
            # vLLM and SGLang continue the last message on request.
            request["extra_body"] = {"continue_final_message": True, "add_generation_prompt": False}
        answer = await self._client.ask(messages, **request)
        if answer is None:
            self.refused += 1
            return Generation([], [])
        text = answer.text
        if answer.finish_reason == "stop":
            # vLLM reports the stop string.
            named = answer.stopped_by
            text = text + named if named in sampling.stop else with_stop(text, sampling.stop)
        # An endpoint gives no tokens, so that its word is all there is.
        tokens = self._messages.turn(text, cut=answer.finish_reason == "length") if text else []
        return Generation(tokens, [], answer.finish_reason, counted_tokens=answer.tokens)

    async def score(
        self, prompt: list[int], tokens: list[int], conversation: str, top: int = 0, temperature: float = 1.0
    ) -> Scored:
        """See `rollout.Policy.score`."""
        raise RolloutError("hier.sampler.name: a served model cannot score tokens; use `independent`.")

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


def for_messages(limits: Limits, max_tokens: int | None = None) -> Limits:
    """The limits of an episode whose tokens are messages: turns are the recipe's, lengths the endpoint's own.

    Args:
        limits: of the recipe.
        max_tokens: limit of a turn, in tokens of the endpoint; None for the recipe's.
    """
    most = max_tokens or limits.max_tokens_per_turn
    return replace(limits, max_tokens_per_turn=most, context_tokens=most + 100 * limits.max_turns)


def with_stop(text: str, stop: tuple[str, ...]) -> str:
    """The text with the closing tag that an endpoint cuts off when it is a stop string."""
    opened = _OPENING.findall(text)
    if not opened:
        return text
    closing = f"</{opened[-1]}>"
    cut = closing in stop and closing not in text[text.rindex(f"<{opened[-1]}>") :]
    return text + closing if cut else text
